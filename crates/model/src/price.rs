//! Model prices. One table for every agent program, because the costs that a program reports are its own estimate.

use crate::TokenUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// List prices in dollars per million tokens: input, output, cache write, cache read. Operators with other prices
/// configure them.
const LIST: [(&str, [f64; 4]); 20] = [
    ("claude-fable-5", [10.0, 50.0, 12.5, 1.0]),
    ("claude-fable-5-1", [10.0, 50.0, 12.5, 0.25]),
    ("claude-fable-5-2", [8.0, 40.0, 10.0, 0.2]),
    ("claude-haiku-4-5", [1.0, 5.0, 1.25, 0.1]),
    ("claude-haiku-5-5", [0.1, 0.5, 0.125, 0.01]),
    ("claude-mythos-5", [10.0, 50.0, 12.5, 1.0]),
    ("claude-mythos-5-2", [8.0, 40.0, 10.0, 0.2]),
    ("claude-opus-4-1", [15.0, 75.0, 18.75, 1.5]),
    ("claude-opus-4-5", [5.0, 25.0, 6.25, 0.5]),
    ("claude-opus-4-6", [5.0, 25.0, 6.25, 0.5]),
    ("claude-opus-4-7", [5.0, 25.0, 6.25, 0.5]),
    ("claude-opus-4-8", [5.0, 25.0, 6.25, 0.5]),
    ("claude-opus-5", [5.0, 25.0, 6.25, 0.5]),
    ("claude-opus-5-5", [4.0, 20.0, 5.0, 0.2]),
    ("claude-sonnet-4-5", [3.0, 15.0, 3.75, 0.3]),
    ("claude-sonnet-4-6", [3.0, 15.0, 3.75, 0.3]),
    ("claude-sonnet-5", [2.0, 10.0, 2.5, 0.2]),
    ("claude-sonnet-5-5", [2.0, 10.0, 2.5, 0.1]),
    // The built-in agent without a model, and the synthetic messages of Claude Code.
    ("offline", [0.0; 4]),
    ("<synthetic>", [0.0; 4]),
];

/// The price of one token by kind, in billionths of a dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPrice {
    input: u64,
    output: u64,
    cache_write: u64,
    cache_read: u64,
    /// For what the service keeps for an hour. `None`: twice the input price, as in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cache_write_1h: Option<u64>,
}

/// A dollar per million tokens is a thousand billionths per token.
fn of_one_token(dollars: f64) -> u64 {
    (dollars * 1000.0).round() as u64
}

impl TokenPrice {
    fn new([input, output, cache_write, cache_read]: [f64; 4]) -> TokenPrice {
        let of_one = of_one_token;
        TokenPrice {
            input: of_one(input),
            output: of_one(output),
            cache_write: of_one(cache_write),
            cache_read: of_one(cache_read),
            cache_write_1h: None,
        }
    }

    /// The cost in billionths of a dollar. The costs of two usages add up to the cost of their sum, also if only the
    /// second says which part of the first was written for an hour.
    pub fn cost_of(&self, usage: &TokenUsage) -> u64 {
        let for_an_hour = self.cache_write_1h.unwrap_or(self.input.saturating_mul(2));
        let parts = [
            (usage.input_tokens, self.input),
            (usage.output_tokens, self.output),
            (usage.cache_creation_tokens, self.cache_write),
            (usage.cache_creation_1h_tokens, for_an_hour.saturating_sub(self.cache_write)),
            (usage.cache_read_tokens, self.cache_read),
        ];
        parts.into_iter().fold(0, |sum, (tokens, price)| sum.saturating_add(tokens.saturating_mul(price)))
    }
}

/// An operator's price, in dollars per million tokens.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorPrice {
    input: f64,
    output: f64,
    /// Without it the input price: an estimate that is rather too high than too low.
    cache_write: Option<f64>,
    cache_read: Option<f64>,
    /// Without it twice the input price.
    #[serde(rename = "cacheWrite1h")]
    cache_write_1h: Option<f64>,
}

/// Prices by prefix of the model name; the longest prefix wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrices(BTreeMap<String, TokenPrice>);

impl Default for ModelPrices {
    fn default() -> ModelPrices {
        ModelPrices(LIST.into_iter().map(|(name, price)| (name.to_owned(), TokenPrice::new(price))).collect())
    }
}

impl ModelPrices {
    /// The list with the operator's additions and changes:
    /// `{"some-model": {"input": 3, "output": 15, "cacheWrite": 3.75, "cacheRead": 0.3}}`.
    pub fn with_overrides(given: BTreeMap<String, OperatorPrice>) -> Result<ModelPrices, String> {
        let mut prices = ModelPrices::default();
        for (model, OperatorPrice { input, output, cache_write, cache_read, cache_write_1h }) in given {
            let price = [input, output, cache_write.unwrap_or(input), cache_read.unwrap_or(input)];
            // A higher price could overflow a sum.
            if model.is_empty()
                || !price.iter().chain(&cache_write_1h).all(|dollars| (0.0..=1_000_000.0).contains(dollars))
            {
                return Err(format!(
                    "the price of {model:?} must be 0 to 1000000 dollars for a million tokens"
                ));
            }
            let cache_write_1h = cache_write_1h.map(of_one_token);
            prices.0.insert(model, TokenPrice { cache_write_1h, ..TokenPrice::new(price) });
        }
        Ok(prices)
    }

