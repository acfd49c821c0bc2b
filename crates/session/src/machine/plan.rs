//! What to do now. Pure: the log state, the runtime state and the time go in, one step comes out.
//!
//! `RULES` is the whole order of precedence. Every rule says what is due by it, now or later; `plan` and
//! `next_deadline` read the same table, so an actor that sleeps until the next deadline never misses a step and never spins.

use super::{
    CaptureOccasion, ChangeFailure, CommandRefusal, LogState, LogStep, Now, RuntimeState, SandboxConnection,
    TurnTimeLimit, activity, capture, closing, options_change, rewind,
};
use ash_driver::AgentInput;
use ash_model::{Fact, LimitKind, LiveSetting, SessionStatus, TurnId};
use std::time::{Duration, Instant};

/// The shortest time between self-started turns: each is captured, and no caller asked for it.
const MIN_SELF_START_INTERVAL: Duration = Duration::from_secs(1);

/// What the actor does next. Each step changes the state, or the actor waits.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub enum NextStep {
    Wait,
    /// Inspect the tree on disk, and plan again.
    InspectTree,

    // The log and the agent.
    /// Commit the facts.
    Commit {
        facts: Vec<Fact>,
    },
    /// Commit the facts, and send the agent what they contain.
    CommitAndTell {
        facts: Vec<Fact>,
    },
    /// The same, for a turn that a closing interrupts.
    InterruptForClosing {
        facts: Vec<Fact>,
    },
    /// Begin a turn: the fact first, then the input.
    Tell {
        fact: Fact,
        input: u64,
        say: AgentInput,
    },
    /// Give the agent's self-started work a turn.
    BeginSelfStartedTurn,
    /// The turn has waited long enough for background work.
    StopWaitingForBackground,
    /// The agent does not stop its turn: kill its process.
    KillAgent,
    /// Write again what could not be written.
    RetryWrite,
    /// The session's files exceeded their limit, and its sandbox is gone.
    SayFull {
        facts: Vec<Fact>,
    },

    // Limits and idleness.
    ReadLimits,
    CheckDisk,
    NoteIdle {
        fact: Option<Fact>,
        /// The sandbox ends.
        over: bool,
    },
    /// Nothing is left to do: the actor ends.
    Retire,

    // The sandbox and the tree.
    /// Make a sandbox and start the agent.
    Start,
    /// Let go of the sandbox.
    LeaveSandbox,
    /// End it, or this session's part of it.
    EndSandbox,
    /// The tree was removed or replaced from outside: it does not count any more.
    LoseTree,
    /// Capture what is on disk and cannot be trusted, before another tree takes its place.
    Salvage,
    MakeTree,
    AdmitWriters,

    // Captures.
    Capture(CaptureOccasion),
    /// The turn's files are gone.
    CaptureImpossible(TurnId),
    /// Its files are never captured: the turn ends without a checkpoint.
    EndUncaptured {
        facts: Vec<Fact>,
    },
    AbandonRemoteWait,

    // Callers.
    HandleDeferred,
    AnswerResumers,
    AnswerForkers,
    Pause,
    ConcludeClosing,
    TellSetting {
        setting: LiveSetting,
        input: u64,
    },
    ChangeOptions,
    RefuseChange(ChangeFailure),
    RefuseRewind(CommandRefusal),
    /// A start comes first, which may make a tree of its own.
    DiscardPreparedTree,
    PrepareRewind,
    /// In a shared workspace: rewind the files of all sessions.
    PrepareWorkspaceRewind,
    /// In a shared workspace: rewind only the agent's own memory.
    PrepareMemoryRewind,
    Rewind {
        facts: Vec<Fact>,
    },
}

