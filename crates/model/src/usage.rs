//! Token usage of model answers, as the shim reads it from responses and as agents report it, and the budgets for it.
//! Prices are in `price.rs`.

use crate::{MessageOptions, Problem, SessionOptions, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Reports come from the sandbox and are untrusted, so no answer counts for more tokens than this.
const MAX_TOKENS_PER_ANSWER: u64 = 1_000_000_000;

/// Tokens by kind, of one or more answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenUsage {
    /// Input outside the service's cache.
    #[schema(required)]
    pub input_tokens: u64,
    /// Output of the model.
    #[schema(required)]
    pub output_tokens: u64,
    /// Input that was written to the service's cache.
    #[schema(required)]
    pub cache_creation_tokens: u64,
    /// Input that was read from the service's cache.
    #[schema(required)]
    pub cache_read_tokens: u64,
    /// The part of the input written to the cache that the service keeps for an hour, which costs more.
    #[serde(rename = "cacheCreation1hTokens", skip_serializing_if = "crate::fact::is_zero")]
    pub cache_creation_1h_tokens: u64,
}

impl TokenUsage {
    /// The counts limited to the maximum, for untrusted reports.
    pub fn clamped(self) -> TokenUsage {
        self.with(TokenUsage::default(), |said, _| said.min(MAX_TOKENS_PER_ANSWER))
    }

    /// The `usage` of an answer of the Messages API, which Claude Code passes on. It comes from outside: the counts are
    /// limited to the maximum.
    pub fn of_messages_api(usage: &Value) -> TokenUsage {
        let whole = TokenUsage::of_iteration(usage);
        // The service may call models several times for one answer, for example to compact the conversation first. The
        // outer counts leave some of these calls out.
        let parts = usage["iterations"].as_array().into_iter().flatten().map(TokenUsage::of_iteration);
        let sum = parts.fold(TokenUsage::default(), TokenUsage::saturating_add);
        whole.at_least(sum).clamped()
    }

    fn of_iteration(usage: &Value) -> TokenUsage {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let created = &usage["cache_creation"];
        let for_an_hour = number(&created["ephemeral_1h_input_tokens"]);
        let by_duration = number(&created["ephemeral_5m_input_tokens"]).saturating_add(for_an_hour);
        TokenUsage {
            input_tokens: number(&usage["input_tokens"]),
            output_tokens: number(&usage["output_tokens"]),
            cache_creation_tokens: number(&usage["cache_creation_input_tokens"]).max(by_duration),
            cache_creation_1h_tokens: for_an_hour,
            cache_read_tokens: number(&usage["cache_read_input_tokens"]),
        }
    }

    /// The sum of all kinds.
    pub fn tokens(&self) -> u64 {
        let TokenUsage {
            input_tokens,
            output_tokens,
            cache_creation_tokens,
            cache_creation_1h_tokens: _,
            cache_read_tokens,
        } = *self;
        [output_tokens, cache_creation_tokens, cache_read_tokens]
            .into_iter()
            .fold(input_tokens, u64::saturating_add)
    }

    /// Whether nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == TokenUsage::default()
    }

    /// The sum, separately for each kind.
    pub fn saturating_add(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::saturating_add)
    }

    /// The difference, separately for each kind.
    pub fn saturating_sub(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::saturating_sub)
    }

    /// The minimum, separately for each kind.
    pub fn at_most(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::min)
    }

    /// The maximum, separately for each kind.
    pub fn at_least(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::max)
    }

    fn with(self, other: TokenUsage, of: impl Fn(u64, u64) -> u64) -> TokenUsage {
        TokenUsage {
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cache_creation_tokens: of(self.cache_creation_tokens, other.cache_creation_tokens),
            cache_creation_1h_tokens: of(self.cache_creation_1h_tokens, other.cache_creation_1h_tokens),
            cache_read_tokens: of(self.cache_read_tokens, other.cache_read_tokens),
        }
    }
}

