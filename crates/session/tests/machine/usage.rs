//! Usage that agents and shims report in any order counts once, and a budget lets answers under way finish.

use crate::given::{FIRST, SECOND, awake, finished, fold, queued, started};
use ash_driver::UsageReport;
use ash_model::{
    BudgetLimits, Fact, ModelPrices, ModelStopReason, TokenUsage, TurnId, UsageIncrement, UsageTotal,
};
use ash_session::machine::{LogState, LogStep, SessionBudget, UsageContext, UsageMeter};

/// A session whose first turn runs, and the prices: a token of model `m` costs a millionth of a dollar.
struct Usage {
    state: LogState,
    prices: ModelPrices,
}

fn tokens(input_tokens: u64, output_tokens: u64) -> TokenUsage {
    TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() }
}

fn answer(id: &str, model: &str, usage: TokenUsage, end: Option<ModelStopReason>) -> UsageReport {
    UsageReport::Answer { id: id.into(), model: model.into(), helper: false, usage, end }
}

fn helper(id: &str, usage: TokenUsage) -> UsageReport {
    UsageReport::Answer { id: id.into(), model: "m".into(), helper: true, usage, end: None }
}

fn routed(id: &str, model: &str, usage: TokenUsage) -> UsageReport {
    UsageReport::Routed { id: id.into(), model: model.into(), usage }
}

fn sum(models: &[(&str, TokenUsage)]) -> UsageReport {
    let models = models.iter().map(|(name, usage)| ((*name).to_owned(), *usage)).collect();
    UsageReport::Sum { models, torn: false }
}

/// An increment of model `m` in the first turn.
fn used(message: Option<&str>, usage: TokenUsage) -> UsageIncrement {
    UsageIncrement {
        turn: Some(FIRST),
        attempt: 1,
        message: message.map(str::to_owned),
        helper: false,
        routed: false,
        first: false,
        end: None,
        nano_usd: Some(usage.tokens() * 1000),
        model: "m".into(),
        usage,
        confirms: None,
    }
}

impl Usage {
    fn new() -> Usage {
        let json = r#"{"m": {"input": 1, "output": 1}, "same": {"input": 1, "output": 1}}"#;
        let prices = ModelPrices::with_overrides(serde_json::from_str(json).expect("JSON")).expect("prices");
        Usage { state: fold(&[awake(), queued(FIRST), started(FIRST, 2)]), prices }
    }

    fn apply(&mut self, fact: Fact) {
        self.state.apply(self.state.last_seq + 1, &fact);
    }

    /// What is new in the report, which is also applied.
    fn hear(&mut self, report: UsageReport) -> Vec<UsageIncrement> {
        let when = UsageContext { turn: Some(FIRST), attempt: 1, prices: &self.prices };
        let facts = self.state.meter.account(report, when);
        facts.iter().for_each(|used| self.apply(Fact::Used(used.clone())));
        facts
    }

    /// The session may use this many tokens: whether its turn is stopped now.
    fn stops_at(&mut self, max_tokens: u64) -> bool {
        let session = BudgetLimits { max_tokens: Some(max_tokens), ..BudgetLimits::default() };
        self.state.budget = SessionBudget { session, ..SessionBudget::default() };
        self.state.next_step() != LogStep::Wait
    }
}

const CALLS: Option<ModelStopReason> = Some(ModelStopReason::ToolCalls);
const COMPLETE: Option<ModelStopReason> = Some(ModelStopReason::Complete);

#[test]
fn an_answer_becomes_facts_that_hold_only_what_is_new() {
    let mut usage = Usage::new();
    let more = |output, end| UsageReport::More { usage: tokens(0, output), end };
    let begun = UsageIncrement { first: true, ..used(Some("a"), tokens(100, 1)) };
    assert_eq!(usage.hear(answer("a", "m", tokens(100, 1), None)), [begun]);
    assert_eq!(usage.hear(answer("a", "m", tokens(100, 1), None)), []);
    let over = UsageIncrement { end: CALLS, ..used(Some("a"), tokens(0, 29)) };
    assert_eq!(usage.hear(more(30, CALLS)), [over]);
    assert_eq!(usage.hear(more(30, CALLS)), [], "its end is known");
    assert_eq!(usage.hear(answer("a", "m", tokens(100, 40), CALLS)), [used(Some("a"), tokens(0, 10))]);
    let end = UsageIncrement { first: true, end: COMPLETE, ..used(Some("b"), tokens(5, 0)) };
    assert_eq!(usage.hear(answer("b", "", tokens(5, 0), COMPLETE)), [end], "by the model that answered last");
    assert_eq!(usage.state.meter.model(), Some("m"));
    let total = UsageTotal { usage: tokens(105, 40), nano_usd: 145_000, unpriced: false, rounds: 2 };
    assert_eq!((usage.state.meter.session, usage.state.meter.turn), (total, total));
    assert_eq!(UsageMeter::default().model(), None);
}

