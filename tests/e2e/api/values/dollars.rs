//! A limit in dollars with an unpriced model is refused before the first message, wherever either comes from; but never
//! with a provider that costs nothing.

use super::asked;
use crate::support::{Client, claude};
use reqwest::Method;
use serde_json::{Value, json};

/// A typical model name, and one that could be a program's own word.
const UNPRICED: [&str; 2] = ["unheard-of-1", "unheard"];

async fn is_unpriced(client: &Client, (method, path): (Method, &str), body: Value) {
    let (status, code, error) = asked(client, method, path, Some(body.clone())).await;
    assert_eq!((status, &code), (422, &json!("unpriced_model")), "{path} {body}: {error}");
    assert!(error.as_str().is_some_and(|error| error.contains("ASH_PRICES")), "{error}");
}

async fn create(client: &Client, body: Value) -> String {
    client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_limit_in_dollars_without_a_price_is_refused_before_the_first_message() {
    let stage = claude::Stage::set().await;
    let client = stage.server.client();
    client.deploy("helper").await;
    stage.create().await;
    let post = || Method::POST;
    for agent in ["helper", "coder"] {
        for model in UNPRICED {
            for limit in [json!({ "maxBudgetUsd": 1 }), json!({ "turnLimits": { "maxBudgetUsd": 1 } })] {
                let mut both = limit.clone();
                (both["agent"], both["model"]) = (json!(agent), json!(model));
                is_unpriced(&client, (post(), "/api/sessions"), both).await;

                let named = create(&client, json!({ "agent": agent, "model": model })).await;
                let mut limited = limit.clone();
                limited["agent"] = json!(agent);
                let limited = create(&client, limited).await;
                for (id, change) in [(named, limit), (limited, json!({ "model": model }))] {
                    let at = format!("/api/sessions/{id}");
                    is_unpriced(&client, (Method::PATCH, &format!("{at}/config")), change.clone()).await;
                    is_unpriced(&client, (post(), &format!("{at}/resume")), change).await;
                    client.delete(&at).await;
                }
            }
            let id = create(&client, json!({ "agent": agent, "model": model })).await;
            let message = json!({ "content": "say: hello", "maxBudgetUsd": 1 });
            is_unpriced(&client, (post(), &format!("/api/sessions/{id}/messages")), message.clone()).await;
            let fork = client.post(&format!("/api/sessions/{id}/fork"), json!({})).await;
            let fork = fork["session"]["id"].as_str().expect("an id");
            is_unpriced(&client, (post(), &format!("/api/sessions/{fork}/messages")), message).await;
            client.delete(&format!("/api/sessions/{id}")).await;
        }
    }
    assert_eq!(stage.requests().len(), 0, "the model got no request");
}

/// Earlier answers say nothing about the model of the next request.
#[tokio::test]
async fn a_model_that_is_set_later_needs_a_price_before_its_first_message() {
    let stage = claude::Stage::set().await;
    let client = stage.server.client();
    client.deploy("helper").await;
    stage.create().await;
    let priced = create(&client, json!({ "agent": "helper" })).await;
    let free = create(&client, json!({ "agent": "helper", "provider": "offline" })).await;
    for (id, change) in [
        (priced, json!({ "model": "unheard-of-1" })),
        (free, json!({ "model": "unheard-of-1", "provider": "anthropic" })),
    ] {
        assert_eq!(client.say(&id, "hello").await["status"], "done");
        let asked_before = stage.requests().len();
        let path = format!("/api/sessions/{id}");
        let (status, _, error) = asked(&client, Method::PATCH, &format!("{path}/config"), Some(change)).await;
        assert_eq!(status, 200, "{error}");
        let message = json!({ "content": "say: hello", "maxBudgetUsd": 1 });
        is_unpriced(&client, (Method::POST, &format!("{path}/messages")), message).await;
        assert_eq!(stage.requests().len(), asked_before, "the model got no request");
    }
}

#[tokio::test]
async fn free_providers_and_model_aliases_need_no_price() {
    let stage = claude::Stage::set().await;
    let client = stage.server.client();
    client.deploy("helper").await;
    stage.create().await;
    let free =
        json!({ "agent": "helper", "provider": "offline", "model": "unheard-of-1", "maxBudgetUsd": 1 });
    let free = create(&client, free).await;
    let path = format!("/api/sessions/{free}");
    let limit = json!({ "turnLimits": { "maxBudgetUsd": 1 }, "model": "unheard" });
    let (status, _, error) = asked(&client, Method::PATCH, &format!("{path}/config"), Some(limit)).await;
    assert_eq!(status, 200, "{error}");
    assert_eq!(client.say(&free, "hello").await["status"], "done");
    // From now on calls cost money.
    let paid = json!({ "provider": "anthropic" });
    is_unpriced(&client, (Method::PATCH, &format!("{path}/config")), paid).await;

    for word in ["sonnet", "opus[1m]", "Haiku"] {
        let id = create(&client, json!({ "agent": "coder", "model": word, "maxBudgetUsd": 1 })).await;
        assert_eq!(client.session(&id).await["config"]["model"], word);
        is_unpriced(
            &client,
            (Method::POST, "/api/sessions"),
            json!({ "agent": "helper", "model": word, "maxBudgetUsd": 1 }),
        )
        .await;
    }
}

/// A missing price refuses what costs dollars, and no other change.
#[tokio::test]
async fn a_price_that_is_gone_refuses_messages_and_no_other_change() {
    let mut stage = claude::Stage::with(&[("ASH_PRICES", r#"{"unheard": {"input": 1, "output": 1}}"#)]).await;
    let client = stage.server.client();
    client.deploy("helper").await;
    let id = create(&client, json!({ "agent": "helper", "model": "unheard-of-1", "maxBudgetUsd": 1 })).await;
    assert_eq!(client.say(&id, "say: hello").await["text"], "hello");
    stage.server.stop().await;
    stage.server.set("ASH_PRICES", "");
    stage.server.launch().await;
    let client = stage.server.client();
    let path = format!("/api/sessions/{id}");
    let message = json!({ "content": "say: hello" });
    is_unpriced(&client, (Method::POST, &format!("{path}/messages")), message).await;
    let other = json!({ "appendSystemPrompt": "Be brief.", "idleTimeout": 60 });
    let (status, _, error) = asked(&client, Method::PATCH, &format!("{path}/config"), Some(other)).await;
    assert_eq!(status, 200, "{error}");
    is_unpriced(&client, (Method::PATCH, &format!("{path}/config")), json!({ "maxBudgetUsd": 2 })).await;
}
