//! What becomes of a message while a turn runs, and of the messages before it.

use crate::given::{FIRST, SECOND, THIRD, asleep, awake, checkpoint, failed, fold, queued, rested, started};
use ash_model::{
    BusyPolicy, Death, Fact, MessageOptions, Receipt, ResumePath, ResumeSource, SessionStatus, Tier,
    TreeOrigin, TurnId, TurnOutcome,
};
use ash_session::machine::{CommandRefusal, LogState, StateCommand, WakePolicy};
use uuid::Uuid;

const NEW: TurnId = TurnId(Uuid::from_u128(9));

fn pushed(state: &LogState, on_busy: BusyPolicy) -> Result<Vec<Fact>, CommandRefusal> {
    state.decide(&StateCommand::Prompt {
        turn: NEW,
        content: format!("message {NEW}").into(),
        ask: MessageOptions::default(),
        wake: WakePolicy::Allowed,
        on_busy,
        lock: None,
    })
}

fn order(order: &[TurnId]) -> Fact {
    Fact::Requeued { order: order.into(), withdrawn: Vec::new() }
}

fn steering(turn: TurnId, input: u64) -> Fact {
    Fact::Steering { turn, into: FIRST, input }
}

fn interrupting(input: u64) -> Fact {
    Fact::Interrupting { turn: FIRST, input }
}

fn running() -> LogState {
    fold(&[awake(), queued(FIRST), started(FIRST, 2)])
}

#[test]
fn a_message_to_a_session_at_rest_is_simply_the_next() {
    for policy in [BusyPolicy::Queue, BusyPolicy::Reject, BusyPolicy::Interrupt, BusyPolicy::Steer] {
        assert_eq!(pushed(&fold(&[awake()]), policy), Ok(vec![queued(NEW)]), "{policy:?}");
    }
}

#[test]
fn a_message_that_may_not_wait_is_refused_or_comes_next() {
    let alone = running();
    assert_eq!(pushed(&alone, BusyPolicy::Queue), Ok(vec![queued(NEW)]));
    assert_eq!(pushed(&alone, BusyPolicy::Reject), Err(CommandRefusal::SessionBusy));
    assert_eq!(pushed(&alone, BusyPolicy::Interrupt), Ok(vec![queued(NEW), interrupting(3)]));
    assert_eq!(pushed(&alone, BusyPolicy::Steer), Ok(vec![queued(NEW), steering(NEW, 3)]));
    let others = alone.after(&[queued(SECOND), queued(THIRD)]);
    let first = order(&[NEW, SECOND, THIRD]);
    assert_eq!(pushed(&others, BusyPolicy::Queue), Ok(vec![queued(NEW)]));
    assert_eq!(pushed(&others, BusyPolicy::Interrupt), Ok(vec![queued(NEW), first.clone(), interrupting(3)]));
    assert_eq!(pushed(&others, BusyPolicy::Steer), Ok(vec![queued(NEW), first.clone(), steering(NEW, 3)]));
    // A turn that stops takes no message any more.
    let stopping = others.after(&[interrupting(3)]);
    assert_eq!(pushed(&stopping, BusyPolicy::Steer), Ok(vec![queued(NEW), first.clone()]));
    assert_eq!(pushed(&stopping, BusyPolicy::Interrupt), Ok(vec![queued(NEW), first.clone()]));
    let saving = others.after(&[rested(FIRST)]);
    assert_eq!(pushed(&saving, BusyPolicy::Steer), Ok(vec![queued(NEW), first]));
}

#[test]
fn messages_into_a_turn_keep_their_order_before_those_that_wait() {
    let state = running().after(&[queued(SECOND), queued(THIRD), steering(THIRD, 3)]);
    let facts = vec![queued(NEW), order(&[THIRD, NEW, SECOND]), steering(NEW, 4)];
    assert_eq!(pushed(&state, BusyPolicy::Steer), Ok(facts));
    let acknowledged = state.after(&[Fact::Steered { turn: THIRD, into: FIRST }]);
    let facts = vec![queued(NEW), order(&[NEW, SECOND]), steering(NEW, 4)];
    assert_eq!(pushed(&acknowledged, BusyPolicy::Steer), Ok(facts), "it waits no more");
}

