//! Stored credentials: what is refused, who reaches which, and that no answer has a key.

use super::*;

const SECRET: &str = "sk-of-the-tests-in-process-4711";

async fn stored(server: &TestRouter, key: &str, body: Value) -> String {
    let made = server.ask(key, "POST /api/credentials", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    assert!(!made.text.contains(SECRET), "{}", made.text);
    made.body["credential"]["id"].as_str().expect("an id").to_owned()
}

async fn key_of(server: &TestRouter, owner: &str) -> String {
    let made = server.ask(KEY, "POST /api/api-keys", json!({ "owner": owner })).await;
    made.body["key"].as_str().expect("a key").to_owned()
}

fn ids(listed: &Value) -> Vec<&str> {
    let all = listed["credentials"].as_array().expect("a list");
    all.iter().map(|one| one["id"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn credentials_are_listed_newest_first_without_their_keys_and_are_gone_once_deleted() {
    let server = TestRouter::new().await;
    let first = stored(&server, KEY, json!({ "type": "custom", "key": SECRET })).await;
    let body = json!({ "type": "anthropic", "key": SECRET, "label": "research" });
    let second = stored(&server, KEY, body).await;
    let listed = server.get("/api/credentials").await;
    assert_eq!(ids(&listed), [&second, &first]);
    let shown = &listed["credentials"][0];
    assert_eq!(
        (&shown["type"], &shown["label"], &shown["active"], &shown["lastUsedAt"]),
        (&json!("anthropic"), &json!("research"), &json!(true), &Value::Null)
    );
    let route = format!("DELETE /api/credentials/{first}");
    let deleted = server.ask(KEY, &route, Value::Null).await;
    assert_eq!((deleted.status, &deleted.body), (StatusCode::OK, &json!({})));
    for route in [route.as_str(), "DELETE /api/credentials/x"] {
        let refused = server.ask(KEY, route, Value::Null).await;
        assert_eq!(refused.code(), (404, "credential_not_found"));
        assert_eq!(refused.body["error"], "Credential not found");
    }
    assert_eq!(ids(&server.get("/api/credentials").await), [&second]);
    let audit = server.get("/api/audit").await;
    assert!(!listed.to_string().contains(SECRET) && !audit.to_string().contains(SECRET), "{audit}");
    let deeds = audit["audit"].as_array().expect("a list").iter();
    let deeds: Vec<_> = deeds.map(|line| (line["action"].clone(), line["detail"].clone())).collect();
    let expected = [
        ("credential_removed", "custom"),
        ("credential_created", "anthropic"),
        ("credential_created", "custom"),
    ];
    assert_eq!(deeds, expected.map(|(action, kind)| (json!(action), json!(kind))));
}

#[tokio::test]
async fn a_credential_that_no_session_could_send_is_refused() {
    let server = TestRouter::new().await;
    for body in [
        json!({ "key": SECRET }),
        json!({ "type": "azure", "key": SECRET }),
        json!({ "type": "anthropic" }),
        json!({ "type": "anthropic", "key": "" }),
        json!({ "type": "anthropic", "key": format!("{SECRET}\nx-more: 1") }),
        json!({ "type": "openai", "key": format!("{SECRET}\u{0}") }),
    ] {
        let refused = server.ask(KEY, "POST /api/credentials", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
        assert!(!refused.text.contains(SECRET), "{}", refused.text);
    }
    let long = json!({ "type": "custom", "key": "k".repeat(16_385) });
    let refused = server.ask(KEY, "POST /api/credentials", long).await;
    assert_eq!(refused.code(), (413, "payload_too_large"), "{}", refused.body);
    assert_eq!(ids(&server.get("/api/credentials").await), Vec::<&str>::new());
}

#[tokio::test]
async fn an_owner_neither_sees_nor_uses_nor_deletes_what_is_not_its_own() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let (alice, bob) = (key_of(&server, "alice").await, key_of(&server, "bob").await);
    let body = json!({ "type": "anthropic", "key": SECRET });
    let (common, own) = (stored(&server, KEY, body.clone()).await, stored(&server, &alice, body).await);
    let list = async |key: &str| server.ask(key, "GET /api/credentials", Value::Null).await.body;
    assert_eq!(ids(&list(KEY).await), [&own, &common]);
    assert_eq!(ids(&list(&alice).await), [&own]);
    assert_eq!(ids(&list(&bob).await), Vec::<&str>::new());
    for (key, id) in [(&alice, &common), (&bob, &common), (&bob, &own)] {
        let deleted = server.ask(key, &format!("DELETE /api/credentials/{id}"), Value::Null).await;
        assert_eq!(deleted.code(), (404, "credential_not_found"));
        let used = json!({ "agent": "tester", "credentialId": id });
        let used = server.ask(key, "POST /api/sessions", used).await;
        assert_eq!(used.code(), (400, "invalid_credential"), "{}", used.body);
    }
    let deleted = server.ask(KEY, &format!("DELETE /api/credentials/{own}"), Value::Null).await;
    assert_eq!(deleted.status, StatusCode::OK, "an admin deletes any: {}", deleted.body);
}

#[tokio::test]
async fn a_session_with_a_credential_that_it_cannot_use_is_refused_with_the_reason() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let good = json!({ "accessKeyId": "a", "secretAccessKey": SECRET, "region": "r" }).to_string();
    let partial = json!({ "accessKeyId": "a", "secretAccessKey": SECRET }).to_string();
    let bedrock = "Bedrock credential ";
    let cases = [
        ("custom", SECRET, json!({}), (422, "option_unsupported"), "inside of its sandbox"),
        ("bedrock", &good, json!({}), (422, "option_unsupported"), "signed with the key"),
        ("bedrock", &partial, json!({}), (400, "invalid_credential"), bedrock),
        ("bedrock", SECRET, json!({}), (400, "invalid_credential"), bedrock),
        ("openai", SECRET, json!({}), (400, "invalid_body"), "`model`"),
        ("anthropic", SECRET, json!("offline"), (400, "invalid_body"), "the credential's type"),
        ("anthropic", SECRET, json!({ "type": "openai" }), (400, "invalid_body"), "the credential's type"),
        ("anthropic", SECRET, json!({ "type": "anthropic", "apiKey": "x" }), (400, "invalid_body"), "beside"),
        (
            "anthropic",
            SECRET,
            json!({ "type": "anthropic", "baseUrl": "http://127.0.0.1:1" }),
            (400, "invalid_body"),
            "public host",
        ),
    ];
    for (kind, key, provider, code, reason) in cases {
        let id = stored(&server, KEY, json!({ "type": kind, "key": key })).await;
        let mut body = json!({ "agent": "tester", "credentialId": id });
        if provider != json!({}) {
            body["provider"] = provider;
        }
        let refused = server.ask(KEY, "POST /api/sessions", body.clone()).await;
        assert_eq!(refused.code(), code, "{kind}: {}", refused.body);
        assert!(refused.body["error"].as_str().is_some_and(|said| said.contains(reason)), "{}", refused.body);
        assert!(!refused.text.contains(SECRET), "{}", refused.text);
        body.as_object_mut().expect("an object").remove("agent");
        let changed = server.ask(KEY, "PATCH /api/sessions/s/config", body).await;
        assert_eq!(changed.code(), code, "{kind}: {}", changed.body);
    }
    for unknown in ["x", "00000000-0000-0000-0000-000000000001", ""] {
        let body = json!({ "agent": "tester", "credentialId": unknown });
        let refused = server.ask(KEY, "POST /api/sessions", body).await;
        assert_eq!(refused.code(), (400, "invalid_credential"), "{}", refused.body);
        assert_eq!(refused.body["error"], "Invalid or inaccessible credential");
    }
    assert_eq!(server.get("/api/sessions").await["total"], 1);
}
