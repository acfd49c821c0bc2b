//! Saying no: one table from kinds of failure to HTTP statuses, one shape for every error body.

use ash_model::{Kind, QuotaReached};
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) code: String,
    pub(crate) error: String,
    /// Further fields of the body.
    pub(crate) details: Map<String, Value>,
}

pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(kind: Kind, code: &str, error: impl Into<String>) -> Problem {
        Problem { kind, code: code.to_owned(), error: error.into(), details: Map::new() }
    }

    /// With a further field in its body.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn invalid(code: &str, error: impl Into<String>) -> Problem {
        Problem::new(Kind::Invalid, code, error)
    }

    pub(crate) fn not_found(code: &str, error: &str) -> Problem {
        Problem::new(Kind::NotFound, code, error)
    }

    pub(crate) fn internal(error: impl std::fmt::Display) -> Problem {
        Problem::new(Kind::Internal, "internal", error.to_string())
    }
}

pub(crate) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::Gone => StatusCode::GONE,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The one shape of an error.
pub(crate) fn answer(status: StatusCode, code: &str, error: &str) -> Response {
    answer_with(status, code, error, Map::new())
}

fn answer_with(status: StatusCode, code: &str, error: &str, details: Map<String, Value>) -> Response {
    let mut body = details;
    let fields = [("error", json!(error)), ("statusCode", json!(status.as_u16())), ("code", json!(code))];
    body.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    (status, Json(body)).into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = status(self.kind);
        if self.kind == Kind::Internal {
            tracing::error!(code = %self.code, error = %self.error, "a request failed");
        }
        let mut response = answer_with(status, &self.code, &self.error, self.details);
        if matches!(self.kind, Kind::Unavailable | Kind::TooMany) {
            response.headers_mut().insert("retry-after", axum::http::HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<ash_session::Error> for Problem {
    fn from(error: ash_session::Error) -> Problem {
        // A name that is taken is the caller's to change; the words are meant for them.
        let problem = Problem::new(error.kind(), error.code(), error.to_string());
        match error {
            ash_session::Error::Quota(QuotaReached { quota, limit, used, .. }) => {
                problem.with("quota", quota.as_str()).with("limit", limit).with("used", used)
            }
            _ => problem,
        }
    }
}

impl From<QuotaReached> for Problem {
    fn from(reached: QuotaReached) -> Problem {
        ash_session::Error::from(reached).into()
    }
}

impl From<ash_store::Error> for Problem {
    fn from(error: ash_store::Error) -> Problem {
        ash_session::Error::from(error).into()
    }
}

impl From<ash_snapshot::Error> for Problem {
    fn from(error: ash_snapshot::Error) -> Problem {
        ash_session::Error::from(error).into()
    }
}
