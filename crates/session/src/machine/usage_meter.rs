//! What a session used, as a fold over its `used` facts. Reports of an agent become facts that hold only what is new,
//! so every answer counts once however often it is reported, and the sum is exact after any crash.

use ash_driver::UsageReport;
use ash_model::{ModelPrices, ModelStopReason, TokenUsage, TurnId, UsageIncrement, UsageTotal};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// How many answers are known by their ids: of the current turn, and of earlier ones. An agent that resumes a turn
/// reports it from its beginning.
const MAX_KNOWN_ANSWERS: usize = 4096;
const MAX_EARLIER_ANSWERS: usize = 64;
/// How many models are tracked for one process.
const MAX_MODELS: usize = 64;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageMeter {
    /// All usage, also that of failed attempts.
    pub session: UsageTotal,
    /// The running or last turn, in all its attempts.
    pub turn: UsageTotal,
    turn_id: Option<TurnId>,
    /// Shared, because a state is copied with every step and few steps change this.
    known: Arc<VecDeque<MeteredAnswer>>,
    /// The agent's own answer that is under way, and its usage so far.
    open_answer: Option<(String, UsageTotal)>,
    /// The agent's own last answer, and the model that gave it.
    last: Option<String>,
    model: String,
    /// The agent continues: its last answer made tool calls, or a helper is at work.
    expects_more_answers: bool,
    /// Usage of this process that was counted and that no sum of the agent has confirmed yet.
    unconfirmed: BTreeMap<String, TokenUsage>,
}

#[derive(Debug, Clone, PartialEq)]
struct MeteredAnswer {
    id: String,
    model: String,
    helper: bool,
    usage: TokenUsage,
    /// The agent has reported it.
    reported_by_agent: bool,
}

/// When usage happened, and the prices that apply.
#[derive(Debug, Clone, Copy)]
pub struct UsageContext<'p> {
    pub turn: Option<TurnId>,
    pub attempt: u32,
    pub prices: &'p ModelPrices,
}

impl UsageMeter {
    /// The model that answered last.
    pub fn model(&self) -> Option<&str> {
        (!self.model.is_empty()).then_some(self.model.as_str())
    }

    /// `spent` without the answer that is under way, which may finish. The whole of `spent` if the agent continues
    /// after its last answer.
    pub(super) fn without_open_answer(&self, spent: UsageTotal) -> Option<UsageTotal> {
        match &self.open_answer {
            Some((_, open)) => Some(spent.saturating_sub(*open)),
            None => self.expects_more_answers.then_some(spent),
        }
    }

    pub(super) fn begin(&mut self, turn: TurnId) {
        (self.turn, self.turn_id) = (UsageTotal::default(), Some(turn));
        (self.open_answer, self.expects_more_answers) = (None, false);
        let too_many = self.known.len().saturating_sub(MAX_EARLIER_ANSWERS);
        if too_many > 0 {
            Arc::make_mut(&mut self.known).drain(..too_many);
        }
    }

    /// A new process begins: its sums start at zero.
    pub(super) fn begin_process(&mut self) {
        (self.open_answer, self.last, self.expects_more_answers) = (None, None, false);
        self.unconfirmed.clear();
    }

    /// What is new in a report, as facts.
    pub fn account(&self, report: UsageReport, when: UsageContext<'_>) -> Vec<UsageIncrement> {
        match report {
            UsageReport::Answer { id, model, helper, usage, end } => {
                self.answer(id, (model, helper), (usage, end), when).into_iter().collect()
            }
            UsageReport::Routed { id, model, usage } => {
                self.routed(id, model, usage, when).into_iter().collect()
            }
            UsageReport::More { usage, end } => {
                let last = self.last.clone();
                let more = last.and_then(|id| self.answer(id, (String::new(), false), (usage, end), when));
                more.into_iter().collect()
            }
            UsageReport::Turn { model, usage } => {
                self.usage_from_turn_result(model, usage, when).into_iter().collect()
            }
            UsageReport::Sum { models, torn } => self.sum(models, torn, when),
        }
    }

