//! The resource limits that callers may request.

use crate::support::{Client, Server};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

const SECRET: &str = "a-secret-for-internal-use";

/// A client of another tenant, and one of an owner in the operator's tenant.
async fn others(server: &Server) -> [Client; 2] {
    let minted =
        server.client_with(SECRET).post("/api/internal/api-keys", json!({ "tenantId": "other" })).await;
    let owned = server.client().post("/api/api-keys", json!({ "owner": "alice" })).await;
    [minted, owned].map(|key| server.client_with(key["key"].as_str().expect("a key")))
}

async fn create(client: &Client, limits: Value) -> (u16, Value) {
    let body = json!({ "agent": "tester", "limits": limits });
    let (status, said) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    (status.as_u16(), if status.is_success() { said["session"]["id"].clone() } else { said["code"].clone() })
}

#[tokio::test]
async fn the_defaults_of_limits_are_their_maximum_for_all_but_the_operator() {
    let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET), ("ASH_LIMITS", "maxProcesses=100")]).await;
    let refused = (422, json!("limit_too_high"));
    let [tenant, owner] = others(&server).await;
    tenant.deploy("tester").await;
    server.client().deploy("tester").await;
    for client in [&tenant, &owner] {
        for more in
            [json!({ "maxProcesses": 101 }), json!({ "maxProcesses": 0 }), json!({ "diskMb": 10_241 })]
        {
            assert_eq!(create(client, more.clone()).await, refused, "{more}");
        }
    }
    let (status, id) = create(&owner, json!({ "maxProcesses": 100, "turnSeconds": 5000 })).await;
    assert_eq!(status, 201, "{id}");
    let config = format!("/api/sessions/{}/config", id.as_str().expect("an id"));
    let more = json!({ "limits": { "maxProcesses": 101 } });
    let (status, said) = owner.ask(Method::PATCH, &config, Some(more.clone())).await;
    assert_eq!((status.as_u16(), &said["code"]), (422, &json!("limit_too_high")), "{said}");
    let (status, said) = server.client().ask(Method::PATCH, &config, Some(more)).await;
    assert_eq!((status.as_u16(), &said["session"]["limits"]["maxProcesses"]), (200, &json!(101)), "{said}");
    // The operator's limits stay when another caller changes a different one.
    let less = json!({ "limits": { "diskMb": 100 } });
    let (status, said) = owner.ask(Method::PATCH, &config, Some(less)).await;
    assert_eq!((status.as_u16(), &said["session"]["limits"]["maxProcesses"]), (200, &json!(101)), "{said}");
    // They belong to that session: a fork by its owner gets at most what the owner may request.
    let parent = id.as_str().expect("an id");
    let fork = owner.post(&format!("/api/sessions/{parent}/fork"), json!({ "sessionId": "copy" })).await;
    assert_eq!(
        fork["session"]["config"]["limits"],
        json!({ "maxProcesses": 100, "diskMb": 100, "turnSeconds": 5000 })
    );
    assert_eq!(owner.session("copy").await["limits"]["maxProcesses"], 100);
    assert_eq!(owner.session(parent).await["limits"]["maxProcesses"], 101);
    // Sessions of the operator keep them.
    let (status, raised) = create(&server.client(), json!({ "maxProcesses": 101 })).await;
    assert_eq!(status, 201, "{raised}");
    let path = format!("/api/sessions/{}/fork", raised.as_str().expect("an id"));
    let fork = server.client().post(&path, json!({ "sessionId": "own" })).await;
    assert_eq!(fork["session"]["config"]["limits"]["maxProcesses"], 101, "{fork}");
    let file = |text: &str| json!([{ "path": "ash.toml", "content": STANDARD.encode(text) }]);
    let greedy = json!({ "name": "greedy", "files": file("[limits]\nmaxProcesses = 101\n") });
    let (status, said) = tenant.ask(Method::POST, "/api/agents", Some(greedy)).await;
    assert_eq!((status.as_u16(), &said["code"]), (422, &json!("limit_too_high")), "{said}");
}

#[tokio::test]
async fn limits_above_the_defaults_need_the_operators_permission() {
    let env = [("ASH_INTERNAL_SECRET", SECRET), ("ASH_LIMITS_MAX", "maxProcesses=600,diskMb=0")];
    let server = Server::with(&env).await;
    let [tenant, _] = others(&server).await;
    tenant.deploy("tester").await;
    assert_eq!(create(&tenant, json!({ "maxProcesses": 600, "diskMb": 20_000 })).await.0, 201);
    assert_eq!(create(&tenant, json!({ "maxProcesses": 601 })).await.0, 422);
    assert_eq!(create(&tenant, json!({ "memoryMb": 4096 })).await.0, 422, "its default is its maximum");
}
