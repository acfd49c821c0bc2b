//! What the facts of a log mean together: the conversation, its files, and the sandbox that the log knows.

use crate::given::{
    FIRST, INCARNATION, SECOND, THIRD, asleep, awake, checkpoint, created, event, failed, finished, fold,
    problem, queued, rested, started,
};
use ash_driver::AgentInput;
use ash_model::{
    AdoptedHistory, ConversationPoint, Death, Epoch, Fact, HistorySource, LiveSetting, MessageOptions,
    Receipt, ResumePath, ResumeSource, SavedCheckpoint, SessionRewind, SessionStatus, Tier, TreeOrigin,
    TurnId, TurnOutcome, WorkspaceRewind,
};
use ash_session::machine::{LogState, LogStep, TurnPhase, plain_text};
use ash_store::{SessionSummary, TurnRow, TurnState};
use serde_json::json;
use uuid::Uuid;

const MEMORY: Uuid = Uuid::from_u128(9);

fn saved(number: u64) -> Fact {
    Fact::Saved(checkpoint(number))
}

fn message(turn: TurnId, content: serde_json::Value) -> Fact {
    Fact::Queued { turn, content, options: MessageOptions::default(), lock: None }
}

fn said(turn: TurnId, text: &str) -> Fact {
    let (outcome, usage) = (TurnOutcome::Done, Default::default());
    Fact::Rested { turn, outcome, text: text.into(), usage, problem: None }
}

fn receipt() -> Receipt {
    Receipt {
        path: ResumePath::Cold,
        source: ResumeSource::Local,
        from: TreeOrigin::Live,
        tier: Tier::Native,
        checkpoint: None,
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: Vec::new(),
        salvage: None,
        adopted: None,
    }
}

fn resumed(receipt: Receipt, head: Option<&str>) -> Fact {
    Fact::Resumed { receipt, head: head.map(str::to_owned) }
}

fn save_failed(turn: Option<TurnId>) -> Fact {
    Fact::SaveFailed { turn, error: "no".into() }
}

fn files(state: &LogState) -> (Option<u64>, Option<u64>, u64, u64) {
    (state.checkpoint, state.last_full_checkpoint, state.last_checkpoint, state.unsaved)
}

// The conversation.

#[test]
fn a_conversation_is_named_by_its_first_message_in_one_line() {
    let title = |content| fold(&[message(FIRST, content), message(SECOND, json!("later"))]).title;
    assert_eq!(title(json!(" two\n  lines ")).as_deref(), Some("two lines"));
    let blocks = json!([{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]);
    assert_eq!(title(blocks.clone()).as_deref(), Some("one two"));
    assert_eq!(plain_text(&blocks), "one\ntwo");
    assert_eq!(plain_text(&json!({"text": "no message"})), "");
    let (exact, longer) = ("ä".repeat(80), "ä".repeat(81));
    assert_eq!(title(json!(exact)), Some(exact.clone()));
    assert_eq!(title(json!(longer)), Some(format!("{exact}…")));
}

#[test]
fn the_last_answer_is_shown_in_short_and_an_empty_one_replaces_none() {
    let first =
        [queued(FIRST), awake(), started(FIRST, 2), said(FIRST, &"x".repeat(401)), finished(FIRST, None)];
    let state = fold(&first);
    assert_eq!(state.last_text, Some(format!("{}…", "x".repeat(400))));
    let second = [queued(SECOND), started(SECOND, 3), said(SECOND, ""), finished(SECOND, None)];
    assert_eq!(state.after(&second).last_text, state.last_text);
    let withdrawn =
        Fact::Finished { turn: THIRD, outcome: TurnOutcome::Cancelled, checkpoint: None, problem: None };
    assert_eq!(state.after(&[queued(THIRD), withdrawn]).last_text, state.last_text);
}

#[test]
fn a_withdrawn_message_is_no_part_of_the_conversation() {
    let withdrawn = |order: &[TurnId], turn| Fact::Requeued { order: order.into(), withdrawn: vec![turn] };
    let state = fold(&[queued(FIRST), queued(SECOND), queued(THIRD)]);
    let first = state.after(&[withdrawn(&[THIRD, SECOND], FIRST)]);
    let named = |turn: TurnId| Some(format!("message {turn}"));
    assert_eq!((first.turns_total, first.title.clone()), (2, named(SECOND)), "the earliest of the others");
    let only = fold(&[queued(FIRST)]).after(&[withdrawn(&[], FIRST)]);
    assert_eq!((only.turns_total, only.title), (0, None));
    let began = fold(&[queued(FIRST), awake(), started(FIRST, 2), queued(SECOND), queued(THIRD)]);
    let began = began.after(&[withdrawn(&[THIRD], SECOND)]);
    assert_eq!((began.turns_total, began.title), (2, named(FIRST)));
    let moved = state.after(&[Fact::Requeued { order: vec![THIRD, FIRST, SECOND], withdrawn: vec![] }]);
    assert_eq!((moved.turns_total, moved.title.clone()), (3, named(FIRST)));
    assert_eq!(moved.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), [THIRD, FIRST, SECOND]);
}

