//! Compares the database with its witnesses. Pure, so that it can be tested without a server.

use ash_model::{Epoch, EventSeq, HistorySource, SessionId};
use ash_remote::{PackProof, TombstoneMap, diverged_prefix};
use ash_store::SessionLogEnd;
use std::collections::HashMap;

/// A session of which a witness knows more than the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionBehindWitness {
    pub session: SessionId,
    /// The last event in the database. `None`: it does not know the session.
    pub known: Option<EventSeq>,
    pub proven: EventSeq,
    pub witness: HistorySource,
}

pub(crate) type SessionLogEndMap = HashMap<SessionId, SessionLogEnd>;

/// Whether a row or a tombstone explains what a pack proves.
pub(crate) fn is_explained(proof: &PackProof, rows: &SessionLogEndMap, tombstones: &TombstoneMap) -> bool {
    let buried = |id: &SessionId| tombstones.get(id).is_some_and(|tombstone| proof.is_buried(tombstone));
    let known =
        |row: &SessionLogEnd| row.seq >= proof.seq && proof.epoch.is_none_or(|epoch| epoch.0 <= row.epoch.0);
    // A pack of another server may name a different session with the same id.
    let same = |row: &SessionLogEnd| row.workspace == proof.workspace && known(row);
    if buried(&proof.session) || rows.get(&proof.session).is_some_and(same) {
        return true;
    }
    // The pack may belong to a history that a fork keeps since another history was adopted.
    let prefix = diverged_prefix(&proof.session);
    let mut forks = rows.values().filter(|row| row.session.as_str().starts_with(&prefix));
    forks.any(known) || tombstones.has_purged_fork(proof, &prefix)
}

/// Sessions that packs prove further than the database knows them.
pub(crate) fn behind_packs<'p>(
    proofs: impl Iterator<Item = &'p PackProof>,
    rows: &SessionLogEndMap,
    tombstones: &TombstoneMap,
    witness: HistorySource,
) -> Vec<SessionBehindWitness> {
    let unexplained = proofs.filter(|proof| !is_explained(proof, rows, tombstones));
    let mut behind: Vec<SessionBehindWitness> = unexplained
        .map(|proof| SessionBehindWitness {
            session: proof.session.clone(),
            known: rows.get(&proof.session).map(|row| row.seq),
            proven: proof.seq,
            witness,
        })
        .collect();
    behind.sort_by(|a, b| a.session.cmp(&b.session));
    behind
}

