//! The bodies of the fuzz targets for the traffic between a sandbox and a model service. Both sides are hostile.

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
};

use ash_model::{ModelApiDialect, TokenUsage};
use hyper::{
    Method, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING},
};
use reqwest::Url;
use serde_json::Value;

use super::{
    EgressPolicy,
    answer_usage::{AnswerEnd, AnswerUsageReader, OutgoingRequestScan, UsageRecorder},
    endpoint::ModelEndpoint,
    header_filter::{may_be_added, request_headers, response_headers},
    is_beneath,
    json_scanner::{JsonScanner, MAX_VALUE, ScannedFields, usage},
    route::EgressRoute,
    usage_account::{UsageAccount, UsageAllowance},
};
use crate::journal::ModelUsage;

/// The longest id or model name that is recorded.
const MAX_RECORDED_NAME: usize = 256;

/// A JSON text, scanned as it passes and compared with the result of serde. The first byte is the length of the pieces.
pub fn json_scanner(input: &[u8]) {
    let Some((step, text)) = input.split_first() else { return };
    let seen = scanned(text, text.len());
    assert_eq!(seen, scanned(text, usize::from(*step)), "what is seen does not depend on the pieces");
    let Ok(Value::Object(object)) = serde_json::from_slice::<Value>(text) else { return };
    let asks = |value: &Value| !matches!(value, Value::Bool(false) | Value::Null);
    assert!(seen.is_background || !object.get("background").is_some_and(asks), "it asks for background work");

    // Each field once: parsers differ in which of two fields with the same name they use.
    let plain = Value::Object(object).to_string();
    let seen = scanned(plain.as_bytes(), usize::from(*step));
    let value: Value = serde_json::from_str(&plain).expect("written by serde");
    assert_eq!(seen.is_background, value.get("background").is_some_and(asks));
    let short = |name: &str| value.get(name).filter(|value| value.to_string().len() <= MAX_VALUE);
    let text =
        |name: &str| short(name)?.as_str().filter(|text| text.len() <= MAX_RECORDED_NAME).map(str::to_owned);
    assert_eq!(seen.kind, text("type"));
    if value.get("message").or(value.get("response")).is_none() {
        assert_eq!((seen.id, seen.model), (text("id"), text("model")));
        assert_eq!(seen.usage, short("usage").filter(|value| value.is_object()).map(usage));
    }
}

fn scanned(text: &[u8], step: usize) -> ScannedFields {
    let mut scanner = JsonScanner::default();
    for piece in text.chunks(step.max(1)) {
        scanner.push(piece);
        scanner.check_bounds();
    }
    scanner.seen
}

/// The usage recorded for an answer of a model service. The first four bytes select the endpoint, the encoding of the
/// answer, the length of the pieces, and whether the connection breaks at its end.
pub fn model_answer(input: &[u8]) {
    let Some(([endpoint, encoding, step, end], text)) = input.split_first_chunk() else { return };
    let endpoint = [
        ModelEndpoint::Messages,
        ModelEndpoint::ChatCompletions,
        ModelEndpoint::Responses,
        ModelEndpoint::CountTokens,
        ModelEndpoint::Models,
    ][usize::from(endpoint % 5)];
    let (kind, is_plain) =
        [("text/event-stream", true), ("application/json", true), ("text/event-stream", false)]
            [usize::from(encoding % 3)];
    let torn = end % 2 == 1;
    let read = |step: usize| {
        let mut records = answer_records((endpoint, kind, is_plain), text.chunks(step.max(1)), torn);
        // An answer without an id gets a new id of ours each time.
        for record in records.iter_mut().filter(|record| record.message.starts_with("unnamed-")) {
            record.message.clear();
        }
        records
    };
    let records = read(text.len());
    assert_eq!(records, read(usize::from(*step)), "what was used does not depend on the pieces");
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    assert!(records.len() <= lines + 2, "{} records of {lines} lines", records.len());
    for record in &records {
        assert!(record.message.len() <= MAX_RECORDED_NAME && record.model.len() <= MAX_RECORDED_NAME);
        assert_eq!(record.usage, record.usage.clamped());
    }
    for pair in records.windows(2) {
        assert!(pair[0].usage.saturating_sub(pair[1].usage).is_zero(), "a later record has less: {pair:?}");
    }
}

