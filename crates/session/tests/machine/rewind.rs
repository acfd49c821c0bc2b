//! The steps of a rewind, and of making a tree: what is on disk is kept before another tree takes its place.

use crate::{
    given::{FIRST, Given, asleep, awake, checkpoint, queued},
    world::USUAL,
};
use ash_model::{Fact, SessionRewind};
use ash_session::machine::{
    CaptureOccasion, CommandRefusal, Effect, NextStep, SandboxConnection, SessionProfile, StateCommand,
    TreeInspection, WaiterId,
};

const CALLER: WaiterId = WaiterId(1);
const CLEAN: TreeInspection = TreeInspection { broken: false, leftovers: false };

fn command(to: u64, files: bool) -> StateCommand {
    StateCommand::Rewind { to, seq: 3, then: Default::default(), files }
}

fn rewound() -> Fact {
    Fact::Rewound(SessionRewind { to: 1, from: Some(1), seq: 3, conversation: Default::default() })
}

/// A session that sleeps, whose files are safe, and a caller that wants it rewound.
fn asked(profile: SessionProfile, files: bool) -> Given {
    let mut given = Given::live_with(profile, &[Fact::Saved(checkpoint(1)), asleep(), Fact::Paused]);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    given.machine.receive(&command(1, files), CALLER, vec![], given.start);
    given.machine.runtime.tree.seen = Some(CLEAN);
    given
}

#[test]
fn a_rewind_lets_go_of_the_sandbox_keeps_the_files_and_then_writes_the_others() {
    let mut given = asked(USUAL, false);
    given.machine.log.apply(9, &awake());
    given.machine.runtime.sandbox = SandboxConnection::Connected;
    assert_eq!(given.plan(0), NextStep::LeaveSandbox);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(given.plan(0), NextStep::Commit { facts: vec![asleep()] }, "the log knows it still");
    [asleep(), Fact::Paused].iter().zip(10..).for_each(|(fact, seq)| given.machine.log.apply(seq, fact));
    given.machine.runtime.tree.seen = None;
    assert_eq!(given.plan(0), NextStep::InspectTree);
    given.machine.runtime.tree.seen = Some(TreeInspection { leftovers: true, ..CLEAN });
    assert_eq!(given.plan(0), NextStep::Salvage);
    given.machine.runtime.tree.seen = Some(CLEAN);
    given.machine.runtime.capture.dirty = Some(given.start);
    assert_eq!(given.plan(0), NextStep::Capture(CaptureOccasion::BetweenTurns));
    given.machine.runtime.tree.present = false;
    assert_eq!(given.plan(0), NextStep::PrepareRewind, "there is nothing to keep");
    given.machine.runtime.tree.present = true;
    given.machine.runtime.capture.dirty = None;
    assert_eq!(given.plan(0), NextStep::PrepareRewind);
    given.machine.begin(&NextStep::PrepareRewind, given.start);
    assert_eq!(given.machine.finish_effect(), Some(Effect::PrepareRewind));
    given.machine.runtime.tree.seen = Some(CLEAN);
    assert!(given.machine.rewind_prepared());
    assert_eq!(given.plan(0), NextStep::Rewind { facts: vec![rewound()] });
    assert_eq!((given.machine.take_rewind(), given.machine.take_rewind()), (Some(CALLER), None));
    assert!(!given.machine.rewind_prepared(), "no caller waits");
}

#[test]
fn a_rewind_in_a_shared_workspace_takes_back_the_files_of_all_only_if_asked() {
    let shared = SessionProfile { shared: true, ..USUAL };
    let mut own = asked(shared, false);
    assert_eq!(own.plan(0), NextStep::PrepareMemoryRewind);
    own.machine.rewind_prepared();
    assert_eq!(own.plan(0), NextStep::Rewind { facts: vec![rewound()] });
    let mut all = asked(shared, true);
    assert_eq!(all.plan(0), NextStep::PrepareWorkspaceRewind);
    // The workspace's own capture comes with it.
    all.machine.runtime.capture.dirty = Some(all.start);
    assert_eq!(all.plan(0), NextStep::PrepareWorkspaceRewind);
    all.machine.runtime.tree.present = false;
    assert_eq!(all.plan(0), NextStep::MakeTree);
    all.machine.rewind_prepared();
    assert_eq!(all.plan(0), NextStep::Rewind { facts: vec![rewound()] });
    assert_eq!(asked(USUAL, true).plan(0), NextStep::PrepareRewind, "there are no others");
}

