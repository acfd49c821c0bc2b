//! What went wrong with a call, and what a person can do about it. Pure.

use super::MOST_TOKENS;
use super::http::Head;
use serde::Deserialize;
use std::time::Duration;

/// Of what the service says about it. Others wrote it, and it is shown.
const MOST_WORDS: usize = 500;

#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    Cancelled,
    /// The service said no: at once with a status, or in the middle of its answer without one.
    Refused(Refusal),
    /// The connection broke, or what came over it makes no sense.
    Broken(String),
    /// It does not want to answer.
    Declined,
    /// It used up its tokens before it said anything.
    OutOfTokens,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: Option<u16>,
    pub(super) kind: String,
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    /// Whether the service itself wants to be asked again.
    pub(super) again: Option<bool>,
}

/// An error in the shape of the API.
#[derive(Deserialize)]
pub(super) struct Wrong {
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Problem {
    error: Wrong,
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Refusal {
        Refusal { kind: words(&wrong.kind), message: words(&wrong.message), ..Refusal::default() }
    }
}

impl Failure {
    /// Something that no honest service would send.
    pub(super) fn nonsense(what: &str) -> Failure {
        Failure::Broken(format!("the answer makes no sense: {what}"))
    }

    pub(super) fn refused(head: &Head, body: &[u8]) -> Failure {
        let wrong = serde_json::from_slice::<Problem>(body).map(|problem| problem.error);
        let wrong = wrong.unwrap_or_else(|_| Wrong {
            kind: "error".into(),
            message: String::from_utf8_lossy(body).into_owned(),
        });
        let retry_after = head.header("retry-after").and_then(|value| value.parse().ok());
        let again = head.header("x-should-retry").and_then(|value| value.parse().ok());
        Failure::Refused(Refusal {
            status: Some(head.status),
            retry_after: retry_after.map(Duration::from_secs),
            again,
            ..wrong.into()
        })
    }

    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Failure::Refused(refusal) => refusal.status,
            Failure::Cancelled | Failure::Broken(_) | Failure::Declined | Failure::OutOfTokens => None,
        }
    }

    /// As Claude Code names it to its clients.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Failure::Refused(Refusal { status: Some(429), .. }) => "rate_limit",
            Failure::Refused(Refusal { status: Some(529), .. }) => "overloaded",
            Failure::Refused(Refusal { status: Some(500..), .. }) => "server_error",
            Failure::Refused(Refusal { kind, .. }) if kind == "overloaded_error" => "overloaded",
            Failure::Refused(_)
            | Failure::Cancelled
            | Failure::Broken(_)
            | Failure::Declined
            | Failure::OutOfTokens => "unknown",
        }
    }

    /// Thoughts are signed over all that was before them. After a change of that, as of a CLAUDE.md between a death
    /// and the next start, they are refused, and the conversation goes on without them.
    pub(super) fn is_about_thoughts(&self) -> bool {
        match self {
            Failure::Refused(Refusal { status: Some(400), message, .. }) => {
                ["`thinking`", "`redacted_thinking`"].iter().any(|word| message.contains(word))
            }
            Failure::Refused(_)
            | Failure::Cancelled
            | Failure::Broken(_)
            | Failure::Declined
            | Failure::OutOfTokens => false,
        }
    }

    /// Whether the same would be refused tomorrow, and all that is asked after it with it.
    pub(super) fn is_for_good(&self) -> bool {
        match self {
            Failure::Declined | Failure::Refused(Refusal { status: Some(400 | 413), .. }) => true,
            Failure::Refused(_) | Failure::Cancelled | Failure::Broken(_) | Failure::OutOfTokens => false,
        }
    }

    /// For the one whose turn it was: what happened, and the next step.
    pub(super) fn explain(&self, model: &str, attempts: u32) -> String {
        match self {
            Failure::Cancelled => "the turn was interrupted".into(),
            Failure::Declined => {
                "The model declined to answer. Put it in other words, or ask for something else.".into()
            }
            Failure::OutOfTokens => format!(
                "The model used all of its tokens (at most {MOST_TOKENS}) without an answer. Ask for less at once."
            ),
            Failure::Broken(why) => format!(
                "The model could not be asked ({}): {why}. Send the message again later.",
                times(attempts)
            ),
            Failure::Refused(refusal) => refusal.explain(model, attempts),
        }
    }
}

impl Refusal {
    fn explain(&self, model: &str, attempts: u32) -> String {
        let said = self.said();
        match self.status {
            Some(401) => format!(
                "The model service does not accept the server's key: {said}. Set a valid ANTHROPIC_API_KEY for the \
                 server and restart it. (The token of a subscription is good for runtime = \"claude\" only.)"
            ),
            Some(403) => format!(
                "The server's key may not use {model}: {said}. Set the session's `model` to one that it may use, or \
                 another ANTHROPIC_API_KEY for the server."
            ),
            Some(404) => format!(
                "The model service has no {model}: {said}. Set the session's `model` to one that it has."
            ),
            Some(413) => too_long(model, &said),
            Some(400) if self.message.contains("too long") => too_long(model, &said),
            Some(400) => format!(
                "The model service refused the request: {said}. If it is about {model}, set the session's `model` \
                 to another one."
            ),
            Some(_) | None => format!(
                "The model service has no answer for now ({}): {said}. Send the message again{}.",
                times(attempts),
                self.retry_after.map(|time| format!(" in {} s", time.as_secs())).unwrap_or(" later".into())
            ),
        }
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

/// One line, and not too long.
fn words(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_WORDS).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, headers: &[(&str, &str)], body: &str) -> Failure {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Failure::refused(&Head { status, headers }, body.as_bytes())
    }

    fn error(kind: &str, message: &str) -> String {
        serde_json::json!({"type": "error", "error": {"type": kind, "message": message}}).to_string()
    }

    #[test]
    fn each_refusal_names_the_next_step() {
        let message =
            |status, kind: &str, said: &str| refused(status, &[], &error(kind, said)).explain("m-1", 1);
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
            let said = refused(502, &[], body).explain("m", 2);
            assert!(said.contains("502 error") && !said.contains(char::is_control), "{said}");
        }
        assert!(refused(500, &[], &"x".repeat(100_000)).explain("m", 1).len() < 1000);
    }

    #[test]
    fn the_headers_say_whether_and_when_to_ask_again() {
        let headers = [("retry-after", "7"), ("x-should-retry", "false")];
        let Failure::Refused(refusal) = refused(429, &headers, "") else { panic!("a refusal") };
        assert_eq!((refusal.retry_after, refusal.again), (Some(Duration::from_secs(7)), Some(false)));
        let odd = [("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), ("x-should-retry", "maybe")];
        let Failure::Refused(refusal) = refused(429, &odd, "") else { panic!("a refusal") };
        assert_eq!((refusal.retry_after, refusal.again), (None, None));
    }

    #[test]
    fn thoughts_that_are_refused_are_told_from_everything_else() {
        let bound = "messages.5.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.";
        assert!(refused(400, &[], &error("invalid_request_error", bound)).is_about_thoughts());
        assert!(!refused(400, &[], &error("invalid_request_error", "messages: no")).is_about_thoughts());
        assert!(!refused(500, &[], &error("api_error", bound)).is_about_thoughts());
    }
}
