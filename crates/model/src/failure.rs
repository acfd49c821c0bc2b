//! Kinds of failure. One table turns them into HTTP statuses, one into exit codes; both match all of them.

use serde::{Deserialize, Serialize};

/// What a failure asks of whoever meets it. Each kind has one HTTP status and one exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is wrong.
    Invalid,
    /// No valid key.
    Unauthorized,
    /// A valid key, which may not do this.
    Forbidden,
    /// It is not there, or not the caller's.
    NotFound,
    /// It contradicts what is there.
    Conflict,
    /// It was there and is over.
    Gone,
    /// More than a limit allows.
    TooLarge,
    /// More than a quota allows; less, or later, works.
    TooMany,
    /// Well-formed, but it cannot be done as things stand.
    Unprocessable,
    /// The caller did not go on with its request.
    Timeout,
    /// Not now; later may work.
    Unavailable,
    /// Ours to fix.
    Internal,
}

/// A failure as a client sees it: a stable code for programs, a sentence with the remedy for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