#[test]
fn a_point_of_the_conversation_knows_what_ran_and_what_waited() {
    let steered = [queued(SECOND), Fact::Steering { turn: SECOND, into: FIRST, input: 3 }];
    let joined = Fact::Steered { turn: SECOND, into: FIRST };
    let state =
        fold(&[awake(), queued(FIRST), started(FIRST, 2)]).after(&steered).after(&[joined, queued(THIRD)]);
    let point = ConversationPoint {
        turns_delivered: 1,
        turns: 2,
        title: Some(format!("message {FIRST}")),
        last_text: None,
        memory: None,
        under_way: Some(FIRST),
        waiting: vec![THIRD],
    };
    assert_eq!(state.conversation_point(), point);
    let empty = ConversationPoint { waiting: vec![FIRST], ..ConversationPoint::default() };
    assert_eq!(fold(&[queued(FIRST)]).conversation_point(), empty, "nothing has begun");
}

#[test]
fn a_fork_continues_its_parents_conversation_until_its_own_is_in_a_checkpoint() {
    let forked = Fact::Forked {
        parent: None,
        checkpoint: Some(4),
        memory: MEMORY,
        turns_delivered: 3,
        waiting: Vec::new(),
    };
    let state = fold(&[created(), forked.clone()]);
    assert_eq!(
        (state.status, state.turns_delivered, files(&state)),
        (SessionStatus::Paused, 3, (Some(4), Some(4), 4, 0))
    );
    assert_eq!((state.inherited_memory, state.conversation_point().memory), (Some(MEMORY), Some(MEMORY)));
    assert_eq!(state.after(&[saved(5)]).inherited_memory, Some(MEMORY), "no agent has run");
    let ran = state.after(&[awake()]);
    assert_eq!(ran.inherited_memory, Some(MEMORY), "its files are not safe");
    let own = ran.after(&[saved(5)]);
    assert_eq!(own.inherited_memory, None);
    // After a rewind to the parent's conversation an agent has to run again.
    let then = state.conversation_point();
    let back = Fact::Rewound(SessionRewind { to: 4, from: Some(5), seq: 2, conversation: then });
    assert_eq!(own.after(&[asleep(), back.clone(), saved(6)]).inherited_memory, Some(MEMORY));
    assert_eq!(own.after(&[asleep(), back, awake(), saved(6)]).inherited_memory, None);
    let nothing =
        Fact::Forked { parent: None, checkpoint: None, memory: MEMORY, turns_delivered: 0, waiting: vec![] };
    assert_eq!(files(&fold(&[nothing])), (None, None, 0, 0));
}

#[test]
fn a_fork_shows_what_its_parent_showed() {
    let then = ConversationPoint {
        title: Some("title".into()),
        last_text: Some("text".into()),
        turns: 3,
        ..ConversationPoint::default()
    };
    let mut inherited = fold(&[created()]);
    inherited.inherit(&then);
    let card = inherited.summary();
    let expected = SessionSummary {
        status: SessionStatus::Starting,
        title: Some("title".into()),
        last_text: Some("text".into()),
        turns: 3,
        open_turns: 0,
        problem: None,
        checkpoint: None,
        pending: vec![],
        lock: None,
    };
    assert_eq!(card, expected);
    let mut adopted = fold(&[created()]);
    adopted.adopt(&card);
    assert_eq!(adopted.summary(), expected);
    let own = adopted.after(&[queued(FIRST)]);
    assert_eq!((own.title.as_deref(), own.turns_total), (Some("title"), 4));
}

// Files.