#[test]
fn an_end_is_news_even_if_no_token_is() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(9, 1), None));
    let over = UsageIncrement { end: COMPLETE, ..used(Some("a"), tokens(0, 0)) };
    assert_eq!(usage.hear(answer("a", "m", tokens(9, 1), COMPLETE)), [over]);
}

#[test]
fn an_answer_that_the_shim_reported_first_belongs_to_the_agent_when_the_agent_names_it() {
    let mut usage = Usage::new();
    let passed = UsageIncrement { helper: true, routed: true, ..used(Some("a"), tokens(100, 1)) };
    assert_eq!(usage.hear(routed("a", "m", tokens(100, 1))), [passed]);
    assert_eq!(usage.hear(routed("a", "m", tokens(100, 1))), []);
    let own = UsageIncrement { first: true, ..used(Some("a"), tokens(0, 4)) };
    assert_eq!(usage.hear(answer("a", "other", tokens(100, 5), None)), [own], "the service names its model");
    assert_eq!(usage.hear(answer("a", "other", tokens(100, 5), None)), [], "once");
    let more = UsageIncrement { routed: true, ..used(Some("a"), tokens(0, 2)) };
    assert_eq!(usage.hear(routed("a", "", tokens(100, 7))), std::slice::from_ref(&more));
    // A name of the same price is no reason to change it.
    assert_eq!(usage.hear(routed("a", "same", tokens(100, 9))), [more]);
    // The service does not name the model of an answer that the agent has not named yet.
    let unnamed = UsageIncrement { helper: true, routed: true, ..used(Some("b"), tokens(3, 0)) };
    assert_eq!(usage.hear(routed("b", "", tokens(3, 0))), [unnamed]);
    let another =
        UsageIncrement { model: "same".into(), helper: true, routed: true, ..used(Some("c"), tokens(3, 0)) };
    assert_eq!(usage.hear(routed("c", "same", tokens(3, 0))), [another]);
}

#[test]
fn a_dearer_model_than_the_agent_named_is_charged_for_the_whole_answer() {
    let mut usage = Usage::new();
    let json = r#"{"m": {"input": 1, "output": 1}, "dear": {"input": 3, "output": 3}}"#;
    usage.prices = ModelPrices::with_overrides(serde_json::from_str(json).expect("JSON")).expect("prices");
    usage.hear(answer("a", "m", tokens(10, 0), None));
    let owed = UsageIncrement {
        model: "dear".into(),
        routed: true,
        nano_usd: Some(10 * 2000 + 5 * 3000),
        ..used(Some("a"), tokens(0, 5))
    };
    assert_eq!(usage.hear(routed("a", "dear", tokens(10, 5))), [owed]);
    // The model that the agent named may have no price.
    usage.hear(answer("b", "stranger", tokens(10, 0), None));
    let first = UsageIncrement { routed: true, nano_usd: Some(10_000), ..used(Some("b"), tokens(0, 0)) };
    assert_eq!(usage.hear(routed("b", "m", tokens(10, 0))), [first]);
    // A cheaper one gives nothing back.
    let more = UsageIncrement { routed: true, ..used(Some("a"), tokens(0, 1)) };
    assert_eq!(usage.hear(routed("a", "m", tokens(10, 6))), [more]);
}

#[test]
fn a_result_counts_only_for_a_turn_that_nothing_else_reported() {
    let result = |model: &str| UsageReport::Turn { model: model.into(), usage: tokens(7, 3) };
    let mut usage = Usage::new();
    let whole = UsageIncrement { helper: true, ..used(None, tokens(7, 3)) };
    assert_eq!(usage.hear(result("m")), std::slice::from_ref(&whole));
    assert_eq!(usage.hear(result("m")), []);
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(0, 0), COMPLETE));
    assert_eq!(usage.hear(result("")), [whole], "by the model that answered last");
}

