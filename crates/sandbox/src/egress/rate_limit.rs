//! Limits how many requests a sandbox makes per minute. Pure: the caller passes the time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::refusal::EgressRefusal;

/// Far more than an agent with its helpers needs, but few enough that one sandbox cannot use up a service's own limit.
pub(super) const MAX_REQUESTS: usize = 1000;
const WINDOW: Duration = Duration::from_secs(60);

/// When the requests of the last minute came.
#[derive(Debug, Default)]
pub(super) struct RequestRateLimiter(VecDeque<Instant>);

impl RequestRateLimiter {
    pub(super) fn take(&mut self, now: Instant) -> Result<(), EgressRefusal> {
        while self.0.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.0.pop_front();
        }
        match self.0.front().filter(|_| self.0.len() >= MAX_REQUESTS) {
            Some(first) => {
                let left = WINDOW.saturating_sub(now.duration_since(*first));
                Err(EgressRefusal::RateLimited { seconds: left.as_secs() + 1 })
            }
            None => {
                self.0.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_pass_in_any_minute_and_the_next_gets_a_retry_time() {
        let (mut rate, start) = (RequestRateLimiter::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        for number in 0..MAX_REQUESTS as u64 {
            assert_eq!(rate.take(at(number)), Ok(()), "{number}");
        }
        assert_eq!(rate.take(at(1500)), Err(EgressRefusal::RateLimited { seconds: 59 }));
        assert_eq!(rate.take(at(59_999)), Err(EgressRefusal::RateLimited { seconds: 1 }));
        // The first of them is a minute old now.
        assert_eq!(rate.take(at(60_000)), Ok(()));
        assert_eq!(rate.take(at(60_000)), Err(EgressRefusal::RateLimited { seconds: 1 }));
    }
}
