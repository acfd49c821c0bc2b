//! Decides which headers the proxy passes on. Pure. Requests from inside are hostile, and answers contain data of the
//! operator.

use ash_model::{is_forwarding_header, normalized_header_name};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};

/// For one connection only (RFC 9110, 7.6.1), including the names that older software uses.
const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"];

/// The policy decides which caller the service sees.
const CALLER_IDENTITY: [&str; 7] =
    ["authorization", "x-api-key", "api-key", "openai-organization", "openai-project", "cookie", "cookie2"];

/// Some servers take another method or path from these than the proxy has checked.
const OVERRIDES: [&str; 5] =
    ["x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url"];

/// How the body is framed and when it is sent: each connection decides for itself. No compression, because the proxy
/// reads the usage from the answer.
const FRAMING: [&str; 3] = ["content-length", "expect", "accept-encoding"];

/// The headers of a request that may go out.
pub(super) fn request_headers(from: &HeaderMap) -> HeaderMap {
    passed(from, |name| {
        may_be_added(name) && !CALLER_IDENTITY.contains(&normalized_header_name(name).as_str())
    })
}

/// Whether a policy may add a header of this name to each call. A policy may set who calls, but not where to, on whose
/// behalf, or how the connection is used.
pub(super) fn may_be_added(name: &str) -> bool {
    let name = normalized_header_name(name);
    let lists = [&HOP_BY_HOP[..], &OVERRIDES, &FRAMING];
    let is_listed = lists.iter().any(|list| list.contains(&name.as_str()));
    !(is_listed || name == "host" || name.starts_with("proxy-") || is_forwarding_header(&name))
}

/// What an agent needs of an answer: how to read it, its id for a complaint, and when to retry. Other headers (cookies,
/// the organisation, rate usage of other tenants) are for the operator only.
const RESPONSE_ALLOWED: [&str; 9] = [
    "content-type",
    "content-length",
    "content-encoding",
    "request-id",
    "x-request-id",
    "apim-request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
];

/// The headers of an answer that may go in.
pub(super) fn response_headers(from: &HeaderMap) -> HeaderMap {
    let mut headers = passed(from, |name| RESPONSE_ALLOWED.contains(&name));
    if from.contains_key(TRANSFER_ENCODING) {
        // The chunks decide the length, and the proxy frames the body itself.
        headers.remove(CONTENT_LENGTH);
    }
    headers
}

/// The Connection header names further headers for this connection only.
fn passed(from: &HeaderMap, may: impl Fn(&str) -> bool) -> HeaderMap {
    let named: Vec<String> = from
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let passes = |name: &str| may(name) && !named.iter().any(|other| other == name);
    from.iter()
        .filter(|(name, _)| passes(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            map
        })
    }

    #[test]
    fn a_policy_adds_who_calls_and_neither_where_to_nor_for_whom() {
        for name in
            ["x-api-key", "authorization", "api-key", "openai-organization", "cookie", "anthropic-beta"]
        {
            assert!(may_be_added(name), "{name}");
        }
        for name in [
            "host",
            "forwarded",
            "via",
            "x-real-ip",
            "x-forwarded-for",
            "x-forwarded-host",
            "proxy-authorization",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "content-length",
            "expect",
            "x-http-method-override",
            "x-original-url",
            "x_forwarded_for",
            "x_http_method_override",
            "x-client-ip",
            "true-client-ip",
            "x-original-host",
        ] {
            assert!(!may_be_added(name), "{name}");
        }
    }

    #[test]
    fn headers_that_the_agent_may_not_set_are_not_sent() {
        let asked = headers(&[
            ("host", "evil"),
            ("authorization", "Bearer mine"),
            ("x-api-key", "mine"),
            ("api-key", "mine"),
            ("openai-organization", "mine"),
            ("cookie", "a=b"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-host", "evil"),
            ("x-http-method-override", "DELETE"),
            ("x_http_method_override", "DELETE"),
            ("x_api_key", "mine"),
            ("x_forwarded_for", "1.2.3.4"),
            ("cf-connecting-ip", "1.2.3.4"),
            ("content_length", "5"),
            ("x-original-url", "/v1/organizations"),
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("content-type", "application/json"),
            ("anthropic-beta", "one"),
            ("anthropic-beta", "two"),
        ]);
        let passed = headers(&[
            ("content-type", "application/json"),
            ("anthropic-beta", "one"),
            ("anthropic-beta", "two"),
        ]);
        assert_eq!(request_headers(&asked), passed);
    }

    #[test]
    fn an_answer_keeps_what_its_reader_needs_and_nothing_else() {
        let answer = headers(&[
            ("anthropic-organization-id", "org_1"),
            ("anthropic-ratelimit-tokens-remaining", "7"),
            ("openai-organization", "org_1"),
            ("location", "https://elsewhere.example"),
            ("server", "s"),
            ("x-new", "1"),
            ("content-type", "text/event-stream"),
            ("set-cookie", "session=1"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("request-id", "req_1"),
            ("retry-after", "3"),
        ]);
        assert_eq!(
            response_headers(&answer),
            headers(&[("content-type", "text/event-stream"), ("request-id", "req_1"), ("retry-after", "3")])
        );
        let counted = headers(&[("content-length", "7")]);
        assert_eq!(response_headers(&counted), counted);
    }
}