#[test]
fn a_start_comes_before_a_rewind_and_makes_a_tree_of_its_own() {
    let mut given = asked(USUAL, false);
    assert!(given.machine.is_rewinding());
    given.machine.log.apply(9, &Fact::Resuming);
    assert!(!given.machine.is_rewinding(), "the start is no part of it");
    assert_eq!(given.plan(0), NextStep::Start);
    given.machine.rewind_prepared();
    assert_eq!(given.plan(0), NextStep::DiscardPreparedTree);
    given.machine.begin(&NextStep::DiscardPreparedTree, given.start);
    given.machine.runtime.tree.seen = Some(CLEAN);
    assert_eq!(given.plan(0), NextStep::Start);
    assert!(!Given::live(&[]).machine.is_rewinding());
}

#[test]
fn rewinds_are_made_one_after_the_other_and_refused_under_a_message() {
    let mut given = asked(USUAL, false);
    given.machine.receive(&command(7, false), WaiterId(2), vec![], given.start);
    assert_eq!(given.machine.rewind_target(), Some(1));
    given.machine.rewind_prepared();
    assert_eq!(given.machine.take_rewind(), Some(CALLER));
    assert_eq!((given.machine.rewind_target(), given.plan(0)), (Some(7), NextStep::PrepareRewind));
    given.machine.log.apply(9, &queued(FIRST));
    assert_eq!(given.plan(0), NextStep::RefuseRewind(CommandRefusal::Busy));
    given.machine.take_rewind();
    assert_eq!(given.machine.rewind_target(), None);
}

#[test]
fn callers_that_write_get_a_tree_that_stays() {
    let writers = |seen: Option<TreeInspection>, present| {
        let mut given = Given::live(&[]);
        given.machine.runtime.waiting.writing.push(CALLER);
        (given.machine.runtime.tree.seen, given.machine.runtime.tree.present) = (seen, present);
        given
    };
    assert_eq!(writers(None, true).plan(0), NextStep::InspectTree);
    assert_eq!(writers(Some(CLEAN), true).plan(0), NextStep::AdmitWriters);
    assert_eq!(writers(Some(TreeInspection { broken: true, ..CLEAN }), true).plan(0), NextStep::LoseTree);
    assert_eq!(writers(Some(CLEAN), false).plan(0), NextStep::LeaveSandbox, "its agent has lost its files");
    let leftovers = Some(TreeInspection { leftovers: true, ..CLEAN });
    assert_eq!(writers(leftovers, true).plan(0), NextStep::Salvage);
    let mut without = writers(Some(CLEAN), false);
    without.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(without.plan(0), NextStep::MakeTree);
    let mut rewinding = asked(USUAL, false);
    rewinding.machine.runtime.waiting.writing.push(CALLER);
    assert_eq!(rewinding.plan(0), NextStep::PrepareRewind, "their writes would be lost in the old tree");
}

#[test]
fn an_agent_never_works_on_a_tree_that_was_removed_or_on_what_another_left() {
    let start = |seen| {
        let mut given = Given::with(USUAL, &[Fact::Resuming]);
        given.machine.runtime.tree.seen = seen;
        given.plan(0)
    };
    assert_eq!(start(None), NextStep::InspectTree);
    assert_eq!(start(Some(TreeInspection { broken: true, leftovers: true })), NextStep::LoseTree);
    assert_eq!(start(Some(TreeInspection { leftovers: true, ..CLEAN })), NextStep::Salvage);
    assert_eq!(start(Some(CLEAN)), NextStep::Start);
    let tell = |seen, present| {
        let mut given = Given::live(&[queued(FIRST)]);
        (given.machine.runtime.tree.seen, given.machine.runtime.tree.present) = (seen, present);
        given.plan(0)
    };
    assert_eq!(tell(None, true), NextStep::InspectTree);
    assert_eq!(tell(Some(TreeInspection { broken: true, ..CLEAN }), true), NextStep::LoseTree);
    assert_eq!(tell(Some(CLEAN), false), NextStep::LeaveSandbox);
    assert!(matches!(tell(Some(CLEAN), true), NextStep::Tell { .. }));
    assert!(matches!(tell(Some(TreeInspection { leftovers: true, ..CLEAN }), true), NextStep::Tell { .. }));
}

#[test]
fn a_rewind_goes_on_through_its_own_steps_and_through_no_others() {
    let facts = Vec::new;
    let own = [
        NextStep::LeaveSandbox,
        NextStep::Commit { facts: facts() },
        NextStep::Salvage,
        NextStep::MakeTree,
        NextStep::Capture(CaptureOccasion::BetweenTurns),
        NextStep::PrepareRewind,
        NextStep::PrepareWorkspaceRewind,
        NextStep::PrepareMemoryRewind,
        NextStep::Rewind { facts: facts() },
    ];
    assert!(own.iter().all(NextStep::is_part_of_rewind));
    let others = [
        NextStep::Wait,
        NextStep::Start,
        NextStep::EndSandbox,
        NextStep::DiscardPreparedTree,
        NextStep::Pause,
    ];
    assert!(!others.iter().any(NextStep::is_part_of_rewind));
}
