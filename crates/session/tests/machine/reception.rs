//! What becomes of a command that was decided, and what its caller is told.

use crate::{
    given::{FIRST, Given, asleep, failed, problem, queued, started},
    world::USUAL,
};
use ash_driver::AgentInput;
use ash_model::{
    BusyPolicy, Fact, LiveSetting, MessageOptions, PermissionId, PermissionVerdict, SessionStatus, TurnId,
};
use ash_session::machine::{
    Effect, NextStep, PendingRewind, Reception, ResumerAnswer, SandboxConnection, SessionClosing,
    StateCommand, WaiterId, WakePolicy,
};
use uuid::Uuid;

const CALLER: WaiterId = WaiterId(1);

fn prompt(turn: TurnId) -> StateCommand {
    StateCommand::Prompt {
        turn,
        content: format!("message {turn}").into(),
        ask: MessageOptions::default(),
        wake: WakePolicy::Allowed,
        on_busy: BusyPolicy::Queue,
        lock: None,
    }
}

fn rewind() -> StateCommand {
    StateCommand::Rewind { to: 1, seq: 1, then: Default::default(), files: false }
}

#[test]
fn every_command_continues_in_its_way() {
    let received = |command: StateCommand| {
        let mut given = Given::live(&[]);
        let facts = vec![Fact::Resuming];
        let reception = given.machine.receive(&command, CALLER, facts, given.start);
        (reception, given.machine.runtime.waiting.is_empty())
    };
    let facts = || vec![Fact::Resuming];
    let id = PermissionId(Uuid::from_u128(4));
    let answer = StateCommand::Answer { id, verdict: PermissionVerdict::allow() };
    assert_eq!(received(prompt(FIRST)), (Reception::Queue { facts: facts() }, true));
    assert_eq!(
        received(StateCommand::Withdraw { turn: FIRST }),
        (Reception::Commit { facts: facts() }, true)
    );
    assert_eq!(
        received(StateCommand::Reorder { first: vec![] }),
        (Reception::Commit { facts: facts() }, true)
    );
    assert_eq!(received(StateCommand::Interrupt), (Reception::Interrupt { facts: facts() }, true));
    assert_eq!(received(answer), (Reception::Answer { facts: facts() }, true));
    assert_eq!(received(StateCommand::Resume), (Reception::Resume { facts: facts() }, true));
    assert_eq!(received(StateCommand::Pause), (Reception::Waits, false));
    assert_eq!(received(rewind()), (Reception::Waits, false));
    assert_eq!(received(StateCommand::Stop), (Reception::Closes(None), true));
}

#[test]
fn a_session_whose_files_are_lost_resumes_with_another_sandbox() {
    let lost = |facts: &[Fact]| {
        let mut given = Given::live(facts);
        given.machine.runtime.tree.present = false;
        given.machine
    };
    let resume = &StateCommand::Resume;
    assert_eq!(lost(&[]).without_tree(resume, vec![]), [Fact::Resuming], "also if it looks active");
    assert_eq!(lost(&[]).without_tree(&StateCommand::Interrupt, vec![]), []);
    assert_eq!(lost(&[queued(FIRST)]).without_tree(resume, vec![]), [], "its turn finds out");
    let paused = lost(&[Fact::Paused]);
    let warm = paused.log.decide(resume).expect("possible");
    assert_eq!((warm[0].kind(), warm.len()), ("resumed", 1));
    assert_eq!(paused.without_tree(resume, warm.clone()), [Fact::Resuming]);
    assert_eq!(paused.without_tree(resume, vec![queued(FIRST)]), [queued(FIRST)]);
    assert_eq!(paused.without_tree(resume, vec![]), []);
    let there = Given::live(&[Fact::Paused]).machine;
    assert_eq!(there.without_tree(resume, warm.clone()), warm);
    assert!(!there.has_lost_tree() && paused.has_lost_tree());
    // A turn that runs ends first.
    assert!(!lost(&[queued(FIRST), started(FIRST, 2)]).has_lost_tree());
    let mut asleep = lost(&[]);
    asleep.runtime.sandbox = SandboxConnection::Absent;
    assert!(!asleep.has_lost_tree());
}

#[test]
fn a_message_is_told_at_once_if_nothing_is_in_its_way() {
    let facts = || [queued(FIRST)];
    let delivered = |given: &Given| given.machine.immediate_delivery(&facts());
    let (ask, content) = (MessageOptions::default(), format!("message {FIRST}").into());
    let say = AgentInput::Prompt { turn: FIRST, head: None, content, ask, attempt: 1 };
    assert_eq!(delivered(&Given::live(&[])), Some((started(FIRST, 2), 2, say)));
    assert_eq!(Given::live(&[]).machine.immediate_delivery(&[]), None);
    let in_its_way = |change: fn(&mut Given)| {
        let mut given = Given::live(&[]);
        change(&mut given);
        assert_eq!(delivered(&given), None, "{:?}", given.machine.runtime);
    };
    in_its_way(|given| given.machine.runtime.waiting.writing.push(CALLER));
    in_its_way(|given| given.machine.runtime.waiting.pausing.push(CALLER));
    in_its_way(|given| given.machine.runtime.waiting.forking.push(CALLER));
    in_its_way(|given| {
        let rewind = PendingRewind { waiter: CALLER, command: rewind(), prepared: false };
        given.machine.runtime.waiting.rewinding.push_back(rewind);
    });
    in_its_way(|given| given.machine.runtime.effect = Some(Effect::MakeTree));
    in_its_way(|given| given.machine.runtime.closing = Some(SessionClosing::idle(given.start)));
    in_its_way(|given| given.machine.runtime.sandbox = SandboxConnection::Departing);
    in_its_way(|given| given.machine.runtime.agent.self_started = true);
    in_its_way(|given| given.machine.runtime.tree.present = false);
}