/// Sessions of which the object store has a later manifest than the database knows. Sessions that the database does not
/// know at all come back from the object store on request.
pub(crate) fn behind_bucket(
    newest: &HashMap<SessionId, (Epoch, EventSeq)>,
    rows: &SessionLogEndMap,
    tombstones: &TombstoneMap,
) -> Vec<SessionBehindWitness> {
    let ahead = |(id, (epoch, seq)): (&SessionId, &(Epoch, EventSeq))| {
        let row = rows.get(id)?;
        let buried = tombstones.get(id).is_some_and(|tombstone| tombstone.epoch >= *epoch);
        let behind = *seq > row.seq || epoch.0 > row.epoch.0;
        (behind && !buried).then(|| SessionBehindWitness {
            session: id.clone(),
            known: Some(row.seq),
            proven: *seq,
            witness: HistorySource::Bucket,
        })
    };
    let mut behind: Vec<SessionBehindWitness> = newest.iter().filter_map(ahead).collect();
    behind.sort_by(|a, b| a.session.cmp(&b.session));
    behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{SessionRowId, TenantId, Timestamp, WorkspaceId, remote::SessionTombstone};

    fn id(name: &str) -> SessionId {
        SessionId::parse(name).expect("an id")
    }

    fn proof(epoch: Option<u64>, seq: EventSeq) -> PackProof {
        PackProof {
            session: id("s"),
            workspace: WorkspaceId(uuid::Uuid::nil()),
            epoch: epoch.map(Epoch),
            seq,
            tree: String::new(),
            at: Timestamp(100),
        }
    }

    fn rows(all: &[(&str, u64, EventSeq)]) -> SessionLogEndMap {
        let row = |(name, epoch, seq): &(&str, u64, EventSeq)| SessionLogEnd {
            no: SessionRowId(1),
            session: id(name),
            workspace: WorkspaceId(uuid::Uuid::nil()),
            epoch: Epoch(*epoch),
            seq: *seq,
            remote_seq: 0,
        };
        all.iter().map(|one| (id(one.0), row(one))).collect()
    }

    fn buried(name: &str, epoch: u64, at: i64) -> TombstoneMap {
        let tombstone = SessionTombstone {
            tenant: TenantId::main(),
            session: id(name),
            epoch: Epoch(epoch),
            seq: 9,
            purged_at: Timestamp(at),
        };
        let mut all = TombstoneMap::default();
        all.bury(&tombstone);
        all
    }

    #[test]
    fn a_pack_is_explained_by_a_row_that_is_as_far_or_by_a_tombstone() {
        let none = TombstoneMap::default();
        for (rows, explained) in [
            (rows(&[("s", 3, 20)]), true),
            (rows(&[("s", 4, 21)]), true),
            (rows(&[("s", 3, 19)]), false),
            (rows(&[("s", 2, 30)]), false),
            (rows(&[("other", 3, 20)]), false),
            (rows(&[]), false),
            (rows(&[("s", 5, 8), ("s.diverged-3", 3, 20)]), true),
            (rows(&[("s", 5, 8), ("s.diverged-2", 2, 19)]), false),
        ] {
            assert_eq!(is_explained(&proof(Some(3), 20), &rows, &none), explained, "{rows:?}");
        }
        let nothing = SessionLogEndMap::new();
        assert!(is_explained(&proof(Some(3), 20), &nothing, &buried("s", 3, 0)));
        assert!(!is_explained(&proof(Some(4), 2), &nothing, &buried("s", 3, 0)), "it was made again");
        assert!(
            is_explained(&proof(None, 20), &nothing, &buried("s", 0, 100)),
            "by time, if it says no epoch"
        );
        assert!(!is_explained(&proof(None, 20), &nothing, &buried("s", 0, 99)));
        assert!(is_explained(&proof(Some(3), 20), &nothing, &buried("s.diverged-3", 3, 0)));
    }

    #[test]
    fn a_session_behind_its_witness_has_both_positions() {
        let (replicator, near) = (proof(Some(3), 20), proof(Some(3), 12));
        let behind = behind_packs(
            [&replicator, &near].into_iter(),
            &rows(&[("s", 3, 12)]),
            &TombstoneMap::default(),
            HistorySource::Packs,
        );
        let expected = SessionBehindWitness {
            session: id("s"),
            known: Some(12),
            proven: 20,
            witness: HistorySource::Packs,
        };
        assert_eq!(behind, [expected]);
    }

    #[test]
    fn a_later_manifest_counts_unless_the_session_was_purged_since() {
        let newest: HashMap<_, _> = [(id("s"), (Epoch(3), 20))].into();
        assert!(behind_bucket(&newest, &rows(&[("s", 3, 20)]), &TombstoneMap::default()).is_empty());
        assert!(
            behind_bucket(&newest, &rows(&[]), &TombstoneMap::default()).is_empty(),
            "it comes back by itself"
        );
        assert_eq!(behind_bucket(&newest, &rows(&[("s", 3, 19)]), &TombstoneMap::default()).len(), 1);
        assert_eq!(behind_bucket(&newest, &rows(&[("s", 2, 25)]), &TombstoneMap::default()).len(), 1);
        assert!(behind_bucket(&newest, &rows(&[("s", 2, 19)]), &buried("s", 3, 0)).is_empty());
    }
}
