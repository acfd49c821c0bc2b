//! Decides whether and when to retry a call. Pure.

use super::failure::{ProviderFailure, ProviderRefusal};
use std::time::Duration;

/// The number of attempts for one answer.
pub(super) const MAX_ATTEMPTS: u32 = 8;
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// If the service asks for a longer wait, an error is better for the user.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Error types within a stream that may be gone at the next attempt.
const TRANSIENT_ERROR_TYPES: [&str; 7] = [
    "overloaded_error",
    "api_error",
    "rate_limit_error",
    "timeout_error",
    "server_error",
    "rate_limit_exceeded",
    "error",
];

#[derive(Debug, PartialEq)]
pub(super) enum RetryDecision {
    Again { delay: Duration },
    GiveUp,
    Cancelled,
}

/// `dice` is jitter, which spreads agents that failed at the same time.
pub(super) fn decide(failure: &ProviderFailure, attempt: u32, dice: u8) -> RetryDecision {
    let asked_for = match failure {
        ProviderFailure::Cancelled => return RetryDecision::Cancelled,
        ProviderFailure::Declined | ProviderFailure::OutOfTokens => return RetryDecision::GiveUp,
        ProviderFailure::Refused(refusal) if !is_transient(refusal) => return RetryDecision::GiveUp,
        ProviderFailure::Refused(refusal) => refusal.retry_after,
        ProviderFailure::Broken(_) => None,
    };
    if attempt >= MAX_ATTEMPTS || asked_for.is_some_and(|time| time > MAX_RETRY_AFTER) {
        return RetryDecision::GiveUp;
    }
    let delay = FIRST_DELAY.saturating_mul(1 << (attempt - 1).min(16)).min(MAX_DELAY);
    // Between three quarters of the delay and all of it.
    let delay = delay.mul_f32(0.75 + f32::from(dice) / 1020.0);
    RetryDecision::Again { delay: asked_for.unwrap_or(delay) }
}

/// Whether a retry can have another result.
fn is_transient(refusal: &ProviderRefusal) -> bool {
    let passing = match refusal.status {
        // Missing credit does not come back between two attempts.
        _ if refusal.kind == "insufficient_quota" => false,
        Some(408 | 409 | 429 | 500..) => true,
        Some(_) => false,
        None => TRANSIENT_ERROR_TYPES.contains(&refusal.kind.as_str()),
    };
    refusal.again.unwrap_or(passing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> ProviderRefusal {
        ProviderRefusal { status: Some(status), ..ProviderRefusal::default() }
    }

    fn delay(next: RetryDecision) -> Option<Duration> {
        match next {
            RetryDecision::Again { delay } => Some(delay),
            RetryDecision::GiveUp | RetryDecision::Cancelled => None,
        }
    }

    #[test]
    fn temporary_errors_are_retried_and_permanent_ones_are_not() {
        for status in [408, 429, 500, 502, 503, 504, 529] {
            assert!(delay(decide(&ProviderFailure::Refused(refused(status)), 1, 0)).is_some(), "{status}");
        }
        for status in [400, 401, 403, 404, 413, 301] {
            assert_eq!(
                decide(&ProviderFailure::Refused(refused(status)), 1, 0),
                RetryDecision::GiveUp,
                "{status}"
            );
        }
        let told = |status, again| ProviderRefusal { again: Some(again), ..refused(status) };
        assert_eq!(decide(&ProviderFailure::Refused(told(429, false)), 1, 0), RetryDecision::GiveUp);
        assert!(delay(decide(&ProviderFailure::Refused(told(400, true)), 1, 0)).is_some());
        let midway = |kind: &str| {
            ProviderFailure::Refused(ProviderRefusal { kind: kind.into(), ..ProviderRefusal::default() })
        };
        assert!(delay(decide(&midway("overloaded_error"), 1, 0)).is_some());
        assert!(delay(decide(&midway("server_error"), 1, 0)).is_some());
        assert_eq!(decide(&midway("invalid_request_error"), 1, 0), RetryDecision::GiveUp);
        let unpaid = ProviderRefusal { kind: "insufficient_quota".into(), ..refused(429) };
        assert_eq!(decide(&ProviderFailure::Refused(unpaid), 1, 0), RetryDecision::GiveUp);
        assert_eq!(decide(&ProviderFailure::Declined, 1, 0), RetryDecision::GiveUp);
        assert_eq!(decide(&ProviderFailure::OutOfTokens, 1, 0), RetryDecision::GiveUp);
        assert_eq!(decide(&ProviderFailure::Cancelled, 1, 0), RetryDecision::Cancelled);
    }

    #[test]
    fn the_waits_grow_and_come_to_an_end() {
        let broken = ProviderFailure::Broken("x".into());
        let waits: Vec<Duration> =
            (1..MAX_ATTEMPTS).filter_map(|attempt| delay(decide(&broken, attempt, 255))).collect();
        let expected = [500, 1000, 2000, 4000, 8000, 16000, 30000].map(Duration::from_millis);
        assert_eq!(waits, expected);
        assert_eq!(decide(&broken, MAX_ATTEMPTS, 255), RetryDecision::GiveUp);
        assert_eq!(delay(decide(&broken, 1, 0)), Some(Duration::from_millis(375)));
    }

    #[test]
    fn the_service_may_say_when_but_not_tomorrow() {
        let later = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            decide(&ProviderFailure::Refused(ProviderRefusal { retry_after, ..refused(429) }), 3, 99)
        };
        assert_eq!(later(0), RetryDecision::Again { delay: Duration::ZERO });
        assert_eq!(later(17), RetryDecision::Again { delay: Duration::from_secs(17) });
        assert_eq!(later(121), RetryDecision::GiveUp);
    }
}