/// An increase over the usage that the log already has. The sum of these is the session's usage: nothing is counted
/// twice, and nothing is subtracted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageIncrement {
    /// The turn, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The attempt of the turn; 0 without a turn.
    #[serde(default)]
    pub attempt: u32,
    /// The answer, by the model's id for it. `None`: the amount comes only from a sum of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The model that answered.
    pub model: String,
    /// The answer is outside the agent's main loop: from a subagent or beside the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub helper: bool,
    /// The shim read it from the response itself, instead of the agent reporting it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub routed: bool,
    /// The first report of the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
    /// How the answer ended, if it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ModelStopReason>,
    /// The increase.
    pub usage: TokenUsage,
    /// The cost in billionths of a dollar, at the prices of that time. `None`: the model has no known price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_usd: Option<u64>,
    /// How much of the agent's own sum since its last one was already counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirms: Option<TokenUsage>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStopReason {
    /// The answer calls tools: the agent continues.
    #[serde(rename = "calls")]
    ToolCalls,
    /// The answer is complete.
    #[serde(rename = "said")]
    Complete,
    /// The answer was cut off.
    #[serde(rename = "torn")]
    CutOff,
}

/// The total usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageTotal {
    /// Tokens of each kind.
    pub usage: TokenUsage,
    /// Billionths of a dollar.
    pub nano_usd: u64,
    /// A part of the usage has no price.
    pub unpriced: bool,
    /// Answers of the agent's own loop.
    pub rounds: u64,
}

impl UsageTotal {
    /// Adds one increment of the log.
    pub fn add(&mut self, used: &UsageIncrement) {
        self.usage = self.usage.saturating_add(used.usage);
        self.nano_usd = self.nano_usd.saturating_add(used.nano_usd.unwrap_or(0));
        // The shim may report only that another model answered, whose price is not known.
        self.unpriced |= used.nano_usd.is_none() && (used.routed || !used.usage.is_zero());
        self.rounds += u64::from(used.first && !used.helper);
    }

    /// The difference; never negative.
    pub fn saturating_sub(self, other: UsageTotal) -> UsageTotal {
        UsageTotal {
            usage: self.usage.saturating_sub(other.usage),
            nano_usd: self.nano_usd.saturating_sub(other.nano_usd),
            unpriced: self.unpriced,
            rounds: self.rounds.saturating_sub(other.rounds),
        }
    }
}

/// Limits for the usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BudgetLimits {
    /// Answers of the agent's own loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_turns: Option<u32>,
    /// Dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_budget_usd: Option<f64>,
    /// Tokens of all kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_tokens: Option<u64>,
}

impl BudgetLimits {
    /// The limits of a session as a whole.
    pub fn of_session(options: &SessionOptions) -> BudgetLimits {
        let SessionOptions { max_turns, max_budget_usd, max_tokens, .. } = options;
        BudgetLimits { max_turns: *max_turns, max_budget_usd: *max_budget_usd, max_tokens: *max_tokens }
    }

    /// The limits of a message, with the session's defaults.
    pub fn of_turn(ask: &MessageOptions, usual: BudgetLimits) -> BudgetLimits {
        BudgetLimits {
            max_turns: ask.max_turns.or(usual.max_turns),
            max_budget_usd: ask.max_budget_usd.or(usual.max_budget_usd),
            max_tokens: ask.max_tokens.or(usual.max_tokens),
        }
    }

    /// These limits, with the others where these are `None`.
    pub fn with_fallback(self, before: BudgetLimits) -> BudgetLimits {
        BudgetLimits {
            max_turns: self.max_turns.or(before.max_turns),
            max_budget_usd: self.max_budget_usd.or(before.max_budget_usd),
            max_tokens: self.max_tokens.or(before.max_tokens),
        }
    }

    /// `None`: no limit. A limit is never reached before the first usage.
    pub fn tokens_left(&self, spent: &UsageTotal) -> Option<u64> {
        left(self.max_tokens?, spent.usage.tokens())
    }

    /// The same in billionths of a dollar.
    pub fn nano_usd_left(&self, spent: &UsageTotal) -> Option<u64> {
        left(nano(self.max_budget_usd?), spent.nano_usd)
    }

