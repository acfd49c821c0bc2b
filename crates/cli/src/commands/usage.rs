//! `ash usage`: tokens and cost of model calls.

use crate::{
    api::{ApiClient, Result, percent_encode},
    args::UsageArgs,
    terminal::{self, TerminalStyle, TextTable},
};
use serde_json::Value;

pub(crate) async fn run(api: &ApiClient, asked: UsageArgs, as_json: bool) -> Result<()> {
    let UsageArgs { by, session, agent, owner, since, until, limit } = asked;
    let mut query = format!("/api/usage?by={by}&limit={limit}");
    let asked =
        [("session", session), ("agent", agent), ("owner", owner), ("since", since), ("until", until)];
    for (name, value) in asked {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", percent_encode(&value)));
        }
    }
    let answer = api.get(&query).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(());
    }
    show(&by, &answer);
    Ok(())
}

fn show(by: &str, answer: &Value) {
    let names: &[(&'static str, &str)] = match by {
        "turn" => &[("TURN", "turn"), ("SESSION", "session"), ("AGENT", "agent")],
        "session" => &[("SESSION", "session"), ("AGENT", "agent"), ("OWNER", "owner")],
        "agent" => &[("AGENT", "agent")],
        "owner" => &[("OWNER", "owner")],
        "model" => &[("MODEL", "model")],
        _ => &[("DAY", "day")],
    };
    let head: Vec<&'static str> = names.iter().map(|(head, _)| *head).collect();
    let numbers = ["INPUT", "OUTPUT", "CACHE WRITE", "CACHE READ", "ROUNDS", "COST"];
    let mut table = TextTable::new(&[head, numbers.to_vec()].concat());
    for sum in answer["usage"].as_array().into_iter().flatten() {
        // Empty for a deleted session, and for a session without an owner.
        let named = names.iter().map(|(_, name)| (sum[*name].as_str().unwrap_or("-").to_owned(), None));
        table.row(named.chain(cells(sum, None)).collect());
    }
    let mut total = vec![("total".to_owned(), Some(TerminalStyle::Bold))];
    total.extend(names.iter().skip(1).map(|_| (String::new(), None)));
    total.extend(cells(&answer["total"], Some(TerminalStyle::Bold)));
    table.row(total);
    table.print();
}

fn cells(sum: &Value, colour: Option<TerminalStyle>) -> Vec<(String, Option<TerminalStyle>)> {
    let names = ["inputTokens", "outputTokens", "cacheCreationTokens", "cacheReadTokens", "rounds"];
    let numbers = names.iter().map(|name| sum[*name].as_u64().unwrap_or(0).to_string());
    let cost = match (sum["costUsd"].as_f64(), sum["unpriced"] == true) {
        (Some(cost), false) => format!("${cost:.4}"),
        (Some(cost), true) => format!("${cost:.4} and more, without a price"),
        (None, _) => "no price".to_owned(),
    };
    numbers.chain([cost]).map(|text| (text, colour)).collect()
}
