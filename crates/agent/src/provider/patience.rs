//! Whether to ask again, and when. Pure.

use super::failure::{Failure, Refusal};
use std::time::Duration;

/// How often one answer is asked for.
pub(super) const MOST: u32 = 8;
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// Who is told to come back later than this is better off with an error.
const LONGEST_ASKED_FOR: Duration = Duration::from_secs(120);

/// What services call an error in the middle of an answer that may be gone the next time.
const PASSING: [&str; 7] = [
    "overloaded_error",
    "api_error",
    "rate_limit_error",
    "timeout_error",
    "server_error",
    "rate_limit_exceeded",
    "error",
];

#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Again { delay: Duration },
    GiveUp,
    Cancelled,
}

/// `dice` spreads those who failed at the same time.
pub(super) fn next(failure: &Failure, attempt: u32, dice: u8) -> Next {
    let asked_for = match failure {
        Failure::Cancelled => return Next::Cancelled,
        Failure::Declined | Failure::OutOfTokens => return Next::GiveUp,
        Failure::Refused(refusal) if !passes(refusal) => return Next::GiveUp,
        Failure::Refused(refusal) => refusal.retry_after,
        Failure::Broken(_) => None,
    };
    if attempt >= MOST || asked_for.is_some_and(|time| time > LONGEST_ASKED_FOR) {
        return Next::GiveUp;
    }
    let delay = FIRST.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST);
    // From three quarters of it to all of it.
    let delay = delay.mul_f32(0.75 + f32::from(dice) / 1020.0);
    Next::Again { delay: asked_for.unwrap_or(delay) }
}

/// Whether it may be another answer the next time.
fn passes(refusal: &Refusal) -> bool {
    let passing = match refusal.status {
        // Nobody pays before the next try.
        _ if refusal.kind == "insufficient_quota" => false,
        Some(408 | 409 | 429 | 500..) => true,
        Some(_) => false,
        None => PASSING.contains(&refusal.kind.as_str()),
    };
    refusal.again.unwrap_or(passing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> Refusal {
        Refusal { status: Some(status), ..Refusal::default() }
    }

    fn delay(next: Next) -> Option<Duration> {
        match next {
            Next::Again { delay } => Some(delay),
            Next::GiveUp | Next::Cancelled => None,
        }
    }

    #[test]
    fn what_may_pass_is_asked_again_and_what_will_not_is_not() {
        for status in [408, 429, 500, 502, 503, 504, 529] {
            assert!(delay(next(&Failure::Refused(refused(status)), 1, 0)).is_some(), "{status}");
        }
        for status in [400, 401, 403, 404, 413, 301] {
            assert_eq!(next(&Failure::Refused(refused(status)), 1, 0), Next::GiveUp, "{status}");
        }
        let told = |status, again| Refusal { again: Some(again), ..refused(status) };
        assert_eq!(next(&Failure::Refused(told(429, false)), 1, 0), Next::GiveUp);
        assert!(delay(next(&Failure::Refused(told(400, true)), 1, 0)).is_some());
        let midway = |kind: &str| Failure::Refused(Refusal { kind: kind.into(), ..Refusal::default() });
        assert!(delay(next(&midway("overloaded_error"), 1, 0)).is_some());
        assert!(delay(next(&midway("server_error"), 1, 0)).is_some());
        assert_eq!(next(&midway("invalid_request_error"), 1, 0), Next::GiveUp);
        let unpaid = Refusal { kind: "insufficient_quota".into(), ..refused(429) };
        assert_eq!(next(&Failure::Refused(unpaid), 1, 0), Next::GiveUp);
        assert_eq!(next(&Failure::Declined, 1, 0), Next::GiveUp);
        assert_eq!(next(&Failure::OutOfTokens, 1, 0), Next::GiveUp);
        assert_eq!(next(&Failure::Cancelled, 1, 0), Next::Cancelled);
    }

    #[test]
    fn the_waits_grow_and_come_to_an_end() {
        let broken = Failure::Broken("x".into());
        let waits: Vec<Duration> =
            (1..MOST).filter_map(|attempt| delay(next(&broken, attempt, 255))).collect();
        let expected = [500, 1000, 2000, 4000, 8000, 16000, 30000].map(Duration::from_millis);
        assert_eq!(waits, expected);
        assert_eq!(next(&broken, MOST, 255), Next::GiveUp);
        assert_eq!(delay(next(&broken, 1, 0)), Some(Duration::from_millis(375)));
    }

    #[test]
    fn the_service_may_say_when_but_not_tomorrow() {
        let later = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            next(&Failure::Refused(Refusal { retry_after, ..refused(429) }), 3, 99)
        };
        assert_eq!(later(0), Next::Again { delay: Duration::ZERO });
        assert_eq!(later(17), Next::Again { delay: Duration::from_secs(17) });
        assert_eq!(later(121), Next::GiveUp);
    }
}
