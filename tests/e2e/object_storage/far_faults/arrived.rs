//! The content of the object store, as the proxy saw it arrive, and its references.

use crate::proxy::Stored;
use ash_model::{embedded_log, remote::SessionManifest};
use ash_snapshot::{Repo, TreeId};
use std::{collections::BTreeSet, path::PathBuf};

pub struct Arrived {
    keys: BTreeSet<String>,
    manifests: Vec<SessionManifest>,
    repo: Repo,
}

impl Arrived {
    pub fn of(stored: &[Stored], repo: PathBuf) -> Arrived {
        let told = stored.iter().filter(|stored| stored.key.contains("/sessions/"));
        let manifests = told.map(|told| serde_json::from_slice(&told.body).expect("a manifest")).collect();
        let keys = stored.iter().map(|stored| stored.key.clone()).collect();
        Arrived { keys, manifests, repo: Repo::open(&repo).expect("a repository") }
    }

    /// The stored objects are enough to restore a checkpoint.
    pub fn check(&self, id: &str, number: u64) {
        let of = |manifest: &&SessionManifest| {
            manifest.session.as_str() == id
                && manifest.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.number == number)
        };
        let manifest = self.manifests.iter().find(of);
        self.check_manifest(manifest.unwrap_or_else(|| panic!("no manifest of checkpoint {number} of {id}")));
    }

    fn check_manifest(&self, manifest: &SessionManifest) {
        let id = &manifest.session;
        let agent = format!("tenants/default/agents/{}/{:08}-", manifest.agent, manifest.version);
        assert!(self.keys.iter().any(|key| key.starts_with(&agent)), "{id}: its agent is not there");
        if let Some(checkpoint) = &manifest.checkpoint {
            let tree = TreeId::parse(&checkpoint.tree).expect("a tree");
            for pack in self.repo.packs_of(&tree).expect("its packs") {
                self.check_pack(&pack, &format!("the files of checkpoint {} of {id}", checkpoint.number));
            }
        }
        self.check_log(manifest);
        let (Some(parent), Some(base)) = (&manifest.parent, manifest.base) else { return };
        let tells = |other: &&SessionManifest| other.session == *parent && other.seq >= base;
        let told = self.manifests.iter().find(tells);
        self.check_manifest(
            told.unwrap_or_else(|| {
                panic!("nothing tells of event {base} of {parent}, of which {id} is a fork")
            }),
        );
    }

    /// Every event is in the manifest, or in a pack that it references.
    fn check_log(&self, manifest: &SessionManifest) {
        let (id, base) = (&manifest.session, manifest.base.unwrap_or(0));
        assert_eq!(
            manifest.events.len() as u64,
            manifest.seq.saturating_sub(manifest.packed_through.max(base)),
            "events of {id}"
        );
        let mut next = manifest.log_snapshot.clone();
        while let Some(text) = next.take() {
            let tree = TreeId::parse(&text).expect("a tree");
            self.check_pack(tree.pack_name(), &format!("the log of {id}"));
            let record =
                self.repo.note(&tree, embedded_log::SESSION_NOTE).expect("a pack").expect("a record");
            let record: embedded_log::PackSessionRecord = serde_json::from_slice(&record).expect("a record");
            assert_eq!(record.session, *id, "another's log");
            next = (record.after > base).then_some(record.previous);
        }
    }

    fn check_pack(&self, pack: &str, what: &str) {
        assert!(self.keys.contains(&format!("tenants/default/packs/{pack}")), "{what}: {pack} is not there");
    }
}
