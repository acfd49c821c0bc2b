//! Every witness × every kind of damage. In each case acknowledged work is there, or is named as lost, and none of it is
//! deleted.

use super::{
    comparison,
    stage::{Stage, back_up, copy_dir, cut, files_beneath, flip, names, repair, restore_backup},
    troubles,
};
use crate::support::{Server, eventually};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Witness {
    Database,
    Wal,
    Packs,
    /// The bucket's manifests, and the machine is lost: nothing else knows the session.
    Manifests,
    Bucket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Missing,
    Older,
    Damaged,
    Foreign,
}

macro_rules! cells {
    ($($name:ident: $witness:ident $harm:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                holds(Witness::$witness, Harm::$harm).await;
            }
        )*
    };
}

cells! {
    a_database_that_is_missing: Database Missing,
    a_database_that_is_older: Database Older,
    a_database_that_is_damaged: Database Damaged,
    a_database_that_is_foreign: Database Foreign,
    a_log_of_the_database_that_is_missing: Wal Missing,
    a_log_of_the_database_that_is_older: Wal Older,
    a_log_of_the_database_that_is_damaged: Wal Damaged,
    a_log_of_the_database_that_is_foreign: Wal Foreign,
    packs_that_are_missing: Packs Missing,
    packs_that_are_older: Packs Older,
    packs_that_are_damaged: Packs Damaged,
    packs_that_are_foreign: Packs Foreign,
    manifests_that_are_missing: Manifests Missing,
    manifests_that_are_older: Manifests Older,
    manifests_that_are_damaged: Manifests Damaged,
    manifests_that_are_foreign: Manifests Foreign,
    a_bucket_that_is_missing: Bucket Missing,
    a_bucket_that_is_older: Bucket Older,
    a_bucket_that_is_damaged: Bucket Damaged,
    a_bucket_that_is_foreign: Bucket Foreign,
}

/// The data of another server, with its own session and bucket.
async fn foreign() -> Stage {
    let mut other = Stage::with_bucket(&[]).await;
    other.turn(1).await;
    other.server.kill9();
    other
}

async fn holds(witness: Witness, harm: Harm) {
    let mut stage = Stage::with_bucket(&[("ASH_REMOTE_CHECK_EVERY", "1")]).await;
    stage.turn(1).await;
    stage.server.stop().await;
    back_up(&stage.server);
    let (repo, old) = (stage.server.data.join("repo"), stage.server.dir.join("old"));
    copy_dir(&repo, &old.join("repo"));
    copy_dir(stage.bucket(), &old.join("bucket"));
    stage.server.launch().await;
    stage.resume().await;
    stage.turn(2).await;
    stage.server.kill9();
    let other = match harm {
        Harm::Foreign => Some(foreign().await),
        Harm::Missing | Harm::Older | Harm::Damaged => None,
    };
    let own = kept(&stage);
    match witness {
        Witness::Database => harm_database(&stage.server, harm, other.as_ref()),
        Witness::Wal => harm_wal(&stage.server, harm, other.as_ref()),
        Witness::Packs => harm_packs(&repo.join("default"), &old.join("repo/default"), harm, other.as_ref()),
        Witness::Manifests => harm_manifests(&stage, harm, other.as_ref()),
        Witness::Bucket => harm_bucket(&stage, &old.join("bucket"), harm, other.as_ref()),
    }
    if witness == Witness::Manifests {
        let gone = async || fs::remove_dir_all(&stage.server.data).is_ok().then_some(());
        eventually("the machine is gone", gone).await;
    }
    // Files of the other server are not acknowledged by this one.
    let before: BTreeSet<PathBuf> = kept(&stage).intersection(&own).cloned().collect();
    let what = format!("{witness:?} {harm:?}");
    start_and_repair(&mut stage, witness).await;
    // The sandbox may have survived: only a cold resume has a receipt to check.
    let (status, _) = stage.server.client().ask(reqwest::Method::POST, "/api/sessions/s/stop", None).await;
    let receipt = stage.resume().await;
    assert!(receipt.is_object(), "{what}: {status} {receipt}");
    let lost = receipt["lost"].as_array().expect("a list").clone();
    let one = stage.file("one.txt").await;
    assert_eq!(one, "1", "{what}: {receipt}");
    let two = stage.file("two.txt").await;
    assert!(two == "2" || !lost.is_empty(), "{what}: neither there nor named as lost: {receipt}");
    assert!(lost.is_empty() == (receipt["verified"] == true), "{what}: {receipt}");
    // Sweeps have compared, so they would also have collected.
    let sweeps = stage.server.log().matches("the database was compared with its witnesses").count();
    comparison(&stage.server, sweeps + 2).await;
    let after = kept(&stage);
    let deleted: Vec<&PathBuf> = before.difference(&after).collect();
    assert!(deleted.is_empty(), "{what}: deleted {deleted:?}");
    stage.server.client().say("s", "write three.txt: 3").await;
    assert_eq!(stage.file("three.txt").await, "3", "{what}");
}

