//! Classifies failed model calls, and says what a person can do about them. Pure.

use super::http::HttpResponseHead;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// The longest service message that we show. The text is untrusted.
const MAX_MESSAGE_CHARS: usize = 500;
/// Error codes that are more precise than the error types beside them.
const TOO_LONG: &str = "context_length_exceeded";
const FILTERED: &str = "content_filter";

#[derive(Debug, PartialEq)]
pub(super) enum ProviderFailure {
    Cancelled,
    /// The service refused: at once with a status, or within its answer without one.
    Refused(ProviderRefusal),
    /// The connection broke, or the data was not valid.
    Broken(String),
    /// The model declined to answer.
    Declined,
    /// The answer reached its token limit before any text.
    OutOfTokens,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct ProviderRefusal {
    pub(super) status: Option<u16>,
    pub(super) kind: String,
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    /// The service's own hint whether to retry.
    pub(super) again: Option<bool>,
}

/// The target of the call, for the error message.
pub(super) struct CallTarget<'a> {
    pub(super) model: &'a str,
    pub(super) key: ProviderKeyOwner,
}

/// Whose key the call used, as far as it is known here: the agent sees only which service it talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderKeyOwner {
    Server,
    Client,
}

/// An error in the formats of the services: with a type, a code, both, or neither.
#[derive(Deserialize)]
pub(super) struct ProviderErrorBody {
    #[serde(rename = "type", default)]
    kind: Value,
    #[serde(default)]
    code: Value,
    #[serde(default)]
    message: Value,
}

#[derive(Deserialize)]
struct ProviderErrorEnvelope {
    error: ProviderErrorBody,
}

impl From<ProviderErrorBody> for ProviderRefusal {
    fn from(wrong: ProviderErrorBody) -> ProviderRefusal {
        // Only the code says that a conversation is too long.
        let [code, kind] =
            [&wrong.code, &wrong.kind].map(|word| word.as_str().filter(|word| !word.is_empty()));
        let kind = match code {
            Some(TOO_LONG | FILTERED) => code,
            Some(_) | None => kind.or(code),
        };
        let message = wrong.message.as_str().unwrap_or_default();
        ProviderRefusal {
            kind: words(kind.unwrap_or("error")),
            message: words(message),
            ..ProviderRefusal::default()
        }
    }
}

impl ProviderFailure {
    /// Data that no correct service sends.
    pub(super) fn malformed(what: &str) -> ProviderFailure {
        ProviderFailure::Broken(format!("the answer makes no sense: {what}"))
    }

    pub(super) fn refused(head: &HttpResponseHead, body: &[u8]) -> ProviderFailure {
        let wrong = serde_json::from_slice::<ProviderErrorEnvelope>(body).map(|problem| problem.error);
        let wrong = wrong.unwrap_or_else(|_| ProviderErrorBody {
            kind: Value::Null,
            code: Value::Null,
            message: String::from_utf8_lossy(body).into(),
        });
        let number = |name| head.header(name).and_then(|value| value.parse().ok());
        let retry_after = number("retry-after-ms").map(Duration::from_millis);
        let retry_after = retry_after.or(number("retry-after").map(Duration::from_secs));
        let again = head.header("x-should-retry").and_then(|value| value.parse().ok());
        ProviderFailure::Refused(ProviderRefusal {
            status: Some(head.status),
            retry_after,
            again,
            ..wrong.into()
        })
    }

    pub(super) fn status(&self) -> Option<u16> {
        match self {
            ProviderFailure::Refused(refusal) => refusal.status,
            ProviderFailure::Cancelled
            | ProviderFailure::Broken(_)
            | ProviderFailure::Declined
            | ProviderFailure::OutOfTokens => None,
        }
    }