impl NextStep {
    /// Whether the step is part of a rewind, if one is under way.
    pub fn is_part_of_rewind(&self) -> bool {
        match self {
            NextStep::LeaveSandbox
            | NextStep::Commit { .. }
            | NextStep::Salvage
            | NextStep::MakeTree
            | NextStep::Capture(_)
            | NextStep::PrepareRewind
            | NextStep::PrepareWorkspaceRewind
            | NextStep::PrepareMemoryRewind
            | NextStep::Rewind { .. } => true,
            NextStep::Wait
            | NextStep::InspectTree
            | NextStep::CommitAndTell { .. }
            | NextStep::InterruptForClosing { .. }
            | NextStep::Tell { .. }
            | NextStep::BeginSelfStartedTurn
            | NextStep::StopWaitingForBackground
            | NextStep::KillAgent
            | NextStep::RetryWrite
            | NextStep::SayFull { .. }
            | NextStep::ReadLimits
            | NextStep::CheckDisk
            | NextStep::NoteIdle { .. }
            | NextStep::Retire
            | NextStep::Start
            | NextStep::EndSandbox
            | NextStep::LoseTree
            | NextStep::AdmitWriters
            | NextStep::CaptureImpossible(_)
            | NextStep::EndUncaptured { .. }
            | NextStep::AbandonRemoteWait
            | NextStep::HandleDeferred
            | NextStep::AnswerResumers
            | NextStep::AnswerForkers
            | NextStep::Pause
            | NextStep::ConcludeClosing
            | NextStep::TellSetting { .. }
            | NextStep::ChangeOptions
            | NextStep::RefuseChange(_)
            | NextStep::RefuseRewind(_)
            | NextStep::DiscardPreparedTree => false,
        }
    }
}

/// What a rule reads.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) log: &'a LogState,
    pub(super) run: &'a RuntimeState,
    pub(super) now: Now,
}

/// What is due by a rule.
pub(super) enum Due {
    /// Nothing: the next rule decides.
    Pass,
    Now(NextStep),
    /// Due from then on; before that, the next rule decides.
    At(Instant, NextStep),
    /// Nothing before then, and later rules do not apply.
    Block(Option<Instant>),
}

