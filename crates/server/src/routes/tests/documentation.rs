//! The four addresses of the OpenAPI document.

use super::*;

const PAGES: [(&str, &str); 4] = [
    ("/openapi.json", "application/json"),
    ("/docs/json", "application/json"),
    ("/docs/yaml", "application/yaml"),
    ("/docs", "text/html; charset=utf-8"),
];

#[tokio::test]
async fn the_openapi_document_needs_no_key() {
    let server = TestRouter::new().await;
    for (path, kind) in PAGES {
        for path in [path.to_owned(), format!("{path}?x=1")] {
            let answer = server.send(&format!("GET {path}"), Body::empty(), &[]).await;
            assert_eq!(
                (answer.status, &answer.headers["content-type"]),
                (StatusCode::OK, &kind.parse().expect("a value"))
            );
            assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
        }
    }
    let (one, other) = (server.get("/openapi.json").await, server.get("/docs/json").await);
    assert_eq!((&one["openapi"], &one), (&json!("3.1.0"), &other));
    for path in ["/openapi.jsonx", "/openapi", "/doc", "/api/docs"] {
        let refused = server.send(&format!("GET {path}"), Body::empty(), &[]).await;
        assert_eq!(refused.code(), (401, "unauthorized"), "{path}");
    }
}

#[tokio::test]
async fn the_openapi_page_runs_only_its_own_script() {
    let server = TestRouter::new().await;
    let page = async || {
        let answer = server.send("GET /docs", Body::empty(), &[]).await;
        let policy = answer.headers["content-security-policy"].to_str().expect("text").to_owned();
        (policy, answer.text)
    };
    let ((policy, text), (another, _)) = (page().await, page().await);
    let nonce =
        policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a nonce");
    assert_eq!(nonce.len(), 32);
    assert!(!another.contains(nonce), "each answer has a nonce of its own");
    assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "a script and a style");
    for part in [
        "default-src 'none'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{part}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for elsewhere in ["http://", "https://", "//cdn", "{{", "innerHTML", " style=\"", " onclick"] {
        assert!(!text.contains(elsewhere), "{elsewhere}");
    }
}

#[tokio::test]
async fn the_openapi_document_is_read_only_under_the_servers_own_name() {
    let server = TestRouter::new().await;
    for (path, _) in PAGES {
        let refused = server.send(&format!("GET {path}"), Body::empty(), &[("host", "evil.example")]).await;
        assert_eq!(refused.code(), (403, "host_not_allowed"), "{path}");
        let foreign =
            server.send(&format!("GET {path}"), Body::empty(), &[("origin", "https://evil.example")]).await;
        assert!(!foreign.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}