    /// The price of a model, by the longest prefix of its name that has one.
    pub fn price_of(&self, model: &str) -> Option<&TokenPrice> {
        // Some services prefix the name: `us.anthropic.claude-…`, `anthropic/claude-…`.
        let starts = [Some(model), model.rsplit_once('/').map(|(_, name)| name), after_vendor(model)];
        starts.into_iter().flatten().find_map(|name| {
            let fitting = self.0.iter().filter(|(prefix, _)| is_of(prefix, name));
            fitting.max_by_key(|(prefix, _)| prefix.len()).map(|(_, price)| price)
        })
    }
}

fn after_vendor(model: &str) -> Option<&str> {
    model.split_once("anthropic.").map(|(_, name)| name)
}

/// The price of `claude-opus-5` also applies to `claude-opus-5-20260101`, but not to `claude-opus-5-9`, which is another
/// model.
fn is_of(prefix: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix) else { return false };
    let version = rest.strip_prefix(['-', '.']).unwrap_or(rest);
    let digits = version.bytes().take_while(u8::is_ascii_digit).count();
    !(1..=2).contains(&digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_found_by_the_beginning_of_a_name_and_never_of_another_version() {
        let prices = ModelPrices::default();
        let same = |one: &str, other: &str| assert_eq!(prices.price_of(one), prices.price_of(other), "{one}");
        same("claude-opus-5-20260101", "claude-opus-5");
        same("claude-opus-5-5[1m]", "claude-opus-5-5");
        same("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5");
        same("anthropic/claude-haiku-5-5", "claude-haiku-5-5");
        assert_ne!(prices.price_of("claude-opus-5-5"), prices.price_of("claude-opus-5"));
        for unknown in ["claude-opus-5-9", "claude-opus-55", "gpt-6", "", "claude-"] {
            assert_eq!(prices.price_of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn costs_are_exact() {
        let usage = TokenUsage {
            input_tokens: 1001,
            output_tokens: 101,
            cache_creation_tokens: 11,
            cache_read_tokens: 21,
            ..TokenUsage::default()
        };
        // The amounts that Claude Code itself reports.
        assert_eq!(
            ModelPrices::default().price_of("claude-opus-5-5").map(|price| price.cost_of(&usage)),
            Some(6_083_200)
        );
        let most = TokenUsage { input_tokens: u64::MAX, ..usage };
        assert_eq!(
            ModelPrices::default().price_of("claude-opus-5-5").map(|price| price.cost_of(&most)),
            Some(u64::MAX)
        );
    }

    #[test]
    fn an_hour_in_the_services_cache_costs_twice_the_input() {
        let prices = given(r#"{"m": {"input": 1, "output": 1, "cacheWrite": 1.5, "cacheWrite1h": 4}}"#)
            .expect("prices");
        let price = |model: &str| *prices.price_of(model).expect("a price");
        let written = TokenUsage { cache_creation_tokens: 100, ..TokenUsage::default() };
        let for_an_hour = TokenUsage { cache_creation_1h_tokens: 40, ..written };
        // 60 tokens for five minutes, and 40 for an hour.
        assert_eq!(price("claude-opus-5-5").cost_of(&for_an_hour), 60 * 5_000 + 40 * 8_000);
        assert_eq!(price("m").cost_of(&for_an_hour), 60 * 1_500 + 40 * 4_000);
        // The agent reports the tokens first, and the shim then says how long they are kept.
        let more = for_an_hour.saturating_sub(written);
        let parts = [written, more].map(|part| price("claude-opus-5-5").cost_of(&part));
        assert_eq!(parts.iter().sum::<u64>(), price("claude-opus-5-5").cost_of(&for_an_hour));
        assert!(given(r#"{"m": {"input": 1, "output": 1, "cacheWrite1h": -1}}"#).is_err());
    }

    fn given(json: &str) -> Result<ModelPrices, String> {
        ModelPrices::with_overrides(serde_json::from_str(json).expect("prices"))
    }

    #[test]
    fn operators_add_prices_and_change_them() {
        let prices = given(
            r#"{"gpt-6": {"input": 2, "output": 8}, "claude-opus-5-5": {"input": 1, "output": 1, "cacheWrite": 1, "cacheRead": 0}}"#,
        )
        .expect("as it should be");
        let of = |model: &str, usage: TokenUsage| prices.price_of(model).map(|price| price.cost_of(&usage));
        let read = TokenUsage { cache_read_tokens: 10, ..TokenUsage::default() };
        assert_eq!((of("gpt-6-mini", read), of("claude-opus-5-5", read)), (Some(20_000), Some(0)));
        assert_eq!(prices.price_of("claude-opus-5"), ModelPrices::default().price_of("claude-opus-5"));
        for bad in [r#"{"m": {"input": -1, "output": 1}}"#, r#"{"": {"input": 1, "output": 1}}"#] {
            assert!(given(bad).is_err(), "{bad}");
        }
    }
}