    /// The error type as Claude Code shows it to its clients.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            ProviderFailure::Refused(ProviderRefusal { status: Some(429), .. }) => "rate_limit",
            ProviderFailure::Refused(ProviderRefusal { status: Some(529), .. }) => "overloaded",
            ProviderFailure::Refused(ProviderRefusal { status: Some(500..), .. }) => "server_error",
            ProviderFailure::Refused(ProviderRefusal { kind, .. }) if kind == "overloaded_error" => {
                "overloaded"
            }
            ProviderFailure::Refused(ProviderRefusal { kind, .. }) if kind == "server_error" => {
                "server_error"
            }
            ProviderFailure::Refused(_)
            | ProviderFailure::Cancelled
            | ProviderFailure::Broken(_)
            | ProviderFailure::Declined
            | ProviderFailure::OutOfTokens => "unknown",
        }
    }

    /// Whether the service would refuse the same prompt for ever, and every later request that contains it.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            ProviderFailure::Declined
            | ProviderFailure::Refused(ProviderRefusal { status: Some(400 | 413), .. }) => true,
            ProviderFailure::Refused(_)
            | ProviderFailure::Cancelled
            | ProviderFailure::Broken(_)
            | ProviderFailure::OutOfTokens => false,
        }
    }

    /// For the user of the turn: what happened, and the next step.
    pub(super) fn explain(&self, asked: &CallTarget<'_>, attempts: u32) -> String {
        match self {
            ProviderFailure::Cancelled => "the turn was interrupted".into(),
            ProviderFailure::Declined => {
                "The model declined to answer. Put it in other words, or ask for something else.".into()
            }
            ProviderFailure::OutOfTokens => {
                "The model used all of its tokens without an answer. Ask for less at once.".into()
            }
            ProviderFailure::Broken(why) => format!(
                "The model could not be asked ({}): {why}. Send the message again later.",
                times(attempts)
            ),
            ProviderFailure::Refused(refusal) => refusal.explain(asked, attempts),
        }
    }
}

impl ProviderRefusal {
    fn explain(&self, asked: &CallTarget<'_>, attempts: u32) -> String {
        let said = self.said();
        let CallTarget { model, key } = asked;
        match (self.status, key) {
            (Some(401), ProviderKeyOwner::Server) => format!(
                "The model service does not accept the key: {said}. Set a valid ANTHROPIC_API_KEY for the \
                 server and restart it; a session with a `provider` of its own is resumed with one whose apiKey is valid. (The token of a subscription is good for runtime = \"claude\" only.)"
            ),
            (Some(401), ProviderKeyOwner::Client) => format!(
                "The model service does not accept the session's key: {said}. Stop the session, and resume it with a \
                 `provider` whose apiKey is valid."
            ),
            (Some(403), ProviderKeyOwner::Server) => format!(
                "The server's key may not use {model}: {said}. Set the session's `model` to one that it may use, or \
                 another ANTHROPIC_API_KEY for the server."
            ),
            (Some(403), ProviderKeyOwner::Client) => format!(
                "The session's key may not use {model}: {said}. Set the session's `model` to one that it may use, or \
                 resume it with another `provider`."
            ),
            (Some(404), _) => format!(
                "The model service has no {model}: {said}. Set the session's `model` to one that it has."
            ),
            (Some(413), _) => too_long(model, &said),
            (Some(400), _) if self.is_about_length() => too_long(model, &said),
            (Some(400), _) if self.kind == FILTERED => format!(
                "The model service declined the request: {said}. Put it in other words, or ask for something else."
            ),
            (Some(400), _) => format!(
                "The model service refused the request: {said}. If it is about {model}, set the session's `model` \
                 to another one."
            ),
            (Some(_) | None, _) => format!(
                "The model service has no answer for now ({}): {said}. Send the message again{}.",
                times(attempts),
                self.retry_after.map(|time| format!(" in {} s", time.as_secs())).unwrap_or(" later".into())
            ),
        }
    }

    fn is_about_length(&self) -> bool {
        self.kind == TOO_LONG
            || ["too long", "maximum context length"].iter().any(|words| self.message.contains(words))
    }

    fn said(&self) -> String {
        let status = self.status.map(|status| format!("{status} ")).unwrap_or_default();
        let message = self.message.trim_end_matches('.');
        format!("{status}{}{}{message}", self.kind, if message.is_empty() { "" } else { ", " })
    }
}

fn times(attempts: u32) -> String {
    format!("asked {attempts} time{}", if attempts == 1 { "" } else { "s" })
}

fn too_long(model: &str, said: &str) -> String {
    format!(
        "The conversation is too long for {model}: {said}. Fork the session at an earlier checkpoint, or begin a new one."
    )
}