#[test]
fn only_a_settled_checkpoint_is_a_base_for_forks() {
    let midway = Fact::Saved(SavedCheckpoint { mid_turn: true, turn: Some(FIRST), ..checkpoint(2) });
    let salvage = Fact::Saved(SavedCheckpoint { salvage: true, ..checkpoint(3) });
    let state = fold(&[saved(1), midway]);
    assert_eq!(files(&state), (Some(2), Some(1), 2, 0));
    let state = state.after(&[salvage]);
    assert_eq!(
        (files(&state), state.salvaged),
        ((Some(2), Some(1), 3, 0), Some(3)),
        "nothing continues from it"
    );
    let rewound_to = Fact::Saved(SavedCheckpoint { rewound_to: Some(1), ..checkpoint(4) });
    let state = state.after(&[rewound_to]);
    assert_eq!((files(&state), state.last_workspace_rewind), ((Some(4), Some(4), 4, 0), 4));
    let by = Fact::WorkspaceRewound(WorkspaceRewind { by: None, checkpoint: 7, to: 1 });
    assert_eq!(state.after(&[by]).last_workspace_rewind, 7);
    assert_eq!(state.after(&[saved(5)]).last_workspace_rewind, 4);
}

#[test]
fn turns_whose_files_no_checkpoint_holds_are_counted() {
    let of = |turn| Fact::Saved(SavedCheckpoint { turn: Some(turn), ..checkpoint(1) });
    let midway = Fact::Saved(SavedCheckpoint { turn: Some(FIRST), mid_turn: true, ..checkpoint(1) });
    let unsaved = |facts: &[Fact]| fold(facts).unsaved;
    assert_eq!(unsaved(&[save_failed(Some(FIRST)), save_failed(Some(SECOND))]), 2);
    assert_eq!(unsaved(&[save_failed(None)]), 0, "no turn ended");
    assert_eq!(unsaved(&[of(FIRST), save_failed(Some(FIRST))]), 0, "only the object store lacks it");
    assert_eq!(unsaved(&[of(FIRST), save_failed(Some(SECOND))]), 1);
    assert_eq!(unsaved(&[midway, save_failed(Some(FIRST))]), 1, "its end is not in it");
    assert_eq!(unsaved(&[save_failed(Some(FIRST)), saved(1)]), 0, "a later capture has them");
    let salvage = Fact::Saved(SavedCheckpoint { salvage: true, ..checkpoint(1) });
    assert_eq!(unsaved(&[save_failed(Some(FIRST)), salvage]), 1);
    let back = Fact::Rewound(SessionRewind { to: 1, from: None, seq: 2, conversation: Default::default() });
    assert_eq!(unsaved(&[save_failed(Some(FIRST)), back]), 0);
    let restored = Receipt { from: TreeOrigin::Checkpoint, ..receipt() };
    assert_eq!(
        unsaved(&[save_failed(Some(FIRST)), resumed(restored, None)]),
        0,
        "the receipt has named them"
    );
    assert_eq!(unsaved(&[save_failed(Some(FIRST)), resumed(receipt(), None)]), 1);
}

#[test]
fn a_receipt_says_what_the_session_continues_with() {
    let adopted = AdoptedHistory {
        epoch: Epoch(1),
        seq: 1,
        checkpoint: None,
        witness: HistorySource::Packs,
        diverged: None,
        journal_position: None,
    };
    let salvage = Fact::Saved(SavedCheckpoint { salvage: true, ..checkpoint(6) });
    let state = fold(&[
        saved(4),
        saved(5),
        salvage,
        Fact::Adopted(adopted.clone()),
        Fact::Missing,
        failed(),
        Fact::Resuming,
    ]);
    assert_eq!(
        (state.status, state.resuming, &state.problem),
        (SessionStatus::Starting, true, &Some(problem()))
    );
    assert_eq!((&state.adopted, &state.missing), (&Some(adopted), &vec![(5, 5)]));
    let after = |receipt| state.after(&[resumed(receipt, Some("head"))]);
    let cold = after(receipt());
    assert_eq!((cold.status, cold.resuming, &cold.problem), (SessionStatus::Active, false, &None));
    assert_eq!((&cold.adopted, cold.missing.len(), cold.briefing.as_deref()), (&None, 0, Some("head")));
    assert_eq!((cold.salvaged, files(&cold)), (None, (Some(5), Some(5), 6, 0)));
    assert_eq!(after(Receipt { path: ResumePath::Warm, ..receipt() }).salvaged, Some(6), "it names none");
    let older = after(Receipt { checkpoint: Some(4), ..receipt() });
    assert_eq!(files(&older), (Some(4), Some(4), 6, 0), "the newest could not be read");
    assert_eq!(files(&after(Receipt { checkpoint: Some(5), ..receipt() })), (Some(5), Some(5), 6, 0));
    assert_eq!(files(&after(Receipt { checkpoint: Some(6), ..receipt() })), (Some(5), Some(5), 6, 0));
    assert_eq!(files(&after(Receipt { source: ResumeSource::Fresh, ..receipt() })), (None, None, 6, 0));
}

