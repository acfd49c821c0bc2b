//! Error responses in the format of the Messages API.

use serde_json::{Value, json};

/// The API's error type for a status; `None` for statuses that the API does not use.
pub(crate) fn kind(status: u16) -> Option<&'static str> {
    Some(match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500 => "api_error",
        529 => "overloaded_error",
        _ => return None,
    })
}

pub(crate) fn body(status: u16, message: &str, request_id: &str) -> Value {
    let kind = kind(status).unwrap_or("api_error");
    json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": request_id })
}

/// Whether a client should retry.
pub(crate) fn is_passing(status: u16) -> bool {
    matches!(status, 429 | 500 | 529)
}