    /// The first limit that is used up: (kind, limit, usage).
    pub fn first_reached(&self, spent: &UsageTotal) -> Option<(LimitKind, u64, u64)> {
        let limits = [
            (LimitKind::MaxTurns, self.max_turns.map(u64::from), spent.rounds),
            (LimitKind::MaxBudgetUsd, self.max_budget_usd.map(nano), spent.nano_usd),
            (LimitKind::MaxTokens, self.max_tokens, spent.usage.tokens()),
        ];
        let limits = limits.into_iter().filter_map(|(which, limit, used)| Some((which, limit?, used)));
        limits.into_iter().find(|(_, limit, used)| *used > 0 && used >= limit)
    }
}

fn left(limit: u64, used: u64) -> Option<u64> {
    Some(if used == 0 { limit.max(1) } else { limit.saturating_sub(used) })
}

/// Converts dollars to billionths.
fn nano(usd: f64) -> u64 {
    // Float casts saturate, and NaN becomes 0.
    (usd * 1e9).round() as u64
}

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum LimitKind {
    /// Answers of the agent's loop.
    MaxTurns,
    /// Dollars.
    MaxBudgetUsd,
    /// Tokens of every kind.
    MaxTokens,
    /// A limit in dollars, with a model that has no price.
    Price,
    /// The duration of a turn.
    TurnSeconds,
    /// The disk space of files.
    DiskMb,
    /// The number of files.
    MaxFiles,
}

impl LimitKind {
    /// The name of the option for this limit.
    pub fn as_str(self) -> &'static str {
        match self {
            LimitKind::MaxTurns => "maxTurns",
            LimitKind::MaxBudgetUsd | LimitKind::Price => "maxBudgetUsd",
            LimitKind::MaxTokens => "maxTokens",
            LimitKind::TurnSeconds => "turnSeconds",
            LimitKind::DiskMb => "diskMb",
            LimitKind::MaxFiles => "maxFiles",
        }
    }
}

/// The scope of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// The whole session.
    Session,
    /// One turn.
    Turn,
}

/// A limit is used up. Dollars are in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReached {
    /// The turn that was stopped, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The session's limit or the turn's.
    #[serde(rename = "of")]
    pub scope: BudgetScope,
    /// The kind of the limit.
    #[serde(rename = "which")]
    pub kind: LimitKind,
    /// The limit.
    pub limit: u64,
    /// The usage.
    pub used: u64,
}

impl LimitReached {
    /// The number in the unit that people read.
    pub fn display_value(&self, number: u64) -> serde_json::Value {
        match self.kind {
            LimitKind::MaxBudgetUsd | LimitKind::Price => serde_json::json!(nano_to_usd(number)),
            LimitKind::MaxTurns
            | LimitKind::MaxTokens
            | LimitKind::TurnSeconds
            | LimitKind::DiskMb
            | LimitKind::MaxFiles => number.into(),
        }
    }

    /// The problem that clients see, with the remedy.
    pub fn problem(&self) -> Problem {
        match self.kind {
            LimitKind::Price => Problem::new(
                "unpriced_model",
                "The turn was stopped: there is a limit in dollars, and nobody knows what its model costs. Give the model a price with ASH_PRICES, or limit maxTokens instead.",
            ),
            LimitKind::MaxTurns | LimitKind::MaxBudgetUsd | LimitKind::MaxTokens => {
                Problem::new("budget_reached", self.to_string())
            }
            LimitKind::TurnSeconds => Problem::new(
                "turn_timeout",
                format!(
                    "The turn was stopped: it may run for {} s. Send a message to go on, or raise limits.turnSeconds with PATCH …/config",
                    self.limit
                ),
            ),
            LimitKind::DiskMb => Problem::new(
                "disk_limit",
                format!(
                    "The sandbox was ended: its files take {} MB of the disk, and may take {}. Remove some with DELETE …/files/PATH, or raise limits.diskMb with PATCH …/config, and send a message to go on",
                    self.used, self.limit
                ),
            ),
            LimitKind::MaxFiles => Problem::new(
                "disk_limit",
                format!(
                    "The sandbox was ended: it has {} files, and may have {}. Remove some with DELETE …/files/PATH, or raise limits.maxFiles with PATCH …/config, and send a message to go on",
                    self.used, self.limit
                ),
            ),
        }
    }
}