/// One line of limited length.
fn words(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: CallTarget<'_> = CallTarget { model: "m-1", key: ProviderKeyOwner::Server };
    const THEIRS: CallTarget<'_> = CallTarget { model: "m-1", key: ProviderKeyOwner::Client };

    fn refused(status: u16, headers: &[(&str, &str)], body: &str) -> ProviderFailure {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ProviderFailure::refused(&HttpResponseHead { status, headers }, body.as_bytes())
    }

    fn error(kind: &str, message: &str) -> String {
        serde_json::json!({"type": "error", "error": {"type": kind, "message": message}}).to_string()
    }

    #[test]
    fn each_refusal_names_the_next_step() {
        let message =
            |status, kind: &str, said: &str| refused(status, &[], &error(kind, said)).explain(&OURS, 1);
        let key = message(401, "authentication_error", "invalid x-api-key");
        assert!(
            key.contains("401 authentication_error, invalid x-api-key") && key.contains("ANTHROPIC_API_KEY"),
            "{key}"
        );
        assert!(message(403, "permission_error", "no").contains("may not use m-1"));
        assert!(message(404, "not_found_error", "model: m-1").contains("`model`"));
        assert!(
            message(400, "invalid_request_error", "prompt is too long: 2 > 1").contains("Fork the session")
        );
        assert!(message(413, "request_too_large", "").contains("Fork the session"));
        assert!(message(400, "invalid_request_error", "max_tokens: no").contains("max_tokens: no"));
        assert!(
            message(529, "overloaded_error", "Overloaded").contains("(asked 1 time): 529 overloaded_error")
        );
    }

    #[test]
    fn what_the_service_says_is_bounded_and_on_one_line() {
        for body in ["<html>\n502\u{7}", "", "{\"error\": 3}", "{\"error\": {\"type\": 1}}"] {
            let said = refused(502, &[], body).explain(&OURS, 2);
            assert!(said.contains("502 error") && !said.contains(char::is_control), "{said}");
        }
        assert!(refused(500, &[], &"x".repeat(100_000)).explain(&OURS, 1).len() < 1000);
    }

    #[test]
    fn the_headers_say_whether_and_when_to_ask_again() {
        let ProviderFailure::Refused(refusal) =
            refused(429, &[("retry-after-ms", "1500"), ("retry-after", "2")], "")
        else {
            panic!("a refusal")
        };
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(1500)));
        let headers = [("retry-after", "7"), ("x-should-retry", "false")];
        let ProviderFailure::Refused(refusal) = refused(429, &headers, "") else { panic!("a refusal") };
        assert_eq!((refusal.retry_after, refusal.again), (Some(Duration::from_secs(7)), Some(false)));
        let odd = [("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), ("x-should-retry", "maybe")];
        let ProviderFailure::Refused(refusal) = refused(429, &odd, "") else { panic!("a refusal") };
        assert_eq!((refusal.retry_after, refusal.again), (None, None));
    }

    #[test]
    fn services_report_an_error_by_a_type_or_a_code() {
        let said = |status, error: Value| {
            refused(status, &[], &serde_json::json!({ "error": error }).to_string()).explain(&THEIRS, 1)
        };
        use serde_json::json;
        let key = said(
            401,
            json!({"message": "Incorrect API key provided.", "type": "invalid_request_error",
            "param": null, "code": "invalid_api_key"}),
        );
        assert!(key.contains("401 invalid_request_error, Incorrect") && key.contains("`provider`"), "{key}");
        assert!(!key.contains("ANTHROPIC"), "{key}");
        let denied =
            said(401, json!({"code": "401", "message": "Access denied due to invalid subscription key"}));
        assert!(denied.contains("401 401, Access denied"), "{denied}");
        let long = said(
            400,
            json!({"message": "This model's maximum context length is 8192 tokens.",
            "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}),
        );
        assert!(long.contains("too long for m-1") && long.contains("Fork the session"), "{long}");
        let filtered = said(
            400,
            json!({"message": "The prompt triggered the policy", "type": null, "param": "prompt",
            "code": "content_filter", "status": 400, "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
        );
        assert!(filtered.contains("declined") && filtered.contains("other words"), "{filtered}");
        assert!(said(403, json!({"message": "no"})).contains("session's key may not use m-1"));
        assert!(said(500, json!({"code": 7, "message": ["x"]})).contains("500 error."));
    }
}