#[test]
fn a_sum_ends_the_answer_under_way_and_confirms_what_was_counted() {
    for torn in [false, true] {
        let mut usage = Usage::new();
        usage.hear(answer("a", "m", tokens(10, 0), None));
        let end = if torn { ModelStopReason::CutOff } else { ModelStopReason::Complete };
        let over = UsageIncrement { end: Some(end), ..used(Some("a"), tokens(0, 0)) };
        let counted = if torn { 15 } else { 5 };
        let more =
            UsageIncrement { helper: true, confirms: Some(tokens(15, 0)), ..used(None, tokens(counted, 0)) };
        let models = vec![("m".to_owned(), tokens(15, 0)), ("unused".to_owned(), tokens(0, 0))];
        assert_eq!(usage.hear(UsageReport::Sum { models, torn }), [over, more], "torn: {torn}");
        let again = UsageIncrement { helper: true, confirms: Some(tokens(2, 0)), ..used(None, tokens(2, 0)) };
        assert_eq!(usage.hear(sum(&[("m", tokens(2, 0))])), [again], "everything was confirmed");
    }
}

#[test]
fn models_of_a_sum_share_what_was_not_counted_yet() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(100, 0), COMPLETE));
    let facts = usage.hear(sum(&[("x", tokens(60, 0)), ("y", tokens(60, 0))]));
    let named = |model: &str, usage| UsageIncrement {
        model: model.into(),
        helper: true,
        confirms: Some(tokens(60, 0)),
        nano_usd: None,
        ..used(None, usage)
    };
    assert_eq!(facts, [named("x", tokens(20, 0)), named("y", tokens(0, 0))]);
    assert_eq!(usage.hear(sum(&[("x", tokens(1, 0))])).len(), 1);
    assert_eq!(usage.state.meter.session.usage, tokens(121, 0));
}

#[test]
fn a_sum_confirms_a_model_by_its_own_name_first() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "another", tokens(10, 0), COMPLETE));
    usage.hear(answer("b", "m", tokens(10, 0), COMPLETE));
    usage.hear(sum(&[("m", tokens(10, 0))]));
    let facts = usage.hear(sum(&[("another", tokens(10, 0)), ("m", tokens(5, 0))]));
    let counted: Vec<TokenUsage> = facts.into_iter().map(|used| used.usage).collect();
    assert_eq!(counted, [tokens(0, 0), tokens(5, 0)]);
}

#[test]
fn a_sandbox_that_invents_models_cannot_fill_the_memory_of_its_session() {
    let mut usage = Usage::new();
    let names: Vec<String> = (0..65).map(|n| format!("model{n}")).collect();
    for name in names.iter().chain([&names[0]]) {
        usage.hear(answer(&format!("{name} {}", usage.state.last_seq), name, tokens(1, 0), COMPLETE));
    }
    let mut counted_by_sum = |name: &str, n| {
        let facts = usage.hear(sum(&[(name, tokens(n, 0))]));
        facts.iter().map(|used| used.usage.tokens()).sum::<u64>()
    };
    assert_eq!((counted_by_sum(&names[0], 2), counted_by_sum(&names[63], 1)), (0, 0));
    for name in &names[1..63] {
        assert_eq!(counted_by_sum(name, 1), 0, "{name}");
    }
    assert_eq!(counted_by_sum(&names[64], 1), 1, "64 are tracked");
}

#[test]
fn a_sum_may_name_a_model_by_its_date_or_its_context_window() {
    for (name, same) in
        [("m-20260101", true), ("m[1m]", true), ("m-2026010", false), ("m-abcdefgh", false), ("mm", false)]
    {
        let mut usage = Usage::new();
        usage.hear(answer("a", "m", tokens(10, 0), COMPLETE));
        let models: Vec<String> =
            usage.hear(sum(&[(name, tokens(11, 0))])).into_iter().map(|used| used.model).collect();
        assert_eq!(models, [if same { "m" } else { name }]);
    }
}