/// With `ash repair` where the server cannot start or asks for it.
async fn start_and_repair(stage: &mut Stage, witness: Witness) {
    let (code, planned) = repair(&stage.server, &[]);
    if code != 0 && witness != Witness::Manifests {
        let (code, done) = repair(&stage.server, &["--yes"]);
        assert_eq!(code, 0, "{planned} {done}");
    }
    stage.server.take_over().await;
    comparison(&stage.server, 1).await;
    let codes: Vec<Value> =
        troubles(&stage.server).await.iter().map(|trouble| trouble["code"].clone()).collect();
    assert!(!codes.contains(&Value::from("database_damaged")), "{codes:?}");
}

/// Where acknowledged work is stored: packs here and in the bucket.
fn kept(stage: &Stage) -> BTreeSet<PathBuf> {
    let mut kept: BTreeSet<PathBuf> = files_beneath(&stage.server.data.join("repo/default"));
    kept.retain(|path| path.extension().is_some_and(|extension| extension == "pack"));
    kept.extend(files_beneath(&stage.bucket().join("tenants/default/packs")));
    kept
}

fn harm_database(server: &Server, harm: Harm, other: Option<&Stage>) {
    let file = server.data.join("ash.db");
    match harm {
        Harm::Missing => remove_database(server),
        Harm::Older => restore_backup(server),
        Harm::Damaged => {
            // All commits are in this one file, and its middle is overwritten.
            fs::remove_file(server.data.join("ash.db-wal")).ok();
            let size = fs::metadata(&file).expect("a database").len();
            let noise = vec![0xa5; usize::try_from(size / 2).expect("a size")];
            let to = fs::File::options().write(true).open(&file).expect("a database");
            std::os::unix::fs::FileExt::write_all_at(&to, &noise, size / 4).expect("written");
        }
        Harm::Foreign => {
            remove_database(server);
            let from = &other.expect("another server").server.data;
            for name in ["ash.db", "ash.db-wal"] {
                fs::copy(from.join(name), server.data.join(name)).ok();
            }
        }
    }
}

fn remove_database(server: &Server) {
    for name in ["ash.db", "ash.db-wal", "ash.db-shm"] {
        fs::remove_file(server.data.join(name)).ok();
    }
}

fn harm_wal(server: &Server, harm: Harm, other: Option<&Stage>) {
    let log = server.data.join("ash.db-wal");
    fs::remove_file(server.data.join("ash.db-shm")).ok();
    match harm {
        Harm::Missing => fs::remove_file(&log).expect("removed"),
        Harm::Older => drop(fs::copy(server.dir.join("backup/ash.db-wal"), &log).expect("an older one")),
        Harm::Damaged => flip(&log, 200),
        Harm::Foreign => {
            let from = other.expect("another server").server.data.join("ash.db-wal");
            fs::copy(from, &log).expect("another's");
        }
    }
}

fn harm_packs(repo: &Path, old: &Path, harm: Harm, other: Option<&Stage>) {
    let is_pack = |name: &String| name.ends_with(".pack");
    let before: BTreeSet<String> = names(old).into_iter().filter(is_pack).collect();
    let newer: Vec<PathBuf> = names(repo)
        .into_iter()
        .filter(is_pack)
        .filter(|name| !before.contains(name))
        .map(|name| repo.join(name))
        .collect();
    assert!(!newer.is_empty());
    match harm {
        Harm::Missing => newer.iter().for_each(|pack| fs::remove_file(pack).expect("removed")),
        Harm::Older => {
            fs::remove_dir_all(repo).expect("removed");
            copy_dir(old, repo);
        }
        Harm::Damaged => newer.iter().for_each(|pack| cut(pack)),
        Harm::Foreign => {
            let from = other.expect("another server").server.data.join("repo/default");
            for name in names(&from).into_iter().filter(is_pack) {
                fs::copy(from.join(&name), repo.join(&name)).expect("a pack of another");
            }
        }
    }
}

fn harm_manifests(stage: &Stage, harm: Harm, other: Option<&Stage>) {
    let mut all = stage.manifests();
    let newest = all.pop().expect("manifests");
    match harm {
        Harm::Missing => fs::remove_file(newest).expect("removed"),
        Harm::Older => {
            let kept = names(&stage.server.dir.join("old/bucket/tenants/default/sessions/s"));
            for manifest in all.iter().chain([&newest]) {
                let name = manifest.file_name().expect("a name").to_string_lossy().into_owned();
                if !kept.contains(&name) {
                    fs::remove_file(manifest).expect("removed");
                }
            }
        }
        Harm::Damaged => cut(&newest),
        Harm::Foreign => {
            let from = other.expect("another server").manifests().pop().expect("a manifest");
            let text =
                fs::read_to_string(from).expect("read").replace("\"session\":\"s\"", "\"session\":\"t\"");
            fs::write(newest, text).expect("written");
        }
    }
}

fn harm_bucket(stage: &Stage, old: &Path, harm: Harm, other: Option<&Stage>) {
    let bucket = stage.bucket();
    match harm {
        Harm::Missing => {
            fs::remove_dir_all(bucket).expect("removed");
            fs::create_dir(bucket).expect("an empty one");
        }
        Harm::Older => {
            fs::remove_dir_all(bucket).expect("removed");
            copy_dir(old, bucket);
        }
        Harm::Damaged => files_beneath(&bucket.join("tenants")).iter().for_each(|object| cut(object)),
        Harm::Foreign => {
            fs::remove_dir_all(bucket).expect("removed");
            copy_dir(other.expect("another server").bucket(), bucket);
        }
    }
}
