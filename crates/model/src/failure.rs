//! Kinds of failure. One table maps them to HTTP statuses, one to exit codes; both cover every kind.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a caller can do about a failure. Each kind has one HTTP status and one exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is wrong.
    Invalid,
    /// There is no valid key.
    Unauthorized,
    /// The key is valid but may not do this.
    Forbidden,
    /// It does not exist, or belongs to another tenant.
    NotFound,
    /// It conflicts with the current state.
    Conflict,
    /// It existed and is over.
    Gone,
    /// It exceeds a limit.
    TooLarge,
    /// It exceeds a quota; less, or a later attempt, works.
    TooMany,
    /// Well-formed, but not possible in the current state.
    Unprocessable,
    /// The caller did not complete its request in time.
    Timeout,
    /// Not possible now; a later attempt may work.
    Unavailable,
    /// A fault of the server.
    Internal,
}

/// A failure as a client sees it: a stable code for programs, a sentence with the remedy for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// For programs; never changes.
    pub code: String,
    /// For people: the cause and the remedy.
    pub error: String,
}

impl Problem {
    /// A problem with this code and sentence.
    pub fn new(code: &str, error: impl Into<String>) -> Self {
        Self { code: code.to_owned(), error: error.into() }
    }
}