#[test]
fn a_new_process_begins_its_sums_at_zero_and_ends_no_answer_of_the_old_one() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), None));
    usage.apply(awake());
    assert_eq!(usage.hear(UsageReport::More { usage: tokens(11, 0), end: COMPLETE }), [], "of which answer?");
    let new = UsageIncrement { helper: true, confirms: Some(tokens(4, 0)), ..used(None, tokens(4, 0)) };
    assert_eq!(usage.hear(sum(&[("m", tokens(4, 0))])), [new]);
    // Neither does it continue after an answer of the old one.
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), CALLS));
    [awake(), queued(SECOND)].into_iter().for_each(|fact| usage.apply(fact));
    usage.apply(Fact::Continued { turn: FIRST, attempt: 2, discard_after: 1, input: 2, calls: Vec::new() });
    assert!(!usage.stops_at(10));
}

#[test]
fn a_budget_stops_an_agent_that_continues_and_no_other() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), COMPLETE));
    assert!(!usage.stops_at(10), "it is over anyway");
    usage.hear(helper("h", tokens(1, 0)));
    assert!(usage.stops_at(10), "the agent waits for its helper");
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), CALLS));
    usage.hear(helper("h", tokens(1, 0)));
    usage.hear(helper("h", tokens(5, 0)));
    assert!(usage.stops_at(15) && !usage.stops_at(16));
    usage.hear(answer("b", "m", tokens(3, 0), None));
    assert!(usage.stops_at(15) && !usage.stops_at(16), "the answer under way may finish");
    // Another answer of the same loop shows that the one before was cut off.
    usage.hear(answer("c", "m", tokens(1, 0), None));
    assert!(usage.stops_at(18) && !usage.stops_at(19));
    // What the shim adds to the answer under way is part of it.
    usage.hear(routed("c", "m", tokens(9, 0)));
    assert!(usage.stops_at(18) && !usage.stops_at(19));
    usage.hear(routed("elsewhere", "m", tokens(1, 0)));
    assert!(usage.stops_at(19));
}

#[test]
fn an_answer_that_was_cut_off_leaves_the_agent_at_rest() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), Some(ModelStopReason::CutOff)));
    assert!(!usage.stops_at(10));
    let all = UsageIncrement { helper: true, confirms: Some(tokens(10, 0)), ..used(None, tokens(10, 0)) };
    assert_eq!(usage.hear(sum(&[("m", tokens(10, 0))])), [all], "no sum contains it");
}

#[test]
fn a_turn_counts_its_own_usage_from_zero() {
    let mut usage = Usage::new();
    usage.hear(answer("a", "m", tokens(10, 0), CALLS));
    [finished(FIRST, None), queued(SECOND), started(SECOND, 3)]
        .into_iter()
        .for_each(|fact| usage.apply(fact));
    assert_eq!(usage.state.meter.turn, UsageTotal::default());
    assert!(!usage.stops_at(1), "it has not answered yet");
    usage.hear(answer("late", "m", tokens(1, 0), None));
    assert_eq!(usage.state.meter.turn, UsageTotal::default(), "of the turn before");
    let of = |turn: Option<TurnId>| Fact::Used(UsageIncrement { turn, ..used(None, tokens(2, 0)) });
    usage.apply(of(None));
    assert_eq!(usage.state.meter.turn.usage, tokens(0, 0));
    usage.apply(of(Some(SECOND)));
    assert_eq!(
        (usage.state.meter.turn.usage, usage.state.meter.session.usage),
        (tokens(2, 0), tokens(15, 0))
    );
    // Outside a turn.
    let mut meter = UsageMeter::default();
    meter.apply(&UsageIncrement { turn: None, ..used(None, tokens(2, 0)) });
    assert_eq!((meter.turn.usage, meter.session.usage), (tokens(0, 0), tokens(2, 0)));
}

#[test]
fn answers_are_remembered_for_agents_that_repeat_them_but_not_for_ever() {
    let mut usage = Usage::new();
    let one = |n: usize| answer(&n.to_string(), "m", tokens(1, 0), CALLS);
    let known = |usage: &mut Usage, n| usage.hear(one(n)).is_empty();
    for n in 0..4097 {
        usage.hear(one(n));
    }
    assert!(known(&mut usage, 1) && known(&mut usage, 4096));
    assert!(!known(&mut usage, 0), "more than 4096 were given since");
    // Of earlier turns the last 64.
    usage.apply(started(FIRST, 3));
    assert!(known(&mut usage, 0) && known(&mut usage, 4096 - 62));
    assert!(!known(&mut usage, 4096 - 63));
}