    fn answer(
        &self,
        id: String,
        (model, helper): (String, bool),
        (usage, end): (TokenUsage, Option<ModelStopReason>),
        when: UsageContext<'_>,
    ) -> Option<UsageIncrement> {
        let is_open = self.open_answer.as_ref().is_some_and(|(open, _)| *open == id);
        match self.known.iter().rev().find(|known| known.id == id) {
            // The shim reported it first. The agent says who gave the answer, and when it is over.
            Some(known) if !known.reported_by_agent => {
                let more = usage.saturating_sub(known.usage);
                let used =
                    UsageIncrement { helper, end, first: true, ..when.used(known.model.clone(), more) };
                Some(UsageIncrement { message: Some(id), ..used })
            }
            Some(known) => {
                let (more, end) = (usage.saturating_sub(known.usage), end.filter(|_| is_open));
                let news = !more.is_zero() || end.is_some();
                let used =
                    UsageIncrement { helper: known.helper, end, ..when.used(known.model.clone(), more) };
                news.then_some(UsageIncrement { message: Some(id), ..used })
            }
            None => {
                let model = if model.is_empty() { self.model.clone() } else { model };
                let used = UsageIncrement { helper, end, first: true, ..when.used(model, usage) };
                Some(UsageIncrement { message: Some(id), ..used })
            }
        }
    }

    /// For a turn whose usage is not known from any other report.
    fn usage_from_turn_result(
        &self,
        model: String,
        usage: TokenUsage,
        when: UsageContext<'_>,
    ) -> Option<UsageIncrement> {
        let model = if model.is_empty() { self.model.clone() } else { model };
        self.turn.usage.is_zero().then(|| UsageIncrement { helper: true, ..when.used(model, usage) })
    }

    /// The larger figure of each answer counts, whether the agent or the shim reports it, at the price of the model
    /// that the service names. If the agent has named a cheaper model first, the difference is charged.
    fn routed(
        &self,
        id: String,
        model: String,
        usage: TokenUsage,
        when: UsageContext<'_>,
    ) -> Option<UsageIncrement> {
        let known = self.known.iter().rev().find(|known| known.id == id);
        let price = |model: &str| when.prices.price_of(model);
        let model = match known {
            Some(known) if model.is_empty() || price(&known.model) == price(&model) => known.model.clone(),
            None if model.is_empty() => self.model.clone(),
            Some(_) | None => model,
        };
        let more = usage.saturating_sub(known.map(|known| known.usage).unwrap_or_default());
        let helper = known.is_none_or(|known| known.helper);
        let used = UsageIncrement { helper, routed: true, message: Some(id), ..when.used(model, more) };
        let Some(known) = known.filter(|known| known.model != used.model) else {
            return (!more.is_zero()).then_some(used);
        };
        let cost = |model: &str| price(model).map_or(0, |price| price.cost_of(&known.usage));
        let owed = cost(&used.model).saturating_sub(cost(&known.model));
        let nano_usd = used.nano_usd.map(|more| more.saturating_add(owed));
        Some(UsageIncrement { nano_usd, ..used })
    }

