//! What answers of a model used, as the shim reads it from them and as an agent's own lines say, and how much may be used.
//! What it costs is in `price.rs`.

use crate::{MessageOptions, Problem, SessionOptions, TokenUsage, TurnId};
use serde::{Deserialize, Serialize};

/// Whoever says the numbers is in a sandbox: no answer has more tokens than this.
const MAX_TOKENS_PER_ANSWER: u64 = 1_000_000_000;

impl TokenUsage {
    /// As somebody says who may say anything.
    pub fn clamped(self) -> TokenUsage {
        self.with(TokenUsage::default(), |said, _| said.min(MAX_TOKENS_PER_ANSWER))
    }

    /// Of every kind.
    pub fn tokens(&self) -> u64 {
        let TokenUsage { input_tokens, output_tokens, cache_creation_tokens, cache_read_tokens } = *self;
        [output_tokens, cache_creation_tokens, cache_read_tokens]
            .into_iter()
            .fold(input_tokens, u64::saturating_add)
    }

    /// Whether nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == TokenUsage::default()
    }

    /// Both together, each kind by itself.
    pub fn saturating_add(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::saturating_add)
    }

    /// What there is beyond the other.
    pub fn saturating_sub(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::saturating_sub)
    }

    /// Of each kind the smaller number.
    pub fn at_most(self, other: TokenUsage) -> TokenUsage {
        self.with(other, u64::min)
    }

    fn with(self, other: TokenUsage, of: impl Fn(u64, u64) -> u64) -> TokenUsage {
        TokenUsage {
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cache_creation_tokens: of(self.cache_creation_tokens, other.cache_creation_tokens),
            cache_read_tokens: of(self.cache_read_tokens, other.cache_read_tokens),
        }
    }
}

/// So much more was used than the log said before. The sum of these is what a session used: nothing is counted
/// twice, and nothing is taken back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageIncrement {
    /// The turn that it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Which attempt of the turn; 0 without a turn.
    #[serde(default)]
    pub attempt: u32,
    /// The answer, by the model's id for it. None: only a sum of the agent's own knows of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The model that answered.
    pub model: String,
    /// Not of the agent's own loop: a helper's, or beside the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub helper: bool,
    /// Read from the answer itself on its way through the shim, not told by the agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub routed: bool,
    /// The agent had not told of the answer before, or nothing was known of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
    /// The answer is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ModelStopReason>,
    /// How much more was used.
    pub usage: TokenUsage,
    /// In billionths of a dollar, by the prices of that time. None: nobody knows the model's price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_usd: Option<u64>,
    /// The agent's own sum since its last one: so much of what was counted is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirms: Option<TokenUsage>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStopReason {
    /// It calls tools: the agent goes on.
    #[serde(rename = "calls")]
    ToolCalls,
    /// The agent has said what it had to say.
    #[serde(rename = "said")]
    Complete,
    /// It was cut off.
    #[serde(rename = "torn")]
    CutOff,
}

/// What was used, all in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageTotal {
    /// Tokens of each kind.
    pub usage: TokenUsage,
    /// Billionths of a dollar.
    pub nano_usd: u64,
    /// Some of it has no price.
    pub unpriced: bool,
    /// Answers of the agent's own loop.
    pub rounds: u64,
}

impl UsageTotal {
    /// Adds one increment of the log.
    pub fn add(&mut self, used: &UsageIncrement) {
        self.usage = self.usage.saturating_add(used.usage);
        self.nano_usd = self.nano_usd.saturating_add(used.nano_usd.unwrap_or(0));
        // The shim may say no more than that the model was another one, whose price nobody knows.
        self.unpriced |= used.nano_usd.is_none() && (used.routed || !used.usage.is_zero());
        self.rounds += u64::from(used.first && !used.helper);
    }

    /// What was used beyond the other; never less than nothing.
    pub fn saturating_sub(self, other: UsageTotal) -> UsageTotal {
        UsageTotal {
            usage: self.usage.saturating_sub(other.usage),
            nano_usd: self.nano_usd.saturating_sub(other.nano_usd),
            unpriced: self.unpriced,
            rounds: self.rounds.saturating_sub(other.rounds),
        }
    }
}