/// The records of an answer. Checks that the budget decreases by exactly the recorded usage.
fn answer_records<'a>(
    (endpoint, kind, is_plain): (ModelEndpoint, &str, bool),
    pieces: impl Iterator<Item = &'a [u8]>,
    torn: bool,
) -> Vec<ModelUsage> {
    let account = Arc::new(Mutex::new(UsageAccount::default()));
    let open = || account.lock().unwrap_or_else(PoisonError::into_inner);
    let left = |tokens| UsageAllowance { position: 0, tokens, nano_usd: None, prices: None };
    open().set(Some(left(None)));
    let (bell, _other) = UnixStream::pair().expect("a pair of sockets");
    bell.set_nonblocking(true).expect("a socket");
    let mut asked = OutgoingRequestScan::default();
    asked.push(br#"{"model": "asked-for", "messages": []}"#);
    asked.whole = true;
    let recorder = UsageRecorder::new(account.clone(), Arc::new(bell));
    let mut reader = AnswerUsageReader::new(recorder, endpoint, Arc::new(Mutex::new(asked)));
    reader.begin(kind, is_plain);
    pieces.for_each(|piece| reader.push(piece));
    if !torn {
        reader.finish(AnswerEnd::Whole);
    }
    drop(reader);
    assert!(!open().has_readings());

    let mut records = Vec::new();
    open().flush(|queue| {
        records = queue;
        1
    });
    let larger = |one: TokenUsage, other: &ModelUsage| one.at_least(other.usage);
    let total = records.iter().fold(TokenUsage::default(), larger).tokens();
    open().set(Some(left(Some(total))));
    assert!(open().check().is_err(), "a budget of {total} is used up");
    open().set(Some(left(Some(total + 1))));
    assert!(open().check().is_ok(), "a budget of one more than {total} is not");
    records
}

/// A request of a sandbox, as lines: the dialect, the upstream, method and target, and headers. The headers are also
/// checked as headers of an answer.
pub fn egress_request(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (dialect, upstream, request) = (line(), line(), line());
    check_headers(lines.filter_map(header));

    let public = dialect.contains(&b'p');
    let dialect = match dialect.first() {
        Some(b'a') => Some(ModelApiDialect::Anthropic),
        Some(b'o') => Some(ModelApiDialect::Openai),
        Some(b'z') => Some(ModelApiDialect::Azure),
        _ => None,
    };
    let Ok(upstream) = std::str::from_utf8(upstream) else { return };
    let (upstream, headers) = (upstream.to_owned(), Default::default());
    let policy = EgressPolicy { upstream, headers, public, dialect };
    let Ok(route) = EgressRoute::new(&policy) else { return };

    let Some(space) = request.iter().position(|byte| *byte == b' ') else { return };
    let Ok(method) = Method::from_bytes(&request[..space]) else { return };
    let Ok(target) = Uri::try_from(&request[space + 1..]) else { return };
    let Ok((url, endpoint)) = route.admit(&method, &target) else { return };
    let base = if policy.upstream.starts_with("unix:") { "http://localhost" } else { &policy.upstream };
    assert!(is_beneath(url.as_str(), base), "{url} is not beneath {base}");
    assert_eq!(method == Method::GET, endpoint == ModelEndpoint::Models);
    check_url(&url, base);
    assert!(!policy.public || (url.scheme() == "https" && url.domain().is_some()), "{url} is no public host");
}

/// A URL that the proxy sends must not contain anything that services parse in different ways.
fn check_url(url: &Url, base: &str) {
    let base = Url::parse(base).expect("a route was made of it");
    assert_eq!(url.origin(), base.origin());
    assert!(url.username().is_empty() && url.password().is_none() && url.fragment().is_none());
    let decoded = percent_decoded(url.path());
    let slashes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
    assert_eq!(slashes(&decoded), slashes(url.path().as_bytes()), "{url} hides a slash");
    assert!(!decoded.iter().any(|byte| byte.is_ascii_control() || *byte == b'\\'), "{url}");
    for segment in decoded.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        assert!(!matches!(name, b"." | b".."), "{url} climbs");
    }
}

fn percent_decoded(path: &str) -> Vec<u8> {
    let (bytes, mut decoded, mut at) = (path.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let code = path.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let value = line[colon + 1..].trim_ascii();
    Some((HeaderName::from_bytes(&line[..colon]).ok()?, HeaderValue::from_bytes(value).ok()?))
}

fn check_headers(headers: impl Iterator<Item = (HeaderName, HeaderValue)>) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name, value);
    }
    let named: Vec<String> = map
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let (outgoing, incoming) = (request_headers(&map), response_headers(&map));
    for passed in [&outgoing, &incoming] {
        for name in passed.keys() {
            assert!(may_be_added(name.as_str()) || *name == CONTENT_LENGTH, "{name} passes");
            assert!(!named.iter().any(|other| other == name.as_str()), "{name} is for a neighbour");
            let both = [&map, passed].map(|headers| headers.get_all(name).iter().collect::<Vec<_>>());
            assert_eq!(both[0], both[1], "a header passes whole or not at all");
        }
    }
    for secret in ["authorization", "x-api-key", "api-key", "cookie", "content-length", "host"] {
        assert!(!outgoing.contains_key(secret), "{secret} goes out");
    }
    for private in ["set-cookie", "anthropic-organization-id", "location", "server"] {
        assert!(!incoming.contains_key(private), "{private} comes in");
    }
    assert!(!(map.contains_key(TRANSFER_ENCODING) && incoming.contains_key(CONTENT_LENGTH)));
    assert_eq!(request_headers(&outgoing), outgoing);
    assert_eq!(response_headers(&incoming), incoming);
}