    /// Usage that the agent counted since its last sum and that no line reported: answers of helpers, and requests
    /// outside the conversation. Names of models may differ slightly, so the increments never exceed the excess of all
    /// models together.
    fn sum(
        &self,
        models: Vec<(String, TokenUsage)>,
        torn: bool,
        when: UsageContext<'_>,
    ) -> Vec<UsageIncrement> {
        let mut meter = self.clone();
        let mut facts = Vec::new();
        if let Some((id, _)) = &self.open_answer {
            let end = Some(if torn { ModelStopReason::CutOff } else { ModelStopReason::Complete });
            let nothing = when.used(self.model.clone(), TokenUsage::default());
            let over = UsageIncrement { message: Some(id.clone()), end, ..nothing };
            meter.apply(&over);
            facts.push(over);
        }
        let all = |usages: &mut dyn Iterator<Item = TokenUsage>| {
            usages.fold(TokenUsage::default(), TokenUsage::saturating_add)
        };
        let said = all(&mut models.iter().map(|(_, usage)| *usage));
        let mut left = said.saturating_sub(all(&mut meter.unconfirmed.values().copied()));
        for (name, since) in models.into_iter().filter(|(_, since)| !since.is_zero()) {
            let known = meter.unconfirmed.keys().find(|known| is_same(known, &name)).cloned();
            let model = known.unwrap_or(name);
            let counted = meter.unconfirmed.get(&model).copied().unwrap_or_default();
            let more = since.saturating_sub(counted).at_most(left);
            left = left.saturating_sub(more);
            facts.push(UsageIncrement { helper: true, confirms: Some(since), ..when.used(model, more) });
        }
        facts
    }

    pub fn apply(&mut self, used: &UsageIncrement) {
        self.session.add(used);
        if used.turn.is_some() && used.turn == self.turn_id {
            self.turn.add(used);
        }
        match &used.message {
            Some(id) => self.note_answer(id, used),
            None => self.confirm(used),
        }
    }

    fn note_answer(&mut self, id: &str, used: &UsageIncrement) {
        self.counted(&used.model, used.usage);
        let known = Arc::make_mut(&mut self.known);
        match known.iter_mut().rev().find(|known| known.id == id) {
            Some(known) => {
                known.usage = known.usage.saturating_add(used.usage);
                if used.routed {
                    known.model.clone_from(&used.model);
                }
                if !used.routed && !known.reported_by_agent {
                    (known.reported_by_agent, known.helper) = (true, used.helper);
                }
            }
            None => {
                let UsageIncrement { model, helper, usage, .. } = used;
                let answer = MeteredAnswer {
                    id: id.to_owned(),
                    model: model.clone(),
                    helper: *helper,
                    usage: *usage,
                    reported_by_agent: !used.routed,
                };
                known.push_back(answer);
                if known.len() > MAX_KNOWN_ANSWERS {
                    known.pop_front();
                }
            }
        }
        if used.helper {
            self.expects_more_answers |= used.first;
            return;
        }
        if used.first {
            // The previous answer did not finish, and was requested again.
            self.cut_off_answer();
            (self.last, self.model) = (Some(id.to_owned()), used.model.clone());
            (self.open_answer, self.expects_more_answers) =
                (Some((id.to_owned(), UsageTotal::default())), false);
        }
        if let Some((_, spent)) = self.open_answer.as_mut().filter(|(open, _)| open == id) {
            spent.add(used);
        }
        match used.end {
            Some(ModelStopReason::CutOff) => self.cut_off_answer(),
            Some(end @ (ModelStopReason::ToolCalls | ModelStopReason::Complete)) => {
                (self.open_answer, self.expects_more_answers) = (None, end == ModelStopReason::ToolCalls)
            }
            None => {}
        }
    }

    /// The answer under way was cut off: no sum of the agent contains it.
    fn cut_off_answer(&mut self) {
        let Some((id, _)) = self.open_answer.take() else { return };
        let torn = self.known.iter().rev().find(|known| known.id == id);
        if let Some((model, usage)) = torn.map(|known| (known.model.clone(), known.usage))
            && let Some(counted) = self.unconfirmed.get_mut(&model)
        {
            *counted = counted.saturating_sub(usage);
        }
    }

    fn confirm(&mut self, used: &UsageIncrement) {
        self.counted(&used.model, used.usage);
        let Some(mut left) = used.confirms else { return };
        let mut confirm = |counted: &mut TokenUsage| {
            let both = counted.at_most(left);
            (*counted, left) = (counted.saturating_sub(both), left.saturating_sub(both));
        };
        // The agent's own name for the model first. The rest was counted under other names.
        self.unconfirmed.get_mut(&used.model).into_iter().for_each(&mut confirm);
        self.unconfirmed.values_mut().for_each(confirm);
    }

