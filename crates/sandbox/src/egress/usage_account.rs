//! A session's remaining budget, and the usage of its socket since the server counted. The shim keeps it, so that the
//! budget also ends while no server runs, for every process in the sandbox. Pure except for its lock.

use std::collections::VecDeque;

use ash_model::{ModelPrices, TokenUsage};
use serde::{Deserialize, Serialize};

use super::refusal::EgressRefusal;
use crate::journal::ModelUsage;

/// Beyond this the oldest entries are merged: the server has been away for long, and will count them all or none.
const MAX_ENTRIES: usize = 1024;

/// The remaining budget of a session or of its turn, whichever is less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAllowance {
    /// The end of the journal when the server counted: usage recorded up to here is already subtracted.
    pub position: u64,
    /// None: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// In billionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_usd: Option<u64>,
    /// The prices for `nano_usd`; absent if dollars are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<ModelPrices>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpendingEntry {
    /// Where its record ends in the journal. None: it is not written yet.
    offset: Option<u64>,
    tokens: u64,
    nano_usd: u64,
    unpriced: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum AllowanceState {
    /// No server has named a session for the socket, so no budget could be charged.
    #[default]
    Unclaimed,
    Allowed(UsageAllowance),
    /// Its session has left the sandbox.
    Closed,
}

#[derive(Debug, Default)]
pub(crate) struct UsageAccount {
    standing: AllowanceState,
    spendings: VecDeque<SpendingEntry>,
    /// Records that are not in the journal yet.
    queue: Vec<ModelUsage>,
    /// Answers in progress.
    readings: usize,
    /// The sandbox is ending.
    is_ending: bool,
}