impl std::fmt::Display for LimitReached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, limit, used) =
            (self.kind.as_str(), self.display_value(self.limit), self.display_value(self.used));
        match self.scope {
            BudgetScope::Session => write!(
                f,
                "The session's budget is used up: {name} is {limit}, and {used} were used. Raise it with PATCH …/config or POST …/resume {{\"{name}\": …}}, and the session goes on"
            ),
            BudgetScope::Turn => write!(
                f,
                "The turn was stopped: its {name} is {limit}, and {used} were used. Send a message with a higher one to go on"
            ),
        }
    }
}

/// Converts billionths of a dollar to dollars.
pub fn nano_to_usd(nano: u64) -> f64 {
    nano as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokens(input_tokens: u64) -> TokenUsage {
        TokenUsage { input_tokens, ..TokenUsage::default() }
    }

    #[test]
    fn the_largest_reports_can_be_added() {
        let most = TokenUsage {
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            cache_creation_tokens: 1,
            cache_read_tokens: 1,
            ..TokenUsage::default()
        };
        assert_eq!(most.tokens(), u64::MAX);
        assert_eq!(most.saturating_add(most).input_tokens, u64::MAX);
        assert_eq!(most.clamped().input_tokens, MAX_TOKENS_PER_ANSWER);
        assert_eq!(tokens(3).saturating_sub(tokens(5)), tokens(0));
    }

    #[test]
    fn the_hour_cache_and_iterations_beside_the_answer_are_counted() {
        let written = json!({"input_tokens": 7, "output_tokens": 2, "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "cache_read_input_tokens": 4, "iterations": null});
        let expected = TokenUsage {
            input_tokens: 7,
            output_tokens: 2,
            cache_creation_tokens: 30,
            cache_creation_1h_tokens: 20,
            cache_read_tokens: 4,
        };
        assert_eq!(TokenUsage::of_messages_api(&written), expected);
        assert_eq!(expected.tokens(), 43, "the part of an hour is not counted twice");
        let compacted = json!({"input_tokens": 10, "output_tokens": 5, "iterations": [
            {"type": "compaction", "input_tokens": 900, "output_tokens": 40},
            {"type": "message", "input_tokens": 10, "output_tokens": 5}]});
        let sum = TokenUsage { input_tokens: 910, output_tokens: 45, ..TokenUsage::default() };
        assert_eq!(TokenUsage::of_messages_api(&compacted), sum);
        let lie = json!({"input_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": u64::MAX}, "iterations": "x"});
        let most = TokenUsage {
            input_tokens: 1,
            cache_creation_tokens: MAX_TOKENS_PER_ANSWER,
            cache_creation_1h_tokens: MAX_TOKENS_PER_ANSWER,
            ..TokenUsage::default()
        };
        assert_eq!(TokenUsage::of_messages_api(&lie), most);
    }

    #[test]
    fn a_limit_is_reached_when_it_is_used_up_and_not_before_anything_was() {
        let limits = BudgetLimits { max_turns: Some(2), max_budget_usd: Some(0.5), max_tokens: Some(100) };
        let spent =
            |rounds, nano_usd, input| UsageTotal { rounds, nano_usd, usage: tokens(input), unpriced: false };
        assert_eq!(limits.first_reached(&spent(1, 499_999_999, 99)), None);
        assert_eq!(limits.first_reached(&spent(2, 0, 0)), Some((LimitKind::MaxTurns, 2, 2)));
        let half = 500_000_000;
        assert_eq!(limits.first_reached(&spent(1, half, 0)), Some((LimitKind::MaxBudgetUsd, half, half)));
        assert_eq!(limits.first_reached(&spent(1, 0, 101)), Some((LimitKind::MaxTokens, 100, 101)));
        let nothing = BudgetLimits { max_budget_usd: Some(0.0), ..BudgetLimits::default() };
        assert_eq!(nothing.first_reached(&spent(0, 0, 0)), None);
        assert!(nothing.first_reached(&spent(1, 1, 1)).is_some());
    }
}
