//! Tombstones: a line in a tenant's repository for every purged session, durable before its rows are deleted. Without
//! it the remaining packs would bring the session back. The line holds only a hash of the id.

use crate::{PackProof, Result};
use ash_model::{
    Epoch, SessionId,
    remote::{SessionTombstone, TombstoneLine},
};
use ash_snapshot::Repo;
use std::collections::HashMap;

/// The name under which lines of a sealed repository are sealed.
const SEAL_NAME: &str = "tombstones";

/// Part of the ids of forks that keep a history which another one replaced.
const DIVERGED: &str = ".diverged-";

/// The last tombstone of each purged session.
#[derive(Debug, Clone, Default)]
pub struct TombstoneMap(HashMap<String, TombstoneLine>);

impl TombstoneMap {
    /// Skips unreadable lines, which a crash truncated.
    pub(crate) fn read(repo: &Repo) -> Result<TombstoneMap> {
        let mut all = TombstoneMap::default();
        for line in repo.tombstones()?.iter().filter_map(|line| unsealed(repo, line)) {
            all.add(line);
        }
        Ok(all)
    }

    pub fn get(&self, id: &SessionId) -> Option<&TombstoneLine> {
        self.0.get(&hash(id.as_str()))
    }

    /// Adds the tombstone, unless a later one of the session is known.
    pub fn bury(&mut self, tombstone: &SessionTombstone) {
        self.add(tombstone_line(tombstone));
    }

    fn add(&mut self, line: TombstoneLine) {
        let known = self.0.entry(line.hash.clone()).or_insert_with(|| line.clone());
        if (line.epoch, line.seq) > (known.epoch, known.seq) {
            *known = line;
        }
    }

    /// Whether a purged fork with this [`diverged_prefix`] had the proven history.
    pub fn has_purged_fork(&self, proof: &PackProof, prefix: &str) -> bool {
        let prefix = hash(prefix);
        let mut of = self.0.values().filter(|line| line.diverged.as_ref() == Some(&prefix));
        of.any(|line| proof.is_buried(line))
    }
}

/// Writes a tombstone durably into its tenant's repository.
pub(crate) fn append(repo: &Repo, tombstone: &SessionTombstone) -> Result<()> {
    let plain = serde_json::to_vec(&tombstone_line(tombstone)).expect("plain words and numbers");
    Ok(repo.add_tombstone(&sealed(repo, plain))?)
}

/// Seals a line, so that it reveals nothing without the key.
fn sealed(repo: &Repo, plain: Vec<u8>) -> String {
    let stored = repo.seal(plain, SEAL_NAME);
    match Repo::is_sealed_blob(&stored) {
        true => stored.iter().map(|byte| format!("{byte:02x}")).collect(),
        false => String::from_utf8(stored).expect("it was JSON"),
    }
}

fn unsealed(repo: &Repo, line: &str) -> Option<TombstoneLine> {
    if line.starts_with('{') {
        return parsed(line.as_bytes());
    }
    let digits = line.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> =
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect();
    parsed(&repo.unseal(bytes?, SEAL_NAME).ok()?)
}

/// Reads a line. Older lines have the id instead of its hash.
fn parsed(line: &[u8]) -> Option<TombstoneLine> {
    let older =
        || serde_json::from_slice::<SessionTombstone>(line).map(|tombstone| tombstone_line(&tombstone));
    serde_json::from_slice(line).or_else(|_| older()).ok()
}

/// A hash of the id. The id can be guessed from it, but not read.
fn hash(text: &str) -> String {
    blake3::Hasher::new_derive_key("ash tombstones").update(text.as_bytes()).finalize().to_hex().to_string()
}

fn tombstone_line(tombstone: &SessionTombstone) -> TombstoneLine {
    let SessionTombstone { tenant: _, session, epoch, seq, purged_at } = tombstone;
    let id = session.as_str();
    let diverged = id.rfind(DIVERGED).map(|at| hash(&id[..at + DIVERGED.len()]));
    TombstoneLine { hash: hash(id), diverged, epoch: *epoch, seq: *seq, purged_at: *purged_at }
}

/// The id of the fork that keeps a session's local history when the history of a witness replaces it.
pub fn diverged_id(session: &SessionId, epoch: Epoch) -> Option<SessionId> {
    SessionId::parse(&format!("{}{}", diverged_prefix(session), epoch.0)).ok()
}

/// The prefix of the ids of all such forks of a session. An id has at most 128 characters, all of them ASCII.
pub fn diverged_prefix(session: &SessionId) -> String {
    let stem: String = session.as_str().chars().take(96).collect();
    format!("{stem}{DIVERGED}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fork_of_a_long_id_has_an_id() {
        let id = |name: &str| SessionId::parse(name).expect("an id");
        let fork = diverged_id(&id(&"x".repeat(128)), Epoch(12)).expect("an id");
        assert!(fork.as_str().ends_with("x.diverged-12"), "{fork}");
        assert_eq!(diverged_id(&id("s"), Epoch(3)), Some(id("s.diverged-3")));
    }
}
