//! The claim on a bucket: of all servers that are configured for the same prefix, only one writes there.
//!
//! The claim is the object `claims/<number>.json` with the highest number. Its holder writes the next number at regular
//! intervals. Another server writes nothing until it has watched that number for two and a half intervals, by its own
//! monotonic clock, without a change. No clock of one machine is compared with that of another.

use crate::replicator::{FIRST_RETRY_DELAY, MAX_RETRY_DELAY};
use ash_cloud::{Bucket, BucketError, BucketErrorCode, PutOutcome, RetryPolicy};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

const CLAIMS: &str = "claims";
/// The default interval at which the holder writes the next number.
const EVERY_ON_DISK: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(15);
/// The longest interval that a waiting server accepts from another server's claim.
const MAX_EVERY: Duration = Duration::from_secs(600);
/// The longest pause between two reads of a waiting server.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
const CHANGED: Duration = Duration::from_millis(20);
/// A renewal that takes longer than this, or than an interval, is restarted.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);
const CLAIM_RETRY_POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 4,
    initial_delay: Duration::from_millis(100),
    max_delay: Duration::from_millis(500),
};

/// The server that wants to write to the bucket.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// The node id of the data directory.
    pub holder: String,
    pub host: String,
    /// The address of this server.
    pub url: String,
    /// The interval between two claims. `None`: the default for the kind of store.
    pub every: Option<Duration>,
    /// Takes the bucket from its holder without waiting.
    pub take_over: bool,
}

/// The content of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    #[serde(default)]
    pub holder: String,
    #[serde(default)]
    pub host: String,
    #[serde(default)]
    pub url: String,
    /// Milliseconds between two claims of this holder.
    #[serde(default)]
    pub beat: u64,
    /// Identifies the process: two servers on copies of one data directory have the same holder.
    #[serde(default)]
    pub instance: Uuid,
}

/// For people. Values that another server wrote are shortened and shown without control characters.
impl fmt::Display for ClaimRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| -> String {
            let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
            if text.is_empty() { "unknown".to_owned() } else { text }
        };
        let (holder, host, url) = (shown(&self.holder), shown(&self.host), shown(&self.url));
        write!(f, "holder {holder} on host {host} at {url}")
    }
}

/// Another server holds the bucket and is alive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "another ash server writes to {bucket}: {by}. One prefix of a bucket belongs to one server: choose another prefix with \
     ASH_SNAPSHOT_URL, stop that server, or take the bucket from it with `ash serve --take-over`"
)]
pub struct ClaimConflict {
    pub bucket: String,
    pub by: ClaimRecord,
}

/// Whether this server may write to the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ClaimState {
    /// It is not known yet who holds the claim.
    Unclaimed,
    /// Another server held the claim when this one started, and may be alive.
    Waiting(ClaimRecord),
    /// This server holds the claim. After `fresh_until` another server may conclude that it is dead.
    Held { number: u64, fresh_until: Instant },
    /// Another server took the bucket over.
    Taken(ClaimRecord),
    /// This server gave the claim back.
    Released,
}

/// The result of one attempt to get the claim.
enum ClaimAttempt {
    Held,
    /// The claims changed meanwhile: try again at once.
    Changed,
    Waiting(ClaimRecord),
    Conflict(ClaimRecord),
}

/// The highest number of another server that a waiting server has seen, and since when it has not changed.
struct WatchedClaim {
    number: u64,
    since: Option<Instant>,
}

/// One server's view of the claim.
pub(crate) struct BucketClaim {
    /// The bucket without the rate limit of uploads, so that a claim never waits behind packs.
    bucket: Bucket,
    standing: watch::Sender<ClaimState>,
    instance: Uuid,
    renewing: tokio::sync::Mutex<Option<Claimant>>,
}

