//! `GET /api/usage` and `ash usage`: who sees which sums.

use super::*;

#[tokio::test]
async fn each_owner_sees_only_their_usage_and_it_outlives_the_session() {
    let stage = Stage::with(&[("ASH_TRASH_TTL", "0"), ("ASH_GC_EVERY", "1")]).await;
    let admin = stage.server.client();
    let mint = async |owner: &str| {
        let made = admin.post("/api/api-keys", json!({ "owner": owner, "label": owner })).await;
        stage.server.client_with(made["key"].as_str().expect("a key"))
    };
    let (alice, bob) = (mint("alice").await, mint("bob").await);
    let hers = create(&stage, "builtin", json!({ "owner": "alice", "sessionId": "hers" })).await;
    let his = create(&stage, "builtin", json!({ "owner": "bob", "sessionId": "his" })).await;
    alice.say(&hers, "say: something that takes more tokens than what bob says").await;
    bob.say(&his, "say: hi").await;

    let total = async |client: &Client, query: &str| {
        counted(&client.get(&format!("/api/usage?{query}")).await["total"])
    };
    let (all, of_alice, of_bob) =
        (total(&admin, "by=owner").await, total(&alice, "by=owner").await, total(&bob, "by=owner").await);
    assert_eq!((of_alice.0 + of_bob.0, of_alice.1 + of_bob.1), (all.0, all.1));
    assert!(of_alice.1 > of_bob.1 && of_bob.1 > 0);
    assert_eq!(total(&admin, "by=session&owner=alice").await, of_alice);
    assert_eq!(total(&bob, "by=session&owner=alice").await.0, 0, "hers is not his to see");
    let (status, problem) = bob.ask(Method::GET, "/api/usage?by=turn&session=hers", None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("session_not_found")));
    let listed = bob.get("/api/usage").await;
    assert!(listed["events"].as_array().expect("a list").iter().all(|event| event["sessionId"] == "his"));
    assert_eq!(bob.get("/api/usage/stats").await["stats"]["totalInputTokens"], of_bob.0);
    let later = total(&admin, "by=day&since=2999-01-01T00:00:00Z").await;
    assert_eq!((later.0, total(&admin, "by=day&since=1h&until=0s").await.0), (0, all.0));
    for bad in ["by=week", "by=day&since=soon", "by=day&limit=0", "agent=..%2F", "by=day&session=nobody"] {
        let (status, problem) = admin.ask(Method::GET, &format!("/api/usage?{bad}"), None).await;
        assert!(status.is_client_error(), "{bad}: {problem}");
    }

    // Both output formats, for people and for programs.
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(ash());
        command.args(args).args(["--server", &stage.server.url]).env("ASH_API_KEY", crate::support::KEY);
        String::from_utf8(command.output().expect("ash usage").stdout).expect("text")
    };
    let table = run(&["usage", "--by", "owner"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["OWNER", "INPUT", "OUTPUT"], "{table}");
    let (input, cost) = (all.0.to_string(), format!("${:.4}", all.2));
    let last = lines.last().expect("a total");
    assert_eq!(
        (last[0], last[1], *last.last().expect("cost")),
        ("total", input.as_str(), cost.as_str()),
        "{table}"
    );
    assert_eq!(lines.len(), 4, "{table}");
    let told: Value =
        serde_json::from_str(&run(&["usage", "--by", "session", "--session", "hers", "--json"]))
            .expect("json");
    assert_eq!(told["usage"][0]["session"], "hers");
    assert_eq!(counted(&told["total"]), of_alice);

    assert_eq!(admin.ask(Method::DELETE, "/api/sessions/hers?purge=true", None).await.0, StatusCode::OK);
    eventually("nothing is left of it", async || {
        let by = admin.get("/api/usage?by=session").await;
        by["usage"].as_array()?.iter().any(|sum| sum["session"].is_null()).then_some(())
    })
    .await;
    assert_eq!((total(&alice, "by=owner").await, total(&admin, "by=agent").await), (of_alice, all));
}