#[test]
fn a_resume_from_the_middle_of_a_turn_is_still_no_base_for_forks() {
    let midway = Fact::Saved(SavedCheckpoint { mid_turn: true, turn: Some(FIRST), ..checkpoint(5) });
    let state = fold(&[saved(4), midway, resumed(Receipt { checkpoint: Some(5), ..receipt() }, None)]);
    assert_eq!(files(&state), (Some(5), Some(4), 5, 0));
}

#[test]
fn events_that_no_witness_has_are_named_in_ranges() {
    let facts = [Fact::Missing, Fact::Missing, Fact::Missing, created(), Fact::Missing];
    assert_eq!(fold(&facts).missing, [(1, 3), (5, 5)]);
}

// The sandbox that the log knows.

#[test]
fn a_briefing_is_told_with_the_next_message_and_once() {
    let head = |state: &LogState| match state.next_step() {
        LogStep::Tell { say: AgentInput::Prompt { head, .. }, .. } => head,
        other => panic!("{other:?}"),
    };
    let briefed = |tier| vec![awake(), resumed(Receipt { tier, ..receipt() }, Some("head")), queued(FIRST)];
    let state = fold(&briefed(Tier::Native));
    assert_eq!(head(&state).as_deref(), Some("head"));
    let state = state.after(&[started(FIRST, 2)]);
    assert_eq!(state.briefing, None);
    assert!(
        matches!(&state.undelivered_inputs(1)[..], [(2, AgentInput::Prompt { head: Some(head), .. })] if head == "head")
    );
    // A turn that continues has it in its memory, unless the memory is the briefing.
    let again = |tier, head: Option<&str>| {
        let cut = [awake(), queued(FIRST), started(FIRST, 2), asleep(), awake()];
        let resumed = resumed(Receipt { tier, ..receipt() }, head);
        let continued =
            Fact::Continued { turn: FIRST, attempt: 2, discard_after: 1, input: 2, calls: vec![] };
        fold(&cut).after(&[resumed, continued]).briefing
    };
    assert_eq!(again(Tier::Native, Some("head")).as_deref(), Some("head"));
    assert_eq!(again(Tier::History, Some("head")), None);
}

#[test]
fn a_new_sandbox_knows_nothing_of_the_old_one() {
    let configured = |restart| Fact::Configured { options: Default::default(), restart };
    let state = fold(&[awake(), queued(FIRST), started(FIRST, 2), configured(false)]);
    assert!(!state.agent_options_outdated && state.last_options_change == 0);
    let state = state.after(&[configured(true)]);
    assert!(state.agent_options_outdated && state.last_options_change == 5);
    let state = state.after(&[asleep()]);
    assert!(!state.agent_options_outdated && state.awake.is_none());
    assert!(!state.after(&[configured(true)]).agent_options_outdated, "nothing runs with the old ones");
    let outdated =
        Fact::Awake { incarnation: INCARNATION, resumed_after: Some(3), outdated: true, more_inputs: 0 };
    let state = state.after(&[outdated]);
    assert!(state.agent_options_outdated);
    let cut = LogStep::Tell {
        fact: Fact::Continued { turn: FIRST, attempt: 2, discard_after: 3, input: 2, calls: vec![] },
        input: 2,
        say: AgentInput::Prompt {
            turn: FIRST,
            head: None,
            content: format!("message {FIRST}").into(),
            ask: MessageOptions::default(),
            attempt: 2,
        },
    };
    assert_eq!(state.next_step(), cut, "what is in its memory is not discarded");
}

#[test]
fn inputs_outside_turns_are_remembered_up_to_a_bound() {
    let setting = |input| Fact::Setting { setting: LiveSetting::Model("m".into()), input };
    let facts: Vec<Fact> = [awake()].into_iter().chain((2..=66).map(setting)).collect();
    let inputs: Vec<u64> = fold(&facts).undelivered_inputs(0).into_iter().map(|(input, _)| input).collect();
    assert_eq!(inputs, (3..=66).collect::<Vec<_>>());
}

#[test]
fn only_a_pause_of_a_live_session_was_asked_for() {
    assert!(fold(&[awake(), Fact::Paused]).pause_requested);
    assert!(
        !fold(&[awake(), asleep(), Fact::Paused]).pause_requested,
        "a server that stops ends the sandbox first"
    );
    assert!(!fold(&[awake(), Fact::Paused, asleep(), Fact::Resuming, Fact::Paused]).pause_requested);
}