impl BucketClaim {
    pub(crate) fn new(bucket: &Bucket) -> BucketClaim {
        BucketClaim {
            bucket: bucket.clone().with_retry_policy(CLAIM_RETRY_POLICY),
            standing: watch::channel(ClaimState::Unclaimed).0,
            instance: Uuid::new_v4(),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) async fn until_held(&self) {
        self.until(|standing| matches!(standing, ClaimState::Held { .. })).await;
    }

    pub(crate) async fn until_lost(&self) {
        self.until(|standing| !matches!(standing, ClaimState::Held { .. })).await;
    }

    async fn until(&self, wanted: impl FnMut(&ClaimState) -> bool) {
        // Never fails: the sender lives as long as `self`.
        self.standing.subscribe().wait_for(wanted).await.ok();
    }

    /// Whether this server may write now. If the claim is not fresh any more, it is renewed first.
    pub(crate) async fn allow(&self) -> Result<(), BucketError> {
        let standing = self.standing.borrow().clone();
        match standing {
            ClaimState::Held { fresh_until, .. } if Instant::now() < fresh_until => Ok(()),
            ClaimState::Held { .. } => {
                self.renew().await?;
                let standing = self.standing.borrow().clone();
                match standing {
                    ClaimState::Held { fresh_until, .. } if Instant::now() >= fresh_until => {
                        Err(self.too_slow(self.bucket_interval()))
                    }
                    ClaimState::Held { .. }
                    | ClaimState::Unclaimed
                    | ClaimState::Waiting(_)
                    | ClaimState::Taken(_)
                    | ClaimState::Released => self.refusal(&standing).map_or(Ok(()), Err),
                }
            }
            ClaimState::Unclaimed | ClaimState::Waiting(_) | ClaimState::Taken(_) | ClaimState::Released => {
                self.refusal(&standing).map_or(Ok(()), Err)
            }
        }
    }

    /// Why this server must not write. `None`: it may.
    fn refusal(&self, standing: &ClaimState) -> Option<BucketError> {
        let place = &self.bucket;
        let (code, sentence) = match standing {
            ClaimState::Held { .. } => return None,
            ClaimState::Unclaimed | ClaimState::Released => (
                BucketErrorCode::Claimed,
                format!("This server has no claim on {place} yet, and writes nothing there."),
            ),
            ClaimState::Waiting(by) => (
                BucketErrorCode::Claimed,
                format!(
                    "{place} is claimed by another ash server ({by}), which may be gone: this one writes nothing there \
                     until it has waited for a sign of life. `ash serve --take-over` does not wait."
                ),
            ),
            ClaimState::Taken(by) => (
                BucketErrorCode::Taken,
                format!(
                    "{place} was taken over by another ash server ({by}): this one sends nothing any more, and its \
                     sessions are safe on this machine only. Stop one of the two, or give them different prefixes; a start \
                     with `ash serve --take-over` takes the bucket back."
                ),
            ),
        };
        Some(BucketError { code, message: sentence, is_transient: false })
    }

    /// The trouble to show to the operator, if another server has the claim.
    pub(crate) fn trouble(&self) -> Option<BucketError> {
        let standing = self.standing.borrow().clone();
        match standing {
            ClaimState::Waiting(_) | ClaimState::Taken(_) => self.refusal(&standing),
            ClaimState::Unclaimed | ClaimState::Held { .. } | ClaimState::Released => None,
        }
    }

    /// Waits until this server has the claim. Calls `tell` with what it waits for.
    pub(crate) async fn acquire(
        &self,
        claimant: &Claimant,
        tell: &(dyn Fn(BucketError) + Send + Sync),
    ) -> Result<(), ClaimConflict> {
        *self.renewing.lock().await = Some(claimant.clone());
        let (mut watched, mut backoff) = (None, FIRST_RETRY_DELAY);
        loop {
            let slow = self.every(claimant).max(RENEWAL_TIMEOUT);
            let tried = timeout(slow, self.attempt(claimant, &mut watched)).await;
            match tried.unwrap_or_else(|_| Err(self.too_slow(slow))) {
                Ok(ClaimAttempt::Held) => return Ok(()),
                Ok(ClaimAttempt::Changed) => sleep(CHANGED).await,
                Ok(ClaimAttempt::Conflict(by)) => {
                    return Err(ClaimConflict { bucket: self.bucket.to_string(), by });
                }
                Ok(ClaimAttempt::Waiting(by)) => {
                    backoff = FIRST_RETRY_DELAY;
                    self.standing.send_replace(ClaimState::Waiting(by));
                    self.trouble().into_iter().for_each(tell);
                    sleep(MAX_POLL_INTERVAL.min(self.every(claimant) / 2)).await;
                }
                Err(trouble) => {
                    // The holder could not renew its claim either, so this time does not count.
                    watched.iter_mut().for_each(|watched: &mut WatchedClaim| watched.since = None);
                    tell(trouble);
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    async fn attempt(
        &self,
        claimant: &Claimant,
        watched: &mut Option<WatchedClaim>,
    ) -> Result<ClaimAttempt, BucketError> {
        let Some(number) = self.numbers().await?.last().copied() else {
            return self.take(claimant, 1).await;
        };
        let Some(found) = self.read(number).await? else { return Ok(ClaimAttempt::Changed) };
        if found.holder == claimant.holder || claimant.take_over {
            return self.take(claimant, number + 1).await;
        }
        let now = Instant::now();
        let known = match watched.as_mut() {
            Some(known) if number > known.number => return Ok(ClaimAttempt::Conflict(found)),
            Some(known) if number == known.number => known,
            Some(_) | None => watched.insert(WatchedClaim { number, since: None }),
        };
        let since = *known.since.get_or_insert(now);
        let theirs = Duration::from_millis(found.beat).min(MAX_EVERY);
        if now - since < self.every(claimant).max(theirs) * 5 / 2 {
            return Ok(ClaimAttempt::Waiting(found));
        }
        self.take(claimant, number + 1).await
    }

    /// Writes this number, unless another server has written it.
    async fn take(&self, claimant: &Claimant, number: u64) -> Result<ClaimAttempt, BucketError> {
        let began = Instant::now();
        if !self.write(claimant, number).await? {
            return Ok(ClaimAttempt::Changed);
        }
        let numbers = self.numbers().await?;
        if numbers.last().is_some_and(|last| *last > number) {
            return Ok(ClaimAttempt::Changed);
        }
        self.hold(claimant, number, began);
        self.delete_older(&numbers, number).await;
        Ok(ClaimAttempt::Held)
    }

    /// Writes the next number, or finds out that another server has the claim now.
    pub(crate) async fn renew(&self) -> Result<(), BucketError> {
        let renewing = self.renewing.lock().await;
        let Some(claimant) = renewing.as_ref() else { return Ok(()) };
        let slow = self.every(claimant).max(RENEWAL_TIMEOUT);
        timeout(slow, self.write_next(claimant)).await.unwrap_or_else(|_| Err(self.too_slow(slow)))
    }

    async fn write_next(&self, claimant: &Claimant) -> Result<(), BucketError> {
        let ClaimState::Held { number, .. } = *self.standing.borrow() else { return Ok(()) };
        let (began, next) = (Instant::now(), number + 1);
        let is_ours = self.write(claimant, next).await?;
        let numbers = self.numbers().await?;
        let last = numbers.last().copied().unwrap_or(next);
        if is_ours && last <= next {
            self.hold(claimant, next, began);
            self.delete_older(&numbers, next).await;
            return Ok(());
        }
        // Deleted between the two requests: the next renewal finds out who has the claim.
        let Some(by) = self.read(last.max(next)).await? else { return Ok(()) };
        if by.instance != self.instance {
            self.standing.send_replace(ClaimState::Taken(by));
        }
        Ok(())
    }

    /// Gives the claim back, so that the next server need not wait.
    pub(crate) async fn release(&self) -> Result<(), BucketError> {
        let _renewing = self.renewing.lock().await;
        let ClaimState::Held { number, .. } = *self.standing.borrow() else { return Ok(()) };
        self.standing.send_replace(ClaimState::Released);
        // The highest number last: a server that reads meanwhile still sees this server's claim.
        let mut numbers = self.numbers().await?;
        numbers.retain(|other| *other <= number);
        let keys: Vec<String> = numbers.into_iter().map(key).collect();
        for key in keys.chunks(1) {
            self.bucket.delete(key).await?;
        }
        Ok(())
    }

    fn hold(&self, claimant: &Claimant, number: u64, began: Instant) {
        let fresh_until = began + self.every(claimant) * 2;
        self.standing.send_replace(ClaimState::Held { number, fresh_until });
    }

    /// Whether the number is this server's now. An earlier request whose answer was lost may have written it.
    async fn write(&self, claimant: &Claimant, number: u64) -> Result<bool, BucketError> {
        let record = ClaimRecord {
            holder: claimant.holder.clone(),
            host: claimant.host.clone(),
            url: claimant.url.clone(),
            beat: u64::try_from(self.every(claimant).as_millis()).unwrap_or(u64::MAX),
            instance: self.instance,
        };
        let text = serde_json::to_vec(&record).expect("plain words and numbers");
        match self.bucket.put_new(&key(number), text.into()).await? {
            PutOutcome::Created => Ok(true),
            PutOutcome::AlreadyExists => {
                Ok(self.read(number).await?.is_some_and(|found| found.instance == self.instance))
            }
        }
    }

    /// A claim that cannot be parsed counts as another server's.
    async fn read(&self, number: u64) -> Result<Option<ClaimRecord>, BucketError> {
        let unknown = ClaimRecord {
            holder: String::new(),
            host: String::new(),
            url: String::new(),
            beat: 0,
            instance: Uuid::nil(),
        };
        match self.bucket.get(&key(number)).await {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).unwrap_or(unknown))),
            Err(BucketError { code: BucketErrorCode::Missing, .. }) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The numbers of all claims in the bucket, in order.
    async fn numbers(&self) -> Result<Vec<u64>, BucketError> {
        let found: Vec<_> = self.bucket.list(CLAIMS).try_collect().await?;
        let mut numbers: Vec<u64> = found.iter().filter_map(|found| number(&found.key)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Deletes older claims, which mean nothing any more. If that fails, the next renewal deletes them.
    async fn delete_older(&self, numbers: &[u64], than: u64) {
        let older: Vec<String> = numbers.iter().copied().filter(|other| *other < than).map(key).collect();
        if !older.is_empty()
            && let Err(error) = self.bucket.delete(&older).await
        {
            tracing::debug!(%error, "older claims on the bucket could not be deleted");
        }
    }

    pub(crate) fn every(&self, claimant: &Claimant) -> Duration {
        claimant.every.unwrap_or(self.bucket_interval())
    }

    fn bucket_interval(&self) -> Duration {
        if self.bucket.to_string().starts_with("file://") { EVERY_ON_DISK } else { EVERY }
    }

    fn too_slow(&self, after: Duration) -> BucketError {
        let sentence = format!(
            "{} did not answer within {} s: check the network and the store.",
            self.bucket,
            after.as_secs()
        );
        BucketError { code: BucketErrorCode::Unreachable, message: sentence, is_transient: true }
    }
}

fn key(number: u64) -> String {
    format!("{CLAIMS}/{number:010}.json")
}

fn number(key: &str) -> Option<u64> {
    let name = key.rsplit('/').next()?.strip_suffix(".json")?;
    // Another program may have written names whose number is too large.
    let is_number = (10..=18).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| name.parse().ok())?
}

#[cfg(test)]
mod tests;
