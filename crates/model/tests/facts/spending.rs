//! Facts about usage and its limits.

use super::*;

pub(crate) fn budgets() -> Vec<Fact> {
    let usage = TokenUsage {
        input_tokens: 1,
        output_tokens: 2,
        cache_creation_tokens: 3,
        cache_read_tokens: 4,
        ..TokenUsage::default()
    };
    let used = UsageIncrement {
        routed: false,
        turn: Some(turn()),
        attempt: 1,
        message: Some("msg_1".into()),
        model: "m".into(),
        helper: false,
        first: true,
        end: Some(ModelStopReason::ToolCalls),
        usage,
        nano_usd: Some(9),
        confirms: None,
    };
    let said =
        UsageIncrement { helper: true, first: false, end: Some(ModelStopReason::Complete), ..used.clone() };
    let torn = UsageIncrement { end: Some(ModelStopReason::CutOff), nano_usd: None, ..used.clone() };
    let sum = UsageIncrement {
        turn: None,
        attempt: 0,
        message: None,
        first: false,
        end: None,
        confirms: Some(usage),
        ..used.clone()
    };
    let reached = |turn, of, which| {
        Fact::BudgetReached(LimitReached { turn, scope: of, kind: which, limit: 10, used: 11 })
    };
    let limits = BudgetLimits { max_turns: Some(3), max_budget_usd: Some(0.5), max_tokens: Some(1000) };
    let options = SessionOptions {
        max_turns: Some(30),
        max_budget_usd: Some(2.5),
        max_tokens: Some(100_000),
        turn_limits: Some(limits),
        ..SessionOptions::default()
    };
    let ask = MessageOptions { max_tokens: Some(500), ..MessageOptions::default() };
    let mut facts: Vec<Fact> = [used, said, torn, sum].map(Fact::Used).to_vec();
    facts.extend([
        reached(Some(turn()), BudgetScope::Turn, LimitKind::MaxTurns),
        reached(Some(turn()), BudgetScope::Turn, LimitKind::Price),
        reached(None, BudgetScope::Session, LimitKind::MaxBudgetUsd),
        reached(None, BudgetScope::Session, LimitKind::MaxTokens),
        Fact::Created { agent: AgentName::parse("helper").expect("a name"), version: 2, options },
        Fact::Queued { turn: turn(), content: json!("hi"), options: ask, lock: None },
    ]);
    facts
}

/// Usage that the shim read from a response.
pub(crate) fn routed() -> Vec<Fact> {
    let usage = TokenUsage {
        input_tokens: 1,
        output_tokens: 2,
        cache_creation_tokens: 3,
        cache_read_tokens: 4,
        ..TokenUsage::default()
    };
    let used = UsageIncrement {
        turn: None,
        attempt: 0,
        message: Some("msg_1".into()),
        model: "m".into(),
        helper: true,
        routed: true,
        first: false,
        end: None,
        usage,
        nano_usd: Some(9),
        confirms: None,
    };
    vec![Fact::Used(used)]
}

/// Usage of which a part stays in the service's cache for an hour.
pub(crate) fn written_for_an_hour() -> Vec<Fact> {
    let usage = TokenUsage { cache_creation_tokens: 3, cache_creation_1h_tokens: 2, ..TokenUsage::default() };
    let Some(Fact::Used(used)) = routed().pop() else { panic!("one fact about usage") };
    vec![Fact::Used(UsageIncrement { usage, ..used })]
}

/// Resource limits, and what stopped a turn.
pub(crate) fn bounds() -> Vec<Fact> {
    let limits = ResourceLimits::parse("memoryMb=64,diskMb=0,turnSeconds=5").expect("bounds");
    let options = SessionOptions { limits: Some(limits), ..SessionOptions::default() };
    let agent = AgentName::parse("helper").expect("a name");
    let reached = |which| LimitReached {
        turn: Some(turn()),
        scope: BudgetScope::Turn,
        kind: which,
        limit: 10,
        used: 11,
    };
    let mut facts = vec![Fact::Created { agent, version: 2, options }];
    facts.extend(
        [LimitKind::TurnSeconds, LimitKind::DiskMb, LimitKind::MaxFiles]
            .map(|which| Fact::BudgetReached(reached(which))),
    );
    facts
}
