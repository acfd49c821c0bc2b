//! Requests of other callers: another tenant, a caller without a key, and a caller whose key was deleted.

use super::world::{OF_A_SESSION, OF_AN_AGENT, World, bearer, raw};
use crate::support::KEY;

#[tokio::test]
async fn other_tenants_resources_are_answered_as_if_absent() {
    let world = World::new().await;
    let mut cases: Vec<(String, String, &str, u16, &str)> = Vec::new();
    for (call, body) in OF_A_SESSION {
        let both = [call.replace("{}", "theirs"), call.replace("{}", "unknown")];
        cases.push((both[0].clone(), both[1].clone(), body, 404, "session_not_found"));
    }
    for (call, body) in OF_AN_AGENT {
        let both = [call.replace("{}", "foreigner"), call.replace("{}", "unknown")];
        cases.push((both[0].clone(), both[1].clone(), body, 404, "agent_not_found"));
    }
    let key = "DELETE /api/api-keys/";
    cases.push((format!("{key}<foreign-key>"), format!("{key}unknown"), "", 404, "key_not_found"));
    let (before, said) = (world.state().await, world.conversations().await);
    for (foreign, unknown, body, status, code) in cases {
        let foreign_answer = world.raw(&bearer(KEY), &foreign, body.as_bytes()).await;
        foreign_answer.is_problem(status, code).unwrap_or_else(|why| panic!("{foreign}: {why}"));
        assert_eq!(foreign_answer, world.raw(&bearer(KEY), &unknown, body.as_bytes()).await, "{foreign}");
        assert_eq!(world.state().await, before, "{foreign}");
    }
    assert_eq!(world.conversations().await, said);
    world.is_well().await;
}

#[tokio::test]
async fn without_a_good_key_nothing_is_answered() {
    let world = World::new().await;
    let (before, said) = (world.state().await, world.conversations().await);
    let headers: [(&[u8], &str); 12] = [
        (b"", "Missing Authorization header"),
        (b"authorization: Bearer wrong\r\n", "Invalid API key"),
        (b"authorization: Bearer test-key2\r\n", "Invalid API key"),
        (b"authorization: Bearer internal-secret\r\n", "Invalid API key"),
        (b"authorization: Bearer\r\n", "Invalid Authorization header format"),
        (b"authorization: \r\n", "Invalid Authorization header format"),
        (b"authorization: test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: bearer test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: Basic dGVzdC1rZXk=\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer  test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer test-key x\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer \xff\xfe\r\n", "Invalid Authorization header format"),
    ];
    for (header, error) in headers {
        let answer = raw(&world.server, header, ("GET", "/api/sessions"), b"").await;
        answer.is_problem(401, "unauthorized").expect(error);
        assert_eq!(answer.body["error"], error, "{}", String::from_utf8_lossy(header));
    }
    let others = [
        ("GET /metrics", ""),
        ("GET /api/agents", ""),
        ("POST /api/agents", r#"{"name":"x"}"#),
        ("POST /api/sessions", r#"{"agent":"tester"}"#),
        ("GET /api/api-keys", ""),
        ("POST /api/api-keys", "{}"),
        ("DELETE /api/api-keys/<foreign-key>", ""),
        ("POST /api/internal/api-keys", r#"{"tenantId":"x"}"#),
        ("GET /no/such/route", ""),
        ("PUT /api/sessions", ""),
        // A second slash or an upper-case letter must not bypass the check.
        ("GET //api/sessions", ""),
        ("GET /API/sessions", ""),
        ("GET /health/../api/sessions", ""),
        ("GET /api/internal/../sessions", ""),
    ];
    let of_a_session = OF_A_SESSION.map(|(call, body)| (call.replace("{}", "<id>"), body));
    let of_an_agent = OF_AN_AGENT.map(|(call, body)| (call.replace("{}", "tester"), body));
    let others = others.map(|(call, body)| (call.to_owned(), body));
    for (call, body) in others.into_iter().chain(of_a_session).chain(of_an_agent) {
        for header in ["", "authorization: Bearer wrong\r\n"] {
            let answer = world.raw(header, &call, body.as_bytes()).await;
            answer.is_problem(401, "unauthorized").unwrap_or_else(|why| panic!("{call}: {why}"));
        }
    }
    // The tenant's key is not the secret that creates keys.
    let answer = world.raw(&bearer(KEY), "POST /api/internal/api-keys", br#"{"tenantId":"x"}"#).await;
    answer.is_problem(401, "unauthorized").expect("closed");
    assert_eq!((world.state().await, world.conversations().await), (before, said));
    world.is_well().await;
}
