//! `ash snapshot` on any folder: the real binary, no server.

use crate::support::ash;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

struct Desk {
    dir: PathBuf,
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Desk {
        let dir = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(dir.join("src/deep")).expect("a folder");
        fs::write(dir.join("src/a"), "one").expect("a file");
        fs::write(dir.join("src/deep/b"), "two".repeat(1000)).expect("a file");
        std::os::unix::fs::symlink("a", dir.join("src/link")).expect("a link");
        Desk { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(ash());
        command.env_clear().env("HOME", &self.dir).current_dir(&self.dir).arg("snapshot").args(args);
        let output = command.output().expect("ash");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Ran { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    fn fine(&self, args: &[&str]) -> String {
        let Ran { code, out, err } = self.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    fn json(&self, args: &[&str]) -> Value {
        let text = self.fine(&[args, &["--json"]].concat());
        serde_json::from_str(&text).expect("json")
    }

    fn save(&self) -> String {
        self.fine(&["save", "--repo", "repo", "src"]).trim().to_owned()
    }

    fn packs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("repo")).expect("a repository").flatten();
        let mut packs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        packs.retain(|path| path.extension().is_some_and(|extension| extension == "pack"));
        packs
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).expect("a pack");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("write");
}

#[test]
fn a_folder_is_saved_listed_compared_and_restored() {
    let desk = Desk::new();
    let first = desk.save();
    assert_eq!(desk.save(), first, "nothing changed");
    fs::write(desk.path("src/a"), "changed").expect("a file");
    fs::write(desk.path("src/new"), "").expect("a file");
    fs::remove_file(desk.path("src/link")).expect("a link");
    assert_eq!(desk.fine(&["diff", "--repo", "repo", &first]), "M a\nD link\nA new\n");
    let second = desk.save();
    assert_eq!(desk.fine(&["diff", "--repo", "repo", &second]), "");
    let listed = desk.json(&["list", "--repo", "repo"])["snapshots"].clone();
    let ids: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert!(ids.len() == 2 && ids[0].starts_with(&second) && ids[1].starts_with(&first), "{listed}");
    assert_eq!((&listed[0]["files"], &listed[0]["bytes"]), (&3.into(), &3007.into()));
    assert_eq!(listed[0]["path"].as_str(), desk.path("src").to_str());
    let between = desk.json(&["diff", "--repo", "repo", &second, &first]);
    assert_eq!(between["files"][1], serde_json::json!({ "path": "link", "change": "added" }));
    desk.fine(&["restore", "--repo", "repo", &first[..6], "back"]);
    let back = |name: &str| fs::read_to_string(desk.path("back").join(name)).expect("a file");
    assert_eq!((back("a"), back("deep/b"), back("link")), ("one".into(), "two".repeat(1000), "one".into()));
    desk.fine(&["restore", "--repo", "repo", "latest", "newest"]);
    assert_eq!(fs::read_to_string(desk.path("newest/a")).expect("a file"), "changed");
    assert_eq!(desk.fine(&["verify", "--repo", "repo", "--read-data"]), "");
}

#[test]
fn impossible_commands_are_refused_with_the_next_step_and_change_nothing() {
    let desk = Desk::new();
    let refused = |args: &[&str], code: i32, words: &str| {
        let ran = desk.run(args);
        assert!(ran.code == code && ran.err.contains(words), "{args:?}: {} {}", ran.code, ran.err);
    };
    refused(&["list"], 2, "--repo DIR");
    refused(&["list", "--repo", "repo"], 4, "ash snapshot save");
    refused(&["save", "--repo", "repo", "nowhere"], 4, "nowhere");
    let id = desk.save();
    refused(&["restore", "--repo", "repo", "ffff", "x"], 4, "ash snapshot list");
    refused(&["restore", "--repo", "repo", "zz", "x"], 2, "four of its digits");
    refused(&["restore", "--repo", "repo", &id, "src"], 5, "empty or new folder");
    refused(&["restore", "--repo", "repo", &id, "src/a"], 5, "not a folder");
    refused(&["save", "--repo", "src", "repo"], 2, "other things");
    fs::write(desk.path("bad"), "short").expect("a file");
    refused(&["list", "--repo", "repo", "--key-file", "bad"], 2, "no key");
    let lock = fs::File::create(desk.path("repo/lock")).expect("the lock");
    lock.lock_shared().expect("held");
    refused(&["gc", "--repo", "repo"], 5, "another process");
    desk.save();
    let left = fs::read_dir(&desk.dir).expect("a folder").count();
    assert_eq!(left, 3, "src, repo and bad");
}

#[test]
fn rules_decide_which_snapshots_go_and_the_others_stay_whole() {
    let desk = Desk::new();
    let ids: Vec<String> = (0..6)
        .map(|n| {
            let big: String =
                (0..20_000).map(|i| format!("{} ", (i * 7919 + n * 104_729) % 1_000_003)).collect();
            fs::write(desk.path("src/big"), big).expect("a file");
            desk.save()
        })
        .collect();
    let size = || desk.packs().iter().map(|pack| fs::metadata(pack).expect("a pack").len()).sum::<u64>();
    let before = size();
    let trial = desk.json(&["gc", "--repo", "repo", "--keep-last", "2", "--dry-run"]);
    assert_eq!((trial["forgotten"].as_array().map(Vec::len), size()), (Some(4), before));
    let told = desk.json(&["gc", "--repo", "repo", "--keep-last", "2"]);
    assert_eq!(told["forgotten"].as_array().map(Vec::len), Some(4));
    assert!(size() * 10 < before * 6, "{} of {before}", size());
    assert_eq!(told["freed"], before - size());
    assert_eq!(desk.json(&["list", "--repo", "repo"])["snapshots"].as_array().map(Vec::len), Some(2));
    assert_eq!(desk.run(&["restore", "--repo", "repo", &ids[0], "gone"]).code, 4);
    desk.fine(&["restore", "--repo", "repo", &ids[4], "kept"]);
    assert_eq!(fs::read_to_string(desk.path("kept/a")).expect("a file"), "one");
    desk.fine(&["verify", "--repo", "repo", "--read-data"]);
    fs::write(desk.path("src/more"), "more").expect("a file");
    let saved = desk.json(&["save", "--repo", "repo", "src"]);
    assert!(saved["written"].as_u64().is_some_and(|bytes| bytes < 2000), "what is there is used: {saved}");
    desk.fine(&["verify", "--repo", "repo", "--read-data"]);
}

#[test]
fn damage_is_found_and_the_newest_whole_snapshot_is_named() {
    let desk = Desk::new();
    let first = desk.save();
    let mut before = desk.packs();
    fs::write(desk.path("src/a"), "x".repeat(50_000)).expect("a file");
    let second = desk.save();
    let pack = desk.packs().into_iter().find(|pack| !before.contains(pack)).expect("a new pack");
    flip(&pack, 20);
    let ran = desk.run(&["verify", "--repo", "repo", "--read-data", "--json"]);
    assert_eq!(ran.code, 8, "{}", ran.err);
    let told: Value = serde_json::from_str(&ran.out).expect("json");
    let hurt = &told["hurt"][0];
    assert!(hurt["id"].as_str().is_some_and(|id| id.starts_with(&second)), "{told}");
    assert!(hurt["intact"]["id"].as_str().is_some_and(|id| id.starts_with(&first)), "{told}");
    let ran = desk.run(&["restore", "--repo", "repo", &second, "x"]);
    assert!(
        ran.code == 8 && ran.err.contains("ash snapshot verify") && !desk.path("x").exists(),
        "{}",
        ran.err
    );
    desk.fine(&["restore", "--repo", "repo", &first, "whole"]);
    fs::remove_file(before.pop().expect("the first pack")).expect("removed");
    let ran = desk.run(&["verify", "--repo", "repo"]);
    assert!(ran.code == 8 && ran.out.contains("no snapshot is intact"), "{}", ran.out);
    assert_eq!(
        desk.run(&["gc", "--repo", "repo", "--keep-last", "1"]).code,
        8,
        "nothing is removed beside damage"
    );
}

#[test]
fn a_missing_newest_snapshot_is_reported_though_nothing_refers_to_it() {
    let desk = Desk::new();
    desk.save();
    let before = desk.packs();
    fs::write(desk.path("src/a"), "x".repeat(50_000)).expect("a file");
    desk.save();
    desk.fine(&["verify", "--repo", "repo"]);
    let newest = desk.packs().into_iter().find(|pack| !before.contains(pack)).expect("a new pack");
    fs::remove_file(&newest).expect("removed");
    let ran = desk.run(&["verify", "--repo", "repo"]);
    let name = newest.file_stem().and_then(|name| name.to_str()).expect("a name");
    assert!(
        ran.code == 8 && ran.out.contains(name) && ran.err.contains("1 missing"),
        "{} {}",
        ran.out,
        ran.err
    );
    // Entries that a collection removed do not count as missing.
    fs::remove_file(desk.path("repo/inventory")).expect("removed");
    fs::write(desk.path("src/b"), "y".repeat(50_000)).expect("a file");
    desk.save();
    desk.fine(&["gc", "--repo", "repo", "--keep-last", "1"]);
    desk.fine(&["verify", "--repo", "repo", "--read-data"]);
}

#[test]
fn a_sealed_repository_tells_nothing_without_its_key() {
    let desk = Desk::new();
    fs::write(desk.path("src/secret-name"), "plain words in a file").expect("a file");
    fs::write(desk.path("key"), "5a".repeat(32)).expect("a key");
    let sealed = ["--repo", "repo", "--key-file", "key"];
    let id = desk.fine(&[&["save", "src"], &sealed[..]].concat()).trim().to_owned();
    assert_eq!(desk.fine(&[&["save", "src"], &sealed[..]].concat()).trim(), id);
    let mut all = Vec::new();
    let mut folders = vec![desk.path("repo")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            match entry.file_type().expect("a type").is_dir() {
                true => folders.push(entry.path()),
                false => all.extend(fs::read(entry.path()).expect("a file")),
            }
        }
    }
    for word in ["secret-name", "plain words", "src"] {
        assert!(!all.windows(word.len()).any(|part| part == word.as_bytes()), "{word} can be read");
    }
    assert_eq!(desk.run(&["list", "--repo", "repo"]).code, 3);
    assert_eq!(desk.run(&["save", "--repo", "repo", "src"]).code, 3, "nothing plain is added to it");
    fs::write(desk.path("other"), [1; 32]).expect("a key");
    assert_eq!(desk.run(&["restore", "--repo", "repo", "--key-file", "other", &id, "x"]).code, 3);
    desk.fine(&[&["restore", &id, "back"], &sealed[..]].concat());
    assert_eq!(fs::read_to_string(desk.path("back/secret-name")).expect("a file"), "plain words in a file");
}

#[test]
fn a_repository_within_the_folder_is_not_saved_into_itself() {
    let desk = Desk::new();
    let saved = desk.json(&["save", "--repo", "src/.snapshots", "src"]);
    assert_eq!(saved["files"], 2);
    assert_eq!(desk.json(&["save", "--repo", "src/.snapshots", "src"])["files"], 2);
    fs::set_permissions(desk.path("src/a"), fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(desk.fine(&["diff", "--repo", "src/.snapshots", "latest"]), "M a\n");
}