/// How much may be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BudgetLimits {
    /// Answers of the agent's own loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// Dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// Of every kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
}

impl BudgetLimits {
    /// The limits of a session as a whole.
    pub fn of_session(options: &SessionOptions) -> BudgetLimits {
        let SessionOptions { max_turns, max_budget_usd, max_tokens, .. } = options;
        BudgetLimits { max_turns: *max_turns, max_budget_usd: *max_budget_usd, max_tokens: *max_tokens }
    }

    /// What a message asks for, and otherwise what is usual for its session.
    pub fn of_turn(ask: &MessageOptions, usual: BudgetLimits) -> BudgetLimits {
        BudgetLimits {
            max_turns: ask.max_turns.or(usual.max_turns),
            max_budget_usd: ask.max_budget_usd.or(usual.max_budget_usd),
            max_tokens: ask.max_tokens.or(usual.max_tokens),
        }
    }

    /// These limits, and the others where these have none.
    pub fn with_fallback(self, before: BudgetLimits) -> BudgetLimits {
        BudgetLimits {
            max_turns: self.max_turns.or(before.max_turns),
            max_budget_usd: self.max_budget_usd.or(before.max_budget_usd),
            max_tokens: self.max_tokens.or(before.max_tokens),
        }
    }

    /// None: any number. A limit is not reached before anything was used.
    pub fn tokens_left(&self, spent: &UsageTotal) -> Option<u64> {
        left(self.max_tokens?, spent.usage.tokens())
    }

    /// The same in billionths of a dollar.
    pub fn nano_usd_left(&self, spent: &UsageTotal) -> Option<u64> {
        left(nano(self.max_budget_usd?), spent.nano_usd)
    }

    /// The first of them that is used up: (which, how much that is, how much was used).
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

/// Dollars in billionths.
fn nano(usd: f64) -> u64 {
    // Casts of floats saturate, and what is no number is 0.
    (usd * 1e9).round() as u64
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitKind {
    /// Answers of the agent's loop.
    MaxTurns,
    /// Dollars.
    MaxBudgetUsd,
    /// Tokens of every kind.
    MaxTokens,
    /// A limit in dollars, and a model that has no price.
    Price,
    /// The time that a turn may run.
    TurnSeconds,
    /// The space that files may take.
    DiskMb,
    /// How many files there may be.
    MaxFiles,
}

impl LimitKind {
    /// The name of the option that raises it.
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

/// Whose budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// That of the whole session.
    Session,
    /// That of one turn.
    Turn,
}

/// A limit is used up. Of dollars both numbers are billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReached {
    /// The turn that was stopped, if it was the turn's limit or in a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Whether it was the session's limit or the turn's.
    #[serde(rename = "of")]
    pub scope: BudgetScope,
    /// Which limit.
    #[serde(rename = "which")]
    pub kind: LimitKind,
    /// How much was allowed.
    pub limit: u64,
    /// How much was used.
    pub used: u64,
}

impl LimitReached {
    /// As people count.
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

    /// What clients are told of it, with the remedy.
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

/// Dollars, from billionths of them.
pub fn nano_to_usd(nano: u64) -> f64 {
    nano as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input_tokens: u64) -> TokenUsage {
        TokenUsage { input_tokens, ..TokenUsage::default() }
    }

    #[test]
    fn nothing_that_is_said_is_too_much_to_be_added() {
        let most = TokenUsage {
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            cache_creation_tokens: 1,
            cache_read_tokens: 1,
        };
        assert_eq!(most.tokens(), u64::MAX);
        assert_eq!(most.saturating_add(most).input_tokens, u64::MAX);
        assert_eq!(most.clamped().input_tokens, MAX_TOKENS_PER_ANSWER);
        assert_eq!(tokens(3).saturating_sub(tokens(5)), tokens(0));
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