#[test]
fn a_rewound_session_rests_unless_it_was_stopped() {
    let back = || {
        let conversation = ConversationPoint {
            turns_delivered: 2,
            turns: 3,
            title: Some("title".into()),
            last_text: Some("text".into()),
            memory: Some(MEMORY),
            ..ConversationPoint::default()
        };
        Fact::Rewound(SessionRewind { to: 1, from: Some(2), seq: 1, conversation })
    };
    for (before, status) in [
        (Fact::Resuming, SessionStatus::Paused),
        (Fact::Paused, SessionStatus::Paused),
        (failed(), SessionStatus::Paused),
        (Fact::Stopped, SessionStatus::Stopped),
    ] {
        let state = fold(&[saved(1), saved(2), before, back()]);
        let expected = SessionSummary {
            status,
            title: Some("title".into()),
            last_text: Some("text".into()),
            turns: 3,
            open_turns: 0,
            problem: None,
            checkpoint: Some(1),
            pending: vec![],
            lock: None,
        };
        assert_eq!(state.summary(), expected);
        assert_eq!((state.rewound, state.turns_delivered, state.inherited_memory), (4, 2, Some(MEMORY)));
        assert_eq!(files(&state), (Some(1), Some(1), 2, 0));
    }
}

// Rows.

#[test]
fn every_step_of_a_turn_is_a_row_and_a_replay_has_none() {
    let facts =
        [awake(), queued(FIRST), started(FIRST, 2), rested(FIRST), saved(1), finished(FIRST, Some(1))];
    let mut state = fold(&facts);
    let row = |state, attempt| TurnRow { id: FIRST, seq: 2, state, attempt };
    let rows = [
        row(TurnState::Queued, 0),
        row(TurnState::Running, 1),
        row(TurnState::Saving, 1),
        row(TurnState::Done, 1),
    ];
    assert_eq!(state.take_changed_turns(), rows);
    assert_eq!(state.take_changed_turns(), []);
    let events: Vec<_> = (1..).zip(facts).map(|(seq, fact)| event(seq, fact)).collect();
    let mut replayed = LogState::new(0).replay(&events);
    assert_eq!(replayed, state);
    assert_eq!(replayed.take_changed_turns(), []);
}

#[test]
fn messages_that_joined_a_turn_wait_again_when_it_is_cut_in_the_order_in_which_they_joined() {
    let fourth = TurnId(Uuid::from_u128(4));
    let told = |turn, input| Fact::Steering { turn, into: FIRST, input };
    let joined = |turn| Fact::Steered { turn, into: FIRST };
    let facts = [awake(), queued(FIRST), started(FIRST, 2), queued(SECOND), queued(THIRD), queued(fourth)];
    let state = fold(&facts).after(&[told(THIRD, 3), told(fourth, 4), joined(THIRD), joined(fourth)]);
    let phases =
        |state: &LogState| state.turns.iter().map(|turn| (turn.id, turn.phase.clone())).collect::<Vec<_>>();
    let into = || TurnPhase::Joined { into: FIRST };
    assert_eq!(phases(&state)[1..], [(THIRD, into()), (fourth, into()), (SECOND, TurnPhase::Queued)]);
    let mut cut = state.after(&[Fact::Cut { turn: FIRST, death: Death::Machine }]);
    let waits = |turn| (turn, TurnPhase::Queued);
    assert_eq!(phases(&cut), [(FIRST, TurnPhase::Cut), waits(THIRD), waits(fourth), waits(SECOND)]);
    let row = |id, seq, state, attempt| TurnRow { id, seq, state, attempt };
    let rows = [
        row(FIRST, 2, TurnState::Cut, 1),
        row(THIRD, 5, TurnState::Queued, 0),
        row(fourth, 6, TurnState::Queued, 0),
    ];
    let changed = cut.take_changed_turns();
    assert_eq!(changed[changed.len() - 3..], rows);
    // The agent is back and remembers one of them.
    let back = cut.after(&[asleep(), awake()]);
    assert_eq!(back.steering_found_in_memory(&[fourth.0, SECOND.0]), [joined(fourth)]);
    assert_eq!(back.steering_acknowledged(SECOND), Some(joined(SECOND)));
    assert_eq!(back.steering_acknowledged(FIRST), None, "it does not wait");
}
