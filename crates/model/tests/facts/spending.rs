//! What was used, and what may be.

use super::*;

/// What was used, and what may be.
pub(crate) fn budgets() -> Vec<Fact> {
    let usage = Usage { input_tokens: 1, output_tokens: 2, cache_creation_tokens: 3, cache_read_tokens: 4 };
    let used = Used {
        routed: false,
        turn: Some(turn()),
        attempt: 1,
        message: Some("msg_1".into()),
        model: "m".into(),
        helper: false,
        first: true,
        end: Some(End::Calls),
        usage,
        nano_usd: Some(9),
        confirms: None,
    };
    let said = Used { helper: true, first: false, end: Some(End::Said), ..used.clone() };
    let torn = Used { end: Some(End::Torn), nano_usd: None, ..used.clone() };
    let sum = Used {
        turn: None,
        attempt: 0,
        message: None,
        first: false,
        end: None,
        confirms: Some(usage),
        ..used.clone()
    };
    let reached = |turn, of, which| Fact::BudgetReached(Reached { turn, of, which, limit: 10, used: 11 });
    let limits = Limits { max_turns: Some(3), max_budget_usd: Some(0.5), max_tokens: Some(1000) };
    let options = Options {
        max_turns: Some(30),
        max_budget_usd: Some(2.5),
        max_tokens: Some(100_000),
        turn_limits: Some(limits),
        ..Options::default()
    };
    let ask = Ask { max_tokens: Some(500), ..Ask::default() };
    let mut facts: Vec<Fact> = [used, said, torn, sum].map(Fact::Used).to_vec();
    facts.extend([
        reached(Some(turn()), BudgetOf::Turn, Which::MaxTurns),
        reached(Some(turn()), BudgetOf::Turn, Which::Price),
        reached(None, BudgetOf::Session, Which::MaxBudgetUsd),
        reached(None, BudgetOf::Session, Which::MaxTokens),
        Fact::Created { agent: AgentName::parse("helper").expect("a name"), version: 2, options },
        Fact::Queued { turn: turn(), content: json!("hi"), ask, lock: None },
    ]);
    facts
}

/// What the shim read from an answer.
pub(crate) fn routed() -> Vec<Fact> {
    let usage = Usage { input_tokens: 1, output_tokens: 2, cache_creation_tokens: 3, cache_read_tokens: 4 };
    let used = Used {
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

/// How much of the machine a sandbox may take, and what stopped a turn.
pub(crate) fn bounds() -> Vec<Fact> {
    let limits = Bounds::parse("memoryMb=64,diskMb=0,turnSeconds=5").expect("bounds");
    let options = Options { limits: Some(limits), ..Options::default() };
    let agent = AgentName::parse("helper").expect("a name");
    let reached = |which| Reached { turn: Some(turn()), of: BudgetOf::Turn, which, limit: 10, used: 11 };
    let mut facts = vec![Fact::Created { agent, version: 2, options }];
    facts.extend(
        [Which::TurnSeconds, Which::DiskMb, Which::MaxFiles].map(|which| Fact::BudgetReached(reached(which))),
    );
    facts
}