/// Earlier rules come first. Those above `effect_due` apply also while long work is under way.
const RULES: [fn(&View<'_>) -> Due; 23] = [
    kill_due,
    write_retry_due,
    full_due,
    limits_due,
    turn_time_due,
    disk_check_due,
    background_wait_due,
    overdue_permissions_due,
    permission_expiry_due,
    activity::idle_due,
    options_change::due,
    activity::retire_due,
    activity::effect_due,
    departure_due,
    writers_due,
    closing::due,
    deferred_due,
    resumers_due,
    rewind::due,
    files_waiters_due,
    self_start_due,
    log_due,
    quiet_captures_due,
];

pub fn plan(log: &LogState, run: &RuntimeState, now: Now) -> NextStep {
    evaluate(&View { log, run, now }).0
}

/// When to plan again if nothing happens before.
pub fn next_deadline(log: &LogState, run: &RuntimeState, now: Now) -> Option<Instant> {
    evaluate(&View { log, run, now }).1
}

fn evaluate(view: &View<'_>) -> (NextStep, Option<Instant>) {
    let mut next: Option<Instant> = None;
    let mut earlier = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
    for rule in RULES {
        match rule(view) {
            Due::Pass => {}
            Due::Now(step) => return (step, next),
            Due::At(at, step) if at <= view.now.instant => return (step, next),
            Due::At(at, _) => earlier(at),
            Due::Block(at) => {
                at.into_iter().for_each(&mut earlier);
                break;
            }
        }
    }
    (NextStep::Wait, next)
}

fn kill_due(view: &View<'_>) -> Due {
    match view.run.agent.interrupt_deadline {
        Some(at) => Due::At(at, NextStep::KillAgent),
        None => Due::Pass,
    }
}

fn write_retry_due(view: &View<'_>) -> Due {
    match view.run.write_retry {
        Some(at) => Due::At(at, NextStep::RetryWrite),
        None => Due::Pass,
    }
}

/// After its turn is over, the session says why it does not continue.
fn full_due(View { log, run, .. }: &View<'_>) -> Due {
    let calm = run.sandbox == SandboxConnection::Absent && run.effect.is_none() && log.is_at_rest();
    let Some(reached) = run.limits.full.filter(|_| calm) else { return Due::Pass };
    let facts = match log.status {
        SessionStatus::Starting | SessionStatus::Active | SessionStatus::Paused => {
            vec![Fact::Failed { problem: reached.problem() }]
        }
        SessionStatus::Stopped | SessionStatus::Error | SessionStatus::Ended => Vec::new(),
    };
    Due::Now(NextStep::SayFull { facts })
}

fn are_limits_watched(run: &RuntimeState) -> bool {
    run.is_connected() && run.closing.is_none()
}

fn limits_due(View { run, .. }: &View<'_>) -> Due {
    match run.limits.bounds {
        TurnTimeLimit::Unknown if are_limits_watched(run) => Due::Now(NextStep::ReadLimits),
        TurnTimeLimit::Unknown | TurnTimeLimit::None | TurnTimeLimit::Seconds(_) => Due::Pass,
    }
}

/// A turn that takes too long is stopped as by an interrupt; an agent that does not stop then is killed.
fn turn_time_due(View { log, run, now }: &View<'_>) -> Due {
    let (TurnTimeLimit::Seconds(seconds), Some((_, began))) = (run.limits.bounds, run.limits.running) else {
        return Due::Pass;
    };
    let ran = now.instant.saturating_duration_since(began).as_secs();
    let facts = log.stop_turn_for_limit((LimitKind::TurnSeconds, seconds, ran));
    match began.checked_add(Duration::from_secs(seconds)) {
        Some(at) if are_limits_watched(run) && !facts.is_empty() => {
            Due::At(at, NextStep::CommitAndTell { facts })
        }
        Some(_) | None => Due::Pass,
    }
}

fn disk_check_due(View { run, .. }: &View<'_>) -> Due {
    match are_limits_watched(run) && run.limits.full.is_none() {
        true => Due::At(run.limits.next_disk_check, NextStep::CheckDisk),
        false => Due::Pass,
    }
}

fn background_wait_due(View { run, .. }: &View<'_>) -> Due {
    match run.agent.background_wait_since.filter(|_| run.write_retry.is_none()) {
        Some(since) => Due::At(since + run.profile.max_background_wait, NextStep::StopWaitingForBackground),
        None => Due::Pass,
    }
}

/// Requests that no client can answer any more, or that need no answer.
fn overdue_permissions_due(View { log, run, now }: &View<'_>) -> Due {
    let facts = if run.is_connected() { log.overdue(now.wall) } else { Vec::new() };
    if facts.is_empty() { Due::Pass } else { Due::Now(NextStep::CommitAndTell { facts }) }
}

fn permission_expiry_due(View { log, run, now }: &View<'_>) -> Due {
    let Some(at) = log.next_overdue().filter(|_| run.is_connected()) else { return Due::Pass };
    let wait = Duration::from_millis(u64::try_from(at.0.saturating_sub(now.wall.0)).unwrap_or(0));
    match now.instant.checked_add(wait) {
        // The rule before has handled what is overdue by now.
        Some(at) if at > now.instant => Due::At(at, NextStep::Wait),
        Some(_) | None => Due::Pass,
    }
}

fn departure_due(View { run, .. }: &View<'_>) -> Due {
    match run.sandbox {
        SandboxConnection::Departing => Due::Now(NextStep::EndSandbox),
        SandboxConnection::Absent | SandboxConnection::Connected => Due::Pass,
    }
}

/// Callers that write files get a tree when no long work is under way. During a rewind they wait for the new tree:
/// their writes into the old one would be lost.
fn writers_due(View { log, run, .. }: &View<'_>) -> Due {
    if run.waiting.writing.is_empty() {
        return Due::Pass;
    }
    let Some(seen) = run.tree.seen else { return Due::Now(NextStep::InspectTree) };
    if seen.broken {
        return Due::Now(NextStep::LoseTree);
    }
    if has_lost_tree(log, run) {
        return Due::Now(NextStep::LeaveSandbox);
    }
    match (run.waiting.rewinding.is_empty(), run.tree.present) {
        (false, _) => Due::Pass,
        (true, _) if seen.leftovers => Due::Now(NextStep::Salvage),
        (true, true) => Due::Now(NextStep::AdmitWriters),
        (true, false) => Due::Now(NextStep::MakeTree),
    }
}

/// Whether the running agent has lost its files.
pub(super) fn has_lost_tree(log: &LogState, run: &RuntimeState) -> bool {
    run.is_connected() && !run.tree.present && log.is_at_rest()
}

fn deferred_due(View { run, .. }: &View<'_>) -> Due {
    if run.waiting.deferred.is_empty() { Due::Pass } else { Due::Now(NextStep::HandleDeferred) }
}

/// A later command can end or stop a session before the start that a resume asked for: then no start answers the resume.
fn resumers_due(View { log, run, .. }: &View<'_>) -> Due {
    let comes = log.status == SessionStatus::Starting
        || matches!(log.next_step(), LogStep::Wake | LogStep::Commit { .. });
    if run.waiting.resuming.is_empty() || comes { Due::Pass } else { Due::Now(NextStep::AnswerResumers) }
}

/// Pauses and forks need safe files first. A running turn is captured when it is over.
fn files_waiters_due(View { log, run, .. }: &View<'_>) -> Due {
    let waiting = &run.waiting;
    if waiting.pausing.is_empty() && waiting.forking.is_empty() {
        return Due::Pass;
    }
    if run.capture.wanted && !run.profile.ephemeral && log.is_at_rest() && run.tree.present {
        return Due::Now(NextStep::Capture(CaptureOccasion::BetweenTurns));
    }
    Due::Now(if waiting.forking.is_empty() { NextStep::Pause } else { NextStep::AnswerForkers })
}

fn self_start_due(View { log, run, now }: &View<'_>) -> Due {
    if !(run.agent.self_started && run.is_connected() && log.may_self_start()) {
        return Due::Pass;
    }
    match run.agent.last_self_start.map(|last| last + MIN_SELF_START_INTERVAL) {
        Some(at) if at > now.instant => Due::Block(Some(at)),
        Some(_) | None => Due::Now(NextStep::BeginSelfStartedTurn),
    }
}

/// What the log requires.
fn log_due(view: &View<'_>) -> Due {
    let View { log, run, .. } = *view;
    match log.next_step() {
        LogStep::Wait => Due::Pass,
        LogStep::Commit { facts } => Due::Now(NextStep::CommitAndTell { facts }),
        LogStep::Sleep if run.is_connected() => Due::Now(NextStep::LeaveSandbox),
        LogStep::Sleep => Due::Now(NextStep::Commit { facts: log.sleep_facts() }),
        LogStep::Save { turn } => save_due(view, turn),
        LogStep::Wake => match run.tree.seen {
            None => Due::Now(NextStep::InspectTree),
            Some(seen) if seen.broken => Due::Now(NextStep::LoseTree),
            Some(seen) if seen.leftovers => Due::Now(NextStep::Salvage),
            Some(_) => Due::Now(NextStep::Start),
        },
        LogStep::Tell { fact, input, say } => match run.tree.seen {
            None => Due::Now(NextStep::InspectTree),
            Some(seen) if seen.broken => Due::Now(NextStep::LoseTree),
            // The agent would work on removed files: another one starts, with the files of the last checkpoint.
            Some(_) if has_lost_tree(log, run) => Due::Now(NextStep::LeaveSandbox),
            Some(_) if yields_slot(log, run) => Due::Now(NextStep::LeaveSandbox),
            Some(_) => Due::Now(NextStep::Tell { fact, input, say }),
        },
    }
}

/// Between two turns a sandbox can go to another tenant: everything is captured, and the next start waits for a slot.
fn yields_slot(log: &LogState, run: &RuntimeState) -> bool {
    run.agent.yields && run.is_connected() && log.waits_to_begin() && !run.agent.commands_running
}

/// The turn is over when its files are safe.
fn save_due(View { run, now, log }: &View<'_>, turn: TurnId) -> Due {
    let occasion = CaptureOccasion::TurnEnd(turn);
    if run.profile.ephemeral {
        let facts = log.turn_end(turn, None).into_iter().collect();
        return Due::Now(NextStep::EndUncaptured { facts });
    }
    if run.remote_wait.is_some() {
        return Due::Block(None);
    }
    match capture::turn_end_at(run, turn) {
        Some(at) if at > now.instant => Due::Block(Some(at)),
        Some(_) | None if run.tree.present => Due::Now(NextStep::Capture(occasion)),
        Some(_) | None => Due::Now(NextStep::CaptureImpossible(turn)),
    }
}

/// Captures that no turn's end or caller waits for.
fn quiet_captures_due(View { log, run, .. }: &View<'_>) -> Due {
    if let Some((turn, at)) = capture::midway_at(log, run) {
        return Due::At(at, NextStep::Capture(CaptureOccasion::Midway(turn)));
    }
    match capture::between_turns_at(log, run) {
        Some(at) => Due::At(at, NextStep::Capture(CaptureOccasion::BetweenTurns)),
        None => Due::Pass,
    }
}
