//! The answers to calls that the proxy refuses: in the format that the model's clients know, with the remedy, and never
//! with any content of a policy.

use std::error::Error as _;

use ash_model::ModelApiDialect;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};

use super::{endpoint, rate_limit};

/// A body is longer than the limit.
#[derive(Debug, thiserror::Error)]
#[error("the body is too long")]
pub(super) struct RequestBodyTooLong;

/// A body asks the service to continue after its answer.
#[derive(Debug, thiserror::Error)]
#[error("the body asks for work in the background")]
pub(super) struct InBackground;

/// A body asks for a stream without its usage.
#[derive(Debug, thiserror::Error)]
#[error("the body asks for a stream without its usage")]
pub(super) struct UncountedStream;

/// A body could be decoded in more than one way.
#[derive(Debug, thiserror::Error)]
#[error("the body is not text in UTF-8")]
pub(super) struct NotUtf8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EgressRefusal {
    NoRoute,
    OldHttp,
    Target(&'static str),
    Endpoint(Option<ModelApiDialect>),
    /// The answer would come at once, without the usage of the work.
    Background,
    UncountedStream,
    /// The proxy cannot read what the body asks for.
    Encoding,
    /// The number of whole seconds until the next request may go out.
    RateLimited {
        seconds: u64,
    },
    TooLarge,
    Unreachable {
        why: String,
    },
    Timeout,
    /// Its end would look like a broken connection.
    UnframedBody,
    Upgrade,
    /// No session has this socket yet.
    NoSession,
    /// The session of this socket has left the sandbox.
    SessionLeft,
    /// The limit's name in the API.
    BudgetExhausted {
        limit: &'static str,
    },
}

impl EgressRefusal {
    pub(super) fn because(error: &reqwest::Error) -> Self {
        let mut cause: &(dyn std::error::Error + 'static) = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        if cause.is::<RequestBodyTooLong>() {
            Self::TooLarge
        } else if cause.is::<InBackground>() {
            Self::Background
        } else if cause.is::<UncountedStream>() {
            Self::UncountedStream
        } else if cause.is::<NotUtf8>() {
            Self::Encoding
        } else if error.is_timeout() && !error.is_connect() {
            Self::Timeout
        } else if error.is_timeout() {
            Self::Unreachable { why: "it does not answer".to_owned() }
        } else if error.source().is_some() {
            // The innermost error only: the outer ones contain the address.
            Self::Unreachable { why: cause.to_string() }
        } else {
            Self::Unreachable { why: "the request failed".to_owned() }
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoRoute | Self::NoSession | Self::SessionLeft => StatusCode::SERVICE_UNAVAILABLE,
            Self::BudgetExhausted { .. } => StatusCode::PAYMENT_REQUIRED,
            Self::OldHttp => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Endpoint(_) | Self::Background | Self::UncountedStream => StatusCode::FORBIDDEN,
            Self::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Target(_) | Self::Encoding => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unreachable { .. } | Self::UnframedBody | Self::Upgrade => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::OldHttp | Self::Target(_) | Self::Encoding => "invalid_request_error",
            Self::Endpoint(_) | Self::Background | Self::UncountedStream => "permission_error",
            Self::RateLimited { .. } => "rate_limit_error",
            Self::TooLarge => "request_too_large",
            Self::Timeout => "timeout_error",
            Self::BudgetExhausted { .. } => "billing_error",
            Self::NoRoute
            | Self::NoSession
            | Self::SessionLeft
            | Self::Unreachable { .. }
            | Self::UnframedBody
            | Self::Upgrade => "api_error",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NoRoute => "This sandbox has no way to a model: the server has no provider key for it. \
                              Give the server one and send the message again."
                .to_owned(),
            Self::NoSession => "No session of the sandbox has this socket.".to_owned(),
            Self::SessionLeft => "This socket belongs to a session that has left the sandbox.".to_owned(),
            Self::BudgetExhausted { limit } => format!(
                "The budget is used up: {limit}. Raise it with PATCH …/config, or send a message with a higher one."
            ),
            Self::OldHttp => "Only HTTP/1.1 is spoken here.".to_owned(),
            Self::Endpoint(dialect) => {
                format!(
                    "This request is not passed on. What an agent may call: {}.",
                    endpoint::listed(*dialect)
                )
            }
            Self::Background => "This request is not passed on: with `background` the service works on after its \
                                 answer, and what it uses could not be counted. Send it without `background`, \
                                 and not compressed."
                .to_owned(),
            Self::UncountedStream => "This request is not passed on: a stream says what it used only if it is asked \
                                      to. Add `stream_options: {\"include_usage\": true}`, or send it without \
                                      `stream`."
                .to_owned(),
            Self::Encoding => "The body is not passed on: it must be text in UTF-8, not compressed, with no other \
                               charset in its content-type."
                .to_owned(),
            Self::RateLimited { seconds } => format!(
                "A sandbox may make {} requests a minute. Try again in {seconds} seconds.",
                rate_limit::MAX_REQUESTS
            ),
            Self::Target(why) => format!("The path is not passed on: {why}."),
            Self::TooLarge => "The request is larger than 64 MiB.".to_owned(),
            Self::Unreachable { why } => format!("The model service cannot be reached: {why}."),
            Self::Timeout => "The model service was silent for too long.".to_owned(),
            Self::UnframedBody => "The model service's answer has neither a length nor chunks, so that its end \
                              could not be told from a broken connection."
                .to_owned(),
            Self::Upgrade => "The model service wants to speak another protocol than HTTP.".to_owned(),
        }
    }

    pub(super) fn answer(&self) -> Response<reqwest::Body> {
        let error = serde_json::json!({ "type": self.kind(), "message": self.message() });
        let text = serde_json::json!({ "type": "error", "error": error }).to_string();
        let mut response = Response::new(text.into());
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Self::RateLimited { seconds } = self {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*seconds));
        }
        response
    }
}