    fn counted(&mut self, model: &str, usage: TokenUsage) {
        if self.unconfirmed.len() < MAX_MODELS || self.unconfirmed.contains_key(model) {
            let counted = self.unconfirmed.entry(model.to_owned()).or_default();
            *counted = counted.saturating_add(usage);
        }
    }
}

impl UsageContext<'_> {
    fn used(&self, model: String, usage: TokenUsage) -> UsageIncrement {
        UsageIncrement {
            turn: self.turn,
            attempt: self.attempt,
            message: None,
            helper: false,
            routed: false,
            first: false,
            end: None,
            nano_usd: self.prices.price_of(&model).map(|price| price.cost_of(&usage)),
            model,
            usage,
            confirms: None,
        }
    }
}

/// An agent's sum may name a model without its date, or with the size of its context window.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |name: &str| {
        let name = name.split('[').next().unwrap_or_default().to_owned();
        let dated = name.rsplit_once('-').filter(|(_, date)| date.len() == 8 && date.parse::<u32>().is_ok());
        dated.map(|(name, _)| name.to_owned()).unwrap_or(name)
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input_tokens: u64, output_tokens: u64) -> TokenUsage {
        TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() }
    }

    fn answer(id: &str, helper: bool, usage: TokenUsage, end: Option<ModelStopReason>) -> UsageReport {
        UsageReport::Answer { id: id.into(), model: "m".into(), helper, usage, end }
    }

    fn more(output: u64, end: Option<ModelStopReason>) -> UsageReport {
        UsageReport::More { usage: usage(0, output), end }
    }

    fn sum(usage: TokenUsage, torn: bool) -> UsageReport {
        UsageReport::Sum { models: vec![("m".into(), usage)], torn }
    }

    /// Applies one report after the other. A meter that only reads the facts must arrive at the same state.
    fn heard(reports: impl IntoIterator<Item = UsageReport>) -> (UsageMeter, Vec<UsageIncrement>) {
        let prices = ModelPrices::with_overrides(
            serde_json::from_str(r#"{"m": {"input": 1, "output": 1}}"#).expect("JSON"),
        )
        .expect("prices");
        let when = UsageContext { turn: None, attempt: 1, prices: &prices };
        let (mut meter, mut facts) = (UsageMeter::default(), Vec::new());
        for report in reports {
            for used in meter.account(report, when) {
                meter.apply(&used);
                facts.push(used);
            }
        }
        let mut replayed = UsageMeter::default();
        facts.iter().for_each(|used| replayed.apply(used));
        assert_eq!(replayed, meter);
        (meter, facts)
    }

    #[test]
    fn an_answer_counts_once_with_what_it_came_to() {
        let (meter, facts) = heard([
            answer("a", false, usage(100, 1), None),
            answer("a", false, usage(100, 1), None),
            more(30, Some(ModelStopReason::ToolCalls)),
            answer("a", false, usage(100, 1), None),
            answer("b", false, usage(200, 1), None),
            more(40, Some(ModelStopReason::Complete)),
            sum(usage(300, 70), false),
        ]);
        assert_eq!((meter.session.usage, meter.session.rounds), (usage(300, 70), 2));
        assert_eq!(meter.session.nano_usd, 370 * 1000);
        assert_eq!(facts.len(), 5, "{facts:?}");
        assert_eq!(meter.unconfirmed["m"], usage(0, 0));
    }

    #[test]
    fn what_only_a_sum_knows_of_is_added_to_what_was_counted() {
        let helper = answer("h", true, usage(50, 1), None);
        let (meter, _) = heard([
            answer("a", false, usage(100, 10), Some(ModelStopReason::ToolCalls)),
            helper.clone(),
            answer("b", false, usage(10, 3), Some(ModelStopReason::Complete)),
            sum(usage(160, 13 + 7), false),
        ]);
        assert_eq!((meter.session.usage, meter.session.rounds), (usage(160, 20), 2));
        // An answer that was still under way then is in the next sum.
        let (meter, _) = heard([helper, sum(usage(5, 5), false), sum(usage(50, 7), false)]);
        assert_eq!(meter.session.usage, usage(55, 12));
    }

    #[test]
    fn an_answer_that_was_cut_off_counts_and_hides_nothing_of_the_next_sum() {
        let (meter, _) = heard([
            answer("a", false, usage(100, 1), None),
            sum(usage(0, 0), true),
            answer("b", false, usage(10, 1), None),
            answer("h", true, usage(50, 1), None),
            more(5, Some(ModelStopReason::Complete)),
            sum(usage(60, 5 + 9), false),
        ]);
        assert_eq!(meter.session.usage, usage(160, 15));
    }

    #[test]
    fn another_name_of_the_same_model_counts_nothing_twice() {
        for name in ["m-20260101", "m[1m]", "something-else"] {
            let models = vec![(name.to_owned(), usage(100, 30))];
            let (meter, _) = heard([
                answer("a", false, usage(100, 1), None),
                more(30, Some(ModelStopReason::Complete)),
                UsageReport::Sum { models: models.clone(), torn: false },
                answer("b", false, usage(100, 30), Some(ModelStopReason::Complete)),
                UsageReport::Sum { models, torn: false },
            ]);
            assert_eq!(meter.session.usage, usage(200, 60), "{name}");
        }
    }

    #[test]
    fn the_answer_under_way_is_let_finish() {
        let settled = |reports: Vec<UsageReport>| {
            let meter = heard(reports).0;
            meter.without_open_answer(meter.session).map(|spent| (spent.usage.tokens(), spent.rounds))
        };
        let first = answer("a", false, usage(10, 1), None);
        assert_eq!(settled(vec![first.clone()]), Some((0, 0)));
        assert_eq!(
            settled(vec![first.clone(), more(5, Some(ModelStopReason::Complete))]),
            None,
            "nothing is to come"
        );
        assert_eq!(settled(vec![first.clone(), more(5, Some(ModelStopReason::ToolCalls))]), Some((15, 1)));
        let second = answer("b", false, usage(100, 1), None);
        assert_eq!(settled(vec![first, more(5, Some(ModelStopReason::Complete)), second]), Some((15, 1)));
    }

    #[test]
    fn a_model_without_a_price_is_noticed() {
        let stranger = UsageReport::Answer {
            id: "a".into(),
            model: "stranger".into(),
            helper: false,
            usage: usage(1, 1),
            end: Some(ModelStopReason::Complete),
        };
        let (meter, facts) = heard([stranger]);
        assert!(meter.session.unpriced && facts[0].nano_usd.is_none());
        assert_eq!(meter.model(), Some("stranger"));
    }

    fn routed(id: &str, usage: TokenUsage) -> UsageReport {
        UsageReport::Routed { id: id.into(), model: "m".into(), usage }
    }

    #[test]
    fn the_larger_figure_of_an_answer_counts_whoever_tells_of_it() {
        let orders = [
            vec![
                routed("a", usage(100, 1)),
                routed("a", usage(100, 30)),
                answer("a", false, usage(100, 1), None),
            ],
            vec![answer("a", false, usage(100, 1), None), routed("a", usage(100, 30))],
            vec![
                routed("a", usage(90, 1)),
                answer("a", false, usage(100, 30), Some(ModelStopReason::Complete)),
            ],
        ];
        for reports in orders {
            let (meter, _) = heard(reports.clone());
            assert_eq!((meter.session.usage, meter.session.rounds), (usage(100, 30), 1), "{reports:?}");
            assert_eq!(meter.last.as_deref(), Some("a"));
        }
        let (_, facts) = heard([
            answer("a", false, usage(100, 30), Some(ModelStopReason::Complete)),
            routed("a", usage(100, 30)),
        ]);
        assert_eq!(facts.len(), 1, "no news is no fact: {facts:?}");
    }

    #[test]
    fn an_answer_is_priced_by_the_model_that_it_names_itself() {
        let (cheap, dear) = ("claude-haiku-5-5", "claude-opus-5-5");
        let answer = |model: &str, used| UsageReport::Answer {
            id: "a".into(),
            model: model.into(),
            helper: false,
            usage: used,
            end: None,
        };
        let routed =
            |model: &str, used| UsageReport::Routed { id: "a".into(), model: model.into(), usage: used };
        let cost = ModelPrices::default().price_of(dear).expect("listed").cost_of(&usage(100, 30));
        for reports in [
            vec![answer(cheap, usage(0, 0)), routed(dear, usage(100, 30))],
            vec![answer(cheap, usage(100, 30)), routed(dear, usage(100, 30))],
            vec![answer(cheap, usage(100, 1)), routed(dear, usage(100, 2)), answer(cheap, usage(100, 30))],
            vec![routed(dear, usage(100, 30)), answer(cheap, usage(100, 30)), routed(dear, usage(100, 30))],
        ] {
            let (meter, facts) = heard(reports.clone());
            assert_eq!((meter.session.usage, meter.session.nano_usd), (usage(100, 30), cost), "{reports:?}");
            assert_eq!(meter.session.rounds, 1, "{facts:?}");
        }
        // A model without a price is noticed, whatever name the agent gives it.
        let (meter, _) = heard([answer(cheap, usage(100, 30)), routed("stranger", usage(100, 30))]);
        assert!(meter.session.unpriced);
        // A service that names no model does not contradict the agent.
        let (meter, _) = heard([answer(dear, usage(100, 1)), routed("", usage(100, 30))]);
        assert_eq!(meter.session.nano_usd, cost);
    }

    #[test]
    fn an_answer_that_only_one_side_knows_counts_as_it_is() {
        let (meter, facts) = heard([
            routed("by hand", usage(40, 4)),
            answer("a", false, usage(100, 30), Some(ModelStopReason::Complete)),
            routed("torn", usage(7, 1)),
        ]);
        assert_eq!((meter.session.usage, meter.session.rounds), (usage(147, 35), 1));
        assert!(facts[0].routed && !facts[1].routed);
        // Requests by other processes in the sandbox neither begin nor end what the agent does.
        assert_eq!(meter.last.as_deref(), Some("a"));
    }

    #[test]
    fn usage_that_only_a_result_reports_is_counted() {
        let result = UsageReport::Turn { model: "m".into(), usage: usage(7, 3) };
        let (meter, _) = heard([result.clone()]);
        assert_eq!((meter.session.usage, meter.session.nano_usd), (usage(7, 3), 10 * 1000));
        // The turn's answers were reported already.
        let prices = ModelPrices::default();
        let turn = TurnId::fresh();
        let when = UsageContext { turn: Some(turn), attempt: 1, prices: &prices };
        let mut meter = UsageMeter::default();
        meter.begin(turn);
        for report in [answer("a", false, usage(7, 3), Some(ModelStopReason::Complete)), result] {
            meter.account(report, when).iter().for_each(|used| meter.apply(used));
        }
        assert_eq!(meter.session.usage, usage(7, 3));
    }

    #[test]
    fn a_sum_of_the_agents_adds_nothing_to_what_passed_the_shim() {
        let (meter, _) = heard([
            routed("a", usage(100, 30)),
            answer("a", false, usage(100, 1), None),
            routed("helper", usage(50, 5)),
            sum(usage(150, 35), false),
            routed("b", usage(10, 2)),
            answer("b", false, usage(10, 2), Some(ModelStopReason::Complete)),
            sum(usage(10, 2), false),
        ]);
        assert_eq!(meter.session.usage, usage(160, 37));
    }
}