#[test]
fn a_session_without_a_sandbox_starts_by_what_resumes_it() {
    let starts = |connected: bool, facts: &[Fact], by: &[Fact]| {
        let mut given = Given::live(facts);
        if !connected {
            given.machine.runtime.sandbox = SandboxConnection::Absent;
        }
        given.machine.starts_by(by)
    };
    assert!(starts(false, &[asleep(), Fact::Paused], &[Fact::Resuming]));
    assert!(!starts(true, &[asleep(), Fact::Paused], &[Fact::Resuming]));
    assert!(!starts(false, &[asleep(), Fact::Paused], &[queued(FIRST)]));
    assert!(!starts(false, &[asleep(), Fact::Resuming], &[queued(FIRST)]), "it starts already");
}

#[test]
fn a_resume_is_answered_when_the_agent_runs_or_with_the_reason_why_it_does_not() {
    let mut given = Given::live(&[]);
    assert!(!given.machine.waits_for_start(CALLER), "it runs");
    assert_eq!(given.machine.runtime.waiting.resuming, []);
    for facts in [[asleep()], [Fact::Resuming]] {
        let mut given = Given::live(&facts);
        given.machine.runtime.sandbox = SandboxConnection::Absent;
        assert!(given.machine.waits_for_start(CALLER), "{facts:?}");
        assert_eq!(given.machine.runtime.waiting.resuming, [CALLER]);
        assert_ne!(given.plan(0), NextStep::AnswerResumers);
        given.machine.log.apply(9, &Fact::Stopped);
        assert_eq!(given.plan(0), NextStep::AnswerResumers, "a stop came first");
    }
    let answer = |fact: Fact| Given::live(&[fact]).machine.resumer_answer();
    assert_eq!(Given::live(&[]).machine.resumer_answer(), ResumerAnswer::Running);
    assert_eq!(answer(Fact::Resuming), ResumerAnswer::Running);
    assert_eq!(answer(Fact::Paused), ResumerAnswer::Overtaken(SessionStatus::Paused));
    assert_eq!(answer(Fact::Stopped), ResumerAnswer::Overtaken(SessionStatus::Stopped));
    assert_eq!(answer(Fact::Ended), ResumerAnswer::Ended);
    assert_eq!(answer(failed()), ResumerAnswer::Failed(Some(problem())));
}

#[test]
fn a_start_that_found_no_room_leaves_a_resting_session_as_it_was() {
    let facts = |given: Given, want_of_room| given.machine.facts_of_failed_start(problem(), want_of_room);
    let resuming = |more: &[Fact]| {
        let facts: Vec<Fact> = [Fact::Paused, Fact::Resuming].iter().chain(more).cloned().collect();
        Given::with(USUAL, &facts)
    };
    assert_eq!(facts(resuming(&[]), true), [Fact::Paused]);
    assert_eq!(facts(resuming(&[]), false), [failed()]);
    assert_eq!(facts(resuming(&[queued(FIRST)]), true), [failed()], "a turn waits for it");
    assert_eq!(facts(Given::with(USUAL, &[Fact::Stopped]), true), [failed()]);
}

#[test]
fn a_step_that_changes_something_makes_the_machine_inspect_the_tree_again() {
    let seen = ash_session::machine::TreeInspection { broken: false, leftovers: false };
    let after = |step: NextStep| {
        let mut given = Given::live(&[]);
        given.machine.runtime.tree.seen = Some(seen);
        given.machine.begin(&step, given.start);
        given.machine.runtime.tree.seen
    };
    assert_eq!((after(NextStep::Wait), after(NextStep::InspectTree)), (Some(seen), Some(seen)));
    let setting = LiveSetting::Model("m".into());
    for step in [NextStep::CheckDisk, NextStep::TellSetting { setting, input: 2 }, NextStep::MakeTree] {
        assert_eq!(after(step.clone()), None, "{step:?}");
    }
    let mut given = Given::live(&[]);
    given.machine.begin(&NextStep::MakeTree, given.start);
    given.machine.runtime.tree.seen = Some(seen);
    assert_eq!(
        (given.machine.finish_effect(), given.machine.runtime.tree.seen),
        (Some(Effect::MakeTree), None)
    );
}

#[test]
fn a_start_remembers_which_options_it_knows() {
    let configured = Fact::Configured { options: Default::default(), restart: true };
    let mut given = Given::live(&[asleep(), configured]);
    given.machine.begin(&NextStep::Start, given.start);
    assert_eq!(given.machine.finish_effect(), Some(Effect::Start { options_seen: 4 }));
    let incarnation = crate::given::INCARNATION;
    let awake = |seen| given.machine.awake_fact(incarnation, Some(2), seen, 0);
    let expected = |outdated| Fact::Awake { incarnation, resumed_after: Some(2), outdated, more_inputs: 0 };
    assert_eq!((awake(4), awake(3)), (expected(false), expected(true)));
}
