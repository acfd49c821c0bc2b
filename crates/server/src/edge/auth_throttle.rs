//! Throttles wrong keys. Each address has a budget of wrong keys; beyond it, answers to wrong keys are delayed and have
//! status 429. A right key never passes through here, so that an attacker cannot lock out others with the same address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// This many wrong keys at once count as mistakes.
const BURST: f64 = 100.0;
/// Budget that an address regains per second.
const REFILL: f64 = 1.0;
/// Minimum interval between two reports about one address; a report has the number of wrong keys.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Delay of the answer to a wrong key beyond the burst.
const DELAY: Duration = Duration::from_secs(1);
/// Maximum number of delayed answers at the same time, so that they cannot occupy all connections.
const MAX_DELAYED: usize = 64;
const MAX_ADDRESSES: usize = 4096;

pub(crate) struct FailedAuthThrottle {
    addresses: Mutex<HashMap<IpAddr, FailedAuthCount>>,
    delayed: Semaphore,
}

#[derive(Debug)]
struct FailedAuthCount {
    count: f64,
    at: Instant,
    unreported: u64,
    reported: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThrottleDecision {
    pub(crate) is_throttled: bool,
    /// The number of wrong keys to report to the log and the audit log, if a report is due.
    pub(crate) report: Option<u64>,
}

impl Default for FailedAuthThrottle {
    fn default() -> FailedAuthThrottle {
        FailedAuthThrottle { addresses: Mutex::default(), delayed: Semaphore::new(MAX_DELAYED) }
    }
}

impl FailedAuthThrottle {
    pub(crate) fn record_failure(&self, address: IpAddr, now: Instant) -> ThrottleDecision {
        let mut addresses = self.addresses.lock().expect("no code panics while it holds this lock");
        let address = network(address);
        if addresses.len() >= MAX_ADDRESSES && !addresses.contains_key(&address) {
            evict_quiet_addresses(&mut addresses, now);
        }
        let fresh = FailedAuthCount { count: 0.0, at: now, unreported: 0, reported: None };
        let mistakes = addresses.entry(address).or_insert(fresh);
        mistakes.count = (mistakes.decayed_count(now) + 1.0).min(BURST + 1.0);
        mistakes.at = now;
        mistakes.unreported += 1;
        let is_due = mistakes.reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY);
        let report = is_due.then(|| {
            mistakes.reported = Some(now);
            std::mem::take(&mut mistakes.unreported)
        });
        ThrottleDecision { is_throttled: mistakes.count > BURST, report }
    }

    /// Slows down guesses. Only a few answers wait at the same time.
    pub(crate) async fn delay(&self) {
        if let Ok(_place) = self.delayed.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
    }
}

impl FailedAuthCount {
    fn decayed_count(&self, now: Instant) -> f64 {
        (self.count - now.saturating_duration_since(self.at).as_secs_f64() * REFILL).max(0.0)
    }
}

/// A customer of a provider has at least a /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

/// Removes addresses without recent mistakes. If the table is still full, it removes the one that has been quiet
/// longest.
fn evict_quiet_addresses(addresses: &mut HashMap<IpAddr, FailedAuthCount>, now: Instant) {
    addresses.retain(|_, mistakes| mistakes.decayed_count(now) > 0.0);
    let quiet = addresses.iter().min_by_key(|(_, mistakes)| mistakes.at).map(|(address, _)| *address);
    if let Some(quiet) = quiet.filter(|_| addresses.len() >= MAX_ADDRESSES) {
        addresses.remove(&quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_number_of_mistakes_and_gets_more_with_time() {
        let (failed, start) = (FailedAuthThrottle::default(), Instant::now());
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = failed.record_failure(one, start);
        assert_eq!(first, ThrottleDecision { is_throttled: false, report: Some(1) });
        let verdicts: Vec<ThrottleDecision> = (0..150).map(|_| failed.record_failure(one, start)).collect();
        assert_eq!(verdicts.iter().position(|verdict| verdict.is_throttled), Some(99));
        assert!(verdicts.iter().all(|verdict| verdict.report.is_none()), "one line is enough");
        assert!(!failed.record_failure(other, start).is_throttled);
        let later = failed.record_failure(one, start + Duration::from_secs(70));
        assert_eq!(later, ThrottleDecision { is_throttled: false, report: Some(151) });
    }

    #[test]
    fn the_addresses_of_one_network_are_one_and_their_number_is_bounded() {
        let (failed, start) = (FailedAuthThrottle::default(), Instant::now());
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 1, 1, 0, 0, 0, host]);
        let throttled =
            (0..101).filter(|host| failed.record_failure(address(*host), start).is_throttled).count();
        assert_eq!(throttled, 1);
        for number in 0..(2 * MAX_ADDRESSES as u32) {
            failed.record_failure(IpAddr::V4(number.into()), start);
        }
        assert!(failed.addresses.lock().expect("whole").len() <= MAX_ADDRESSES);
    }
}