#[test]
fn a_message_is_withdrawn_until_the_agent_knows_it() {
    let withdraw = |state: &LogState, turn| state.decide(&StateCommand::Withdraw { turn });
    let cancelled =
        Fact::Finished { turn: SECOND, outcome: TurnOutcome::Cancelled, checkpoint: None, problem: None };
    let state = running().after(&[queued(SECOND), queued(THIRD)]);
    let requeued = Fact::Requeued { order: vec![THIRD], withdrawn: vec![SECOND] };
    assert_eq!(withdraw(&state, SECOND), Ok(vec![requeued, cancelled]));
    assert_eq!(withdraw(&state, FIRST), Err(CommandRefusal::NotWaiting));
    assert_eq!(withdraw(&state, NEW), Err(CommandRefusal::NotWaiting));
    let told = state.after(&[steering(SECOND, 3)]);
    assert_eq!(withdraw(&told, SECOND), Err(CommandRefusal::NotWaiting));
    assert!(withdraw(&told, THIRD).is_ok());
    assert!(
        withdraw(&told.after(&[asleep()]), SECOND).is_ok(),
        "the agent is gone, and did not acknowledge it"
    );
    let cut = Fact::Cut { turn: FIRST, death: Death::Machine };
    let heard = told.after(&[Fact::Steered { turn: SECOND, into: FIRST }, cut, asleep()]);
    assert_eq!(withdraw(&heard, SECOND), Err(CommandRefusal::NotWaiting), "it is in the memory of the turn");
    let over = Fact::Finished { turn: FIRST, outcome: TurnOutcome::Failed, checkpoint: None, problem: None };
    assert!(withdraw(&heard.after(&[over]), SECOND).is_ok());
}

#[test]
fn waiting_messages_are_moved_to_the_front_in_the_order_given() {
    let state = running().after(&[queued(SECOND), queued(THIRD), queued(NEW)]);
    let reorder = |first: &[TurnId]| state.decide(&StateCommand::Reorder { first: first.into() });
    assert_eq!(reorder(&[NEW, THIRD]), Ok(vec![order(&[NEW, THIRD, SECOND])]));
    assert_eq!(reorder(&[SECOND]), Ok(vec![]), "it is there already");
    assert_eq!(reorder(&[NEW, FIRST]), Err(CommandRefusal::NotWaiting));
}

#[test]
fn an_interrupt_stops_what_runs_once_and_ends_what_was_cut() {
    let interrupt = |state: &LogState| state.decide(&StateCommand::Interrupt);
    assert_eq!(interrupt(&running()), Ok(vec![interrupting(3)]));
    assert_eq!(interrupt(&running().after(&[interrupting(3)])), Ok(vec![]));
    assert_eq!(interrupt(&running().after(&[rested(FIRST)])), Ok(vec![]));
    let cut = Fact::Cut { turn: FIRST, death: Death::Machine };
    let over =
        Fact::Finished { turn: FIRST, outcome: TurnOutcome::Interrupted, checkpoint: Some(4), problem: None };
    let state = running().after(&[cut, asleep(), failed(), Fact::Saved(checkpoint(4))]);
    assert_eq!(interrupt(&state), Ok(vec![over]));
}

#[test]
fn a_message_wakes_a_session_that_rests_as_fast_as_it_can() {
    let receipt = Receipt {
        path: ResumePath::Warm,
        source: ResumeSource::Local,
        from: TreeOrigin::Live,
        tier: Tier::Native,
        checkpoint: Some(4),
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: Vec::new(),
        salvage: None,
        adopted: None,
    };
    let warm = Fact::Resumed { receipt, head: None };
    let paused = fold(&[awake(), Fact::Saved(checkpoint(4)), Fact::Paused]);
    assert_eq!(pushed(&paused, BusyPolicy::Queue), Ok(vec![queued(NEW), warm]));
    let outdated = Fact::Configured { options: Default::default(), restart: true };
    let cold = Ok(vec![queued(NEW), Fact::Resuming]);
    assert_eq!(pushed(&paused.after(&[outdated]), BusyPolicy::Queue), cold, "its agent has other options");
    assert_eq!(pushed(&paused.after(&[asleep()]), BusyPolicy::Queue), cold);
    let ended = Err(CommandRefusal::WrongStatus(SessionStatus::Ended));
    assert_eq!(pushed(&paused.after(&[Fact::Ended]), BusyPolicy::Queue), ended);
}
