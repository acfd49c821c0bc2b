//! Compares what the database has recorded with what is in the bucket. The packs are those of a real repository.

use super::*;
use ash_model::{Timestamp, WorkspaceId};
use ash_snapshot::DiskWriter;
use ash_store::{ForkBase, RemoteAgent};
use uuid::Uuid;

fn session(no: i64, base: Option<(i64, EventSeq)>, seqs: &[EventSeq]) -> RemoteSession {
    let checkpoints = seqs.iter().zip(1..).map(|(seq, number)| RemoteCheckpoint {
        workspace: WorkspaceId(Uuid::nil()),
        number,
        seq: *seq,
        tree: format!("{number:096x}"),
        sent_at: Timestamp(1),
    });
    RemoteSession {
        no: SessionRowId(no),
        id: id(no),
        agent: agent(),
        version: 1,
        base: base.map(|(parent, seq)| ForkBase { parent: SessionRowId(parent), seq }),
        seq: seqs.last().copied().unwrap_or(0),
        checkpoints: checkpoints.collect(),
    }
}

fn id(no: i64) -> SessionId {
    SessionId::parse(&format!("s{no}")).expect("an id")
}

fn agent() -> AgentName {
    AgentName::parse("a").expect("a name")
}

fn recorded(sessions: Vec<RemoteSession>) -> RemoteState {
    let agents = vec![RemoteAgent { name: agent(), version: 1, tree: "t".into(), changes: Some(2) }];
    RemoteState { agents, sessions, ..RemoteState::default() }
}

fn listing(manifests: &[(i64, &[EventSeq])]) -> TenantObjectListing {
    let manifests = manifests.iter().map(|(no, seqs)| (id(*no), seqs.iter().copied().collect()));
    TenantObjectListing {
        manifests: manifests.collect(),
        agents: [(agent(), [(1, 1), (1, 2)].into())].into(),
        ..TenantObjectListing::default()
    }
}

fn compared(recorded: &RemoteState, listing: &TenantObjectListing) -> RemoteRetraction {
    let dir = tempfile::tempdir().expect("a directory");
    let repo = Repo::open_with(dir.path(), None, DiskWriter::default()).expect("a repository");
    compare(&repo, recorded, listing).0
}

fn numbers(retraction: &RemoteRetraction) -> Vec<u64> {
    retraction.checkpoints.iter().map(|checkpoint| checkpoint.number).collect()
}

#[test]
fn nothing_that_the_bucket_has_is_retracted() {
    let recorded = recorded(vec![session(1, None, &[3, 6]), session(2, Some((1, 4)), &[4, 9])]);
    let there = listing(&[(1, &[3, 6]), (2, &[5, 9])]);
    assert_eq!(compared(&recorded, &there), RemoteRetraction::default());
}

#[test]
fn a_checkpoint_goes_with_its_manifest_and_the_log_to_what_is_left() {
    let one = recorded(vec![session(1, None, &[3, 6, 9])]);
    let found = compared(&one, &listing(&[(1, &[3, 9])]));
    assert_eq!((numbers(&found), &found.logs[..]), (vec![2], &[][..]));
    let found = compared(&one, &listing(&[(1, &[3])]));
    let log = RetractedLog { session: SessionRowId(1), claimed_seq: 9, actual_seq: 3 };
    assert_eq!((numbers(&found), &found.logs[..]), (vec![2, 3], &[log][..]));
}

#[test]
fn a_session_goes_with_its_agent() {
    let one = recorded(vec![session(1, None, &[3])]);
    let mut there = listing(&[(1, &[3])]);
    there.agents.insert(agent(), [(1, 1)].into());
    let found = compared(&one, &there);
    assert_eq!(
        (&found.agents[..], numbers(&found)),
        (&[RetractedAgent { name: agent(), version: 1 }][..], vec![1]),
        "its last change is gone"
    );
}

#[test]
fn a_fork_goes_with_its_parents_log() {
    let all = vec![session(1, None, &[3, 6]), session(2, Some((1, 5)), &[8]), session(3, Some((2, 7)), &[9])];
    let found = compared(&recorded(all), &listing(&[(1, &[3]), (2, &[8]), (3, &[9])]));
    assert_eq!(found.checkpoints.iter().map(|one| one.seq).collect::<Vec<_>>(), [6, 8, 9]);
}

/// Such packs cannot be sent again from here, and no known session needs them.
#[test]
fn packs_that_are_gone_or_cut_are_missing_and_others_are_not() {
    let sizes = [("a".to_owned(), 10), ("b".to_owned(), 10), ("c".to_owned(), 10)];
    let mut one = recorded(vec![]);
    one.packs = sizes.into();
    one.missing = ["d".to_owned(), "e".to_owned()].into();
    let mut there = listing(&[]);
    // An object that is not recorded was sent after the rows were read.
    there.packs =
        [("a", 10), ("b", 9), ("d", 1), ("later", 1)].map(|(pack, size)| (pack.to_owned(), size)).into();
    one.agents[0].tree = format!("{:096x}", 1);
    let found = compared(&one, &there);
    assert_eq!(found.missing, ["b", "c"]);
    assert_eq!(found.not_missing, ["d"], "it came back, and the other one did not");
    assert!(["b", "c"].iter().all(|pack| found.packs.iter().any(|other| other == pack)), "{found:?}");
}