impl UsageAccount {
    /// Marks the end of the sandbox: from now on the sandbox cuts an answer off, not the caller.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    pub(crate) fn set(&mut self, allowance: Option<UsageAllowance>) {
        match allowance {
            Some(allowance) => {
                let counted =
                    |spending: &SpendingEntry| spending.offset.is_some_and(|at| at <= allowance.position);
                self.spendings.retain(|spending| !counted(spending));
                self.standing = AllowanceState::Allowed(allowance);
            }
            None => {
                self.spendings.clear();
                self.standing = AllowanceState::Closed;
            }
        }
    }

    /// Whether a server counts the recorded usage.
    fn is_counted(&self) -> bool {
        matches!(self.standing, AllowanceState::Allowed(_))
    }

    pub(super) fn begin_reading(&mut self) {
        self.readings += 1;
    }

    pub(super) fn end_reading(&mut self) {
        self.readings = self.readings.saturating_sub(1);
    }

    pub(super) fn has_readings(&self) -> bool {
        self.readings > 0
    }

    /// Records the usage of an answer. `more` is the part that was not recorded before.
    pub(super) fn record(&mut self, usage: ModelUsage, more: &TokenUsage) {
        self.spend(&usage.model, more);
        // An older server could not parse the record.
        if self.is_counted() {
            self.queue.push(usage);
        }
    }

    /// Writes the queued records to the journal. `write` returns where the journal then ends.
    pub(crate) fn flush(&mut self, write: impl FnOnce(Vec<ModelUsage>) -> u64) {
        if !self.queue.is_empty() {
            let offset = write(std::mem::take(&mut self.queue));
            self.written(offset);
        }
    }

    fn spend(&mut self, model: &str, more: &TokenUsage) {
        let AllowanceState::Allowed(allowance) = &self.standing else { return };
        let price = allowance.prices.as_ref().map(|prices| prices.price_of(model));
        let spending = SpendingEntry {
            offset: None,
            tokens: more.tokens(),
            nano_usd: price.flatten().map_or(0, |price| price.cost_of(more)),
            unpriced: price.is_some_and(|price| price.is_none()) && !more.is_zero(),
        };
        self.spendings.push_back(spending);
        if self.spendings.len() > MAX_ENTRIES {
            let first = self.spendings.pop_front();
            if let (Some(first), Some(next)) = (first, self.spendings.front_mut()) {
                next.tokens = next.tokens.saturating_add(first.tokens);
                next.nano_usd = next.nano_usd.saturating_add(first.nano_usd);
                next.unpriced |= first.unpriced;
            }
        }
    }

    fn written(&mut self, offset: u64) {
        self.spendings.iter_mut().rev().take_while(|spending| spending.offset.is_none()).for_each(
            |spending| {
                spending.offset = Some(offset);
            },
        );
    }

    /// Refuses a request if the session has no budget left.
    pub(super) fn check(&self) -> Result<(), EgressRefusal> {
        let allowance = match &self.standing {
            AllowanceState::Unclaimed => return Err(EgressRefusal::NoSession),
            AllowanceState::Closed => return Err(EgressRefusal::SessionLeft),
            AllowanceState::Allowed(allowance) => allowance,
        };
        let sum = |of: fn(&SpendingEntry) -> u64| {
            self.spendings.iter().fold(0_u64, |sum, spending| sum.saturating_add(of(spending)))
        };
        if allowance.tokens.is_some_and(|left| sum(|spending| spending.tokens) >= left) {
            return Err(EgressRefusal::BudgetExhausted { limit: "maxTokens" });
        }
        let unpriced = self.spendings.iter().any(|spending| spending.unpriced);
        if allowance.nano_usd.is_some_and(|left| unpriced || sum(|spending| spending.nano_usd) >= left) {
            return Err(EgressRefusal::BudgetExhausted { limit: "maxBudgetUsd" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowance(position: u64, tokens: Option<u64>, nano_usd: Option<u64>) -> Option<UsageAllowance> {
        let prices = nano_usd.map(|_| {
            ModelPrices::with_overrides(
                serde_json::from_str(r#"{"m": {"input": 1, "output": 1}}"#).expect("JSON"),
            )
            .expect("prices")
        });
        Some(UsageAllowance { position, tokens, nano_usd, prices })
    }

    fn tokens(input_tokens: u64) -> TokenUsage {
        TokenUsage { input_tokens, ..TokenUsage::default() }
    }

    #[test]
    fn the_route_closes_when_the_remaining_budget_is_used() {
        let mut account = UsageAccount::default();
        assert_eq!(account.check(), Err(EgressRefusal::NoSession), "no server has said anything");
        account.set(allowance(0, Some(10), None));
        account.spend("m", &tokens(9));
        assert_eq!(account.check(), Ok(()));
        account.spend("m", &tokens(1));
        assert_eq!(account.check(), Err(EgressRefusal::BudgetExhausted { limit: "maxTokens" }));
        account.set(allowance(0, None, None));
        assert_eq!(account.check(), Ok(()));
        account.set(None);
        assert_eq!(account.check(), Err(EgressRefusal::SessionLeft));
    }

    #[test]
    fn usage_that_the_server_has_counted_is_not_subtracted_twice() {
        let mut account = UsageAccount::default();
        account.set(allowance(0, Some(10), None));
        account.spend("m", &tokens(6));
        account.written(100);
        account.spend("m", &tokens(3));
        // The server has counted and subtracted the first record; the second is still open.
        account.set(allowance(100, Some(4), None));
        assert_eq!(account.check(), Ok(()));
        account.written(200);
        account.spend("m", &tokens(1));
        assert_eq!(account.check(), Err(EgressRefusal::BudgetExhausted { limit: "maxTokens" }));
        account.set(allowance(200, Some(2), None));
        assert_eq!(account.check(), Ok(()));
    }

    #[test]
    fn dollars_are_counted_by_the_servers_prices_and_a_model_without_one_closes_the_route() {
        let mut account = UsageAccount::default();
        account.set(allowance(0, None, Some(5_000)));
        account.spend("m", &tokens(4));
        assert_eq!(account.check(), Ok(()));
        account.spend("m", &tokens(1));
        assert_eq!(account.check(), Err(EgressRefusal::BudgetExhausted { limit: "maxBudgetUsd" }));
        account.set(allowance(0, None, Some(1_000_000)));
        assert_eq!(account.check(), Ok(()));
        account.spend("stranger", &tokens(1));
        assert_eq!(account.check(), Err(EgressRefusal::BudgetExhausted { limit: "maxBudgetUsd" }));
    }

    #[test]
    fn a_server_that_is_away_for_long_costs_no_memory() {
        let mut account = UsageAccount::default();
        account.set(allowance(0, Some(3000), None));
        for _ in 0..2999 {
            account.spend("m", &tokens(1));
        }
        assert!(account.spendings.len() <= MAX_ENTRIES && account.check().is_ok());
        account.spend("m", &tokens(1));
        assert!(account.check().is_err());
    }
}
