//! Errors of the API: one table from kinds of failure to HTTP statuses, and one shape for every error body.

use crate::openapi::{Answer, ApiErrorBody, ErrorDetails};
use ash_model::{FailureKind, QuotaReached};
use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

#[derive(Debug)]
pub(crate) struct ApiProblem {
    pub(crate) kind: FailureKind,
    pub(crate) code: String,
    pub(crate) error: String,
    /// Further fields of the body. In a box, because most errors have none.
    pub(crate) details: Option<Box<ErrorDetails>>,
}

pub(crate) type ApiResult<T> = Result<T, ApiProblem>;

impl ApiProblem {
    pub(crate) fn new(kind: FailureKind, code: &str, error: impl Into<String>) -> ApiProblem {
        ApiProblem { kind, code: code.to_owned(), error: error.into(), details: None }
    }

    /// Adds fields to the body.
    pub(crate) fn with(self, details: ErrorDetails) -> ApiProblem {
        ApiProblem { details: Some(Box::new(details)), ..self }
    }

    pub(crate) fn invalid(code: &str, error: impl Into<String>) -> ApiProblem {
        ApiProblem::new(FailureKind::Invalid, code, error)
    }

    pub(crate) fn not_found(code: &str, error: &str) -> ApiProblem {
        ApiProblem::new(FailureKind::NotFound, code, error)
    }

    pub(crate) fn internal(error: impl std::fmt::Display) -> ApiProblem {
        ApiProblem::new(FailureKind::Internal, "internal", error.to_string())
    }
}

pub(crate) fn status(kind: FailureKind) -> StatusCode {
    match kind {
        FailureKind::Invalid => StatusCode::BAD_REQUEST,
        FailureKind::Unauthorized => StatusCode::UNAUTHORIZED,
        FailureKind::Forbidden => StatusCode::FORBIDDEN,
        FailureKind::NotFound => StatusCode::NOT_FOUND,
        FailureKind::Conflict => StatusCode::CONFLICT,
        FailureKind::Gone => StatusCode::GONE,
        FailureKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FailureKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        FailureKind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        FailureKind::Timeout => StatusCode::REQUEST_TIMEOUT,
        FailureKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        FailureKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What does not pass by itself: a client that repeats the request gets the same answer until an operator acts.
const LASTING_CODES: [&str; 3] = ["disk_full", "internal_disabled", "sandbox_failed"];

/// The one shape of an error.
pub(crate) fn answer(status: StatusCode, code: &str, error: &str) -> Response {
    answer_with(status, code, error, None)
}

fn answer_with(status: StatusCode, code: &str, error: &str, details: Option<Box<ErrorDetails>>) -> Response {
    let details = details.map(|details| *details).unwrap_or_default();
    let body = ApiErrorBody {
        error: error.to_owned(),
        status_code: status.as_u16(),
        code: code.to_owned(),
        details,
    };
    (status, Answer(body)).into_response()
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let status = status(self.kind);
        if self.kind == FailureKind::Internal {
            tracing::error!(code = %self.code, error = %self.error, "a request failed");
        }
        let mut response = answer_with(status, &self.code, &self.error, self.details);
        let passes = !LASTING_CODES.contains(&self.code.as_str());
        if passes && matches!(self.kind, FailureKind::Unavailable | FailureKind::TooMany) {
            response.headers_mut().insert("retry-after", axum::http::HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<ash_session::Error> for ApiProblem {
    fn from(error: ash_session::Error) -> ApiProblem {
        // The texts of these errors are written for the caller.
        let problem = ApiProblem::new(error.kind(), error.code(), error.to_string());
        match error {
            ash_session::Error::Quota(QuotaReached { quota, limit, used, .. }) => {
                problem.with(ErrorDetails::quota(quota.as_str(), limit, used))
            }
            _ => problem,
        }
    }
}

impl From<QuotaReached> for ApiProblem {
    fn from(reached: QuotaReached) -> ApiProblem {
        ash_session::Error::from(reached).into()
    }
}

impl From<ash_store::Error> for ApiProblem {
    fn from(error: ash_store::Error) -> ApiProblem {
        ash_session::Error::from(error).into()
    }
}

impl From<ash_snapshot::Error> for ApiProblem {
    fn from(error: ash_snapshot::Error) -> ApiProblem {
        ash_session::Error::from(error).into()
    }
}
