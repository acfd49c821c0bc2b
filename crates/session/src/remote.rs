//! The object store: what a lost machine must not take along is sent there, in order, and comes back from there.
//!
//! What is to be sent is what the store's rows say was not: nobody keeps a list, so a crash forgets none. A pack goes
//! after those that it needs, a manifest after the packs that it tells of, a session after its agent, and a fork after its
//! parent: who finds a manifest finds everything.

mod bring_back;
mod census;
mod claim;
mod gc;
mod history;
mod manifest;
mod object_keys;
mod pack_source;
mod upload;
mod write_once;

pub use bring_back::{RemoteRestoreReport, ReplicatedSession};
pub use claim::{ClaimConflict, ClaimRecord, Claimant};
pub(crate) use {
    bring_back::{checkpoints, folded},
    history::{RemoteHistory, filled},
};

use crate::{Error, Result, services::Services};
use ash_cloud::{Bucket, BucketError, BucketErrorCode, BucketTraffic, RequestLimits, RetryPolicy};
use ash_model::{TenantId, Timestamp, WorkspaceId};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, RwLock, watch};

const SENDING: RetryPolicy = RetryPolicy {
    max_attempts: 4,
    initial_delay: Duration::from_millis(200),
    max_delay: Duration::from_secs(1),
};
/// How long after a failure it is tried again, at first and at last.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long a server that stops tries to give its claim back.
const RELEASING: Duration = Duration::from_secs(5);

/// What the database says about packs.
struct KnownRemotePacks {
    sizes: HashMap<String, u64>,
    /// Found missing, and not sent since.
    missing: HashSet<String>,
}

/// When the packs of a tenant were listed, and what they are called.
type PackNameListing = (Instant, Arc<Vec<String>>);

pub struct Replicator {
    pub bucket: Bucket,
    /// The same, that gives up sooner: whoever sends comes back, and says meanwhile what is wrong.
    /// Only with [`Far::writer`]: before the bucket is ours nothing is written.
    sending: Bucket,
    claim: claim::BucketClaim,
    /// Something may be there to be sent.
    bell: Notify,
    /// Counts what was sent, for whoever waits for something.
    sent: watch::Sender<u64>,
    trouble: Mutex<Option<(BucketError, Timestamp)>>,
    /// Packs that are there, by tenant, as the store knows them.
    known: tokio::sync::Mutex<HashMap<TenantId, KnownRemotePacks>>,
    /// How often something was taken back. What was begun before is not said to be there.
    retractions: RwLock<u64>,
    /// The store was away: something may be gone.
    recheck: Notify,
    /// Whether the database knows everybody who is there.
    all_sessions_known: AtomicBool,
    /// When it was last looked for what nobody needs there.
    looked: Mutex<HashMap<TenantId, Instant>>,
    /// The names of a tenant's packs, as they were listed a moment ago: many sessions come back at once.
    names: Mutex<HashMap<TenantId, PackNameListing>>,
}

impl Replicator {
    /// Sends so many bytes in a second.
    pub fn new(bucket: Bucket, bytes_per_second: Option<u64>) -> Replicator {
        let sending = match bytes_per_second {
            Some(_) => {
                bucket.clone().with_limits(RequestLimits { bytes_per_second, ..RequestLimits::default() })
            }
            None => bucket.clone(),
        };
        let sending = sending.with_retry_policy(SENDING);
        Replicator {
            claim: claim::BucketClaim::new(&bucket),
            bucket,
            sending,
            bell: Notify::new(),
            sent: watch::channel(0).0,
            trouble: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            retractions: RwLock::default(),
            recheck: Notify::new(),
            all_sessions_known: AtomicBool::new(false),
            looked: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// What was asked of the object store so far.
    pub fn tally(&self) -> BucketTraffic {
        self.bucket.traffic() + self.sending.traffic()
    }

    /// What keeps it from sending, and since when.
    pub fn trouble(&self) -> Option<(BucketError, Timestamp)> {
        self.trouble.lock().expect("nobody panics while holding it").clone()
    }

    /// Where to write, as long as the bucket is ours.
    async fn writer(&self) -> Result<&Bucket> {
        self.claim.allow().await.map_err(trouble)?;
        Ok(&self.sending)
    }

    /// Gets the claim on the bucket and keeps it, as long as the server lives. Ends if another server has the bucket and
    /// is alive; one that loses it later stays, says so, and writes nothing any more.
    pub async fn keep_claim(&self, rooms: &Services, claimant: Claimant) -> ClaimConflict {
        let told = |why: BucketError| self.set_trouble(Some(why), rooms);
        if let Err(conflict) = self.claim.acquire(&claimant, &told).await {
            return conflict;
        }
        self.set_trouble(None, rooms);
        self.notify();
        let every = self.claim.every(&claimant);
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.claim.renew().await {
                Ok(()) => every,
                Err(why) => {
                    // Whoever sends finds out when it is over.
                    self.set_trouble(Some(why), rooms);
                    self.notify();
                    every / 4
                }
            };
            if let Some(taken) = self.claim.trouble() {
                self.set_trouble(Some(taken), rooms);
                std::future::pending::<()>().await;
            }
        }
    }

    /// Before the server goes: the next one need not wait.
    pub async fn release_claim(&self) {
        let released = tokio::time::timeout(RELEASING, self.claim.release()).await;
        match released {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the claim on the bucket stays; this data directory can go on with it")
            }
            Err(_) => tracing::warn!("the claim on the bucket stays; this data directory can go on with it"),
        }
    }

    pub(crate) fn packs(&self, tenant: &TenantId) -> Arc<pack_source::BucketPackSource> {
        Arc::new(pack_source::BucketPackSource::new(&self.bucket, tenant))
    }

    /// Changes whenever something was sent.
    pub(crate) fn sent(&self) -> watch::Receiver<u64> {
        self.sent.subscribe()
    }

    pub(crate) fn notify(&self) {
        self.bell.notify_one();
    }

    /// Also in the list of the server's troubles, under a code that names the object store.
    fn set_trouble(&self, trouble: Option<BucketError>, rooms: &Services) {
        let mut kept = self.trouble.lock().expect("nobody panics while holding it");
        let since = kept.as_ref().map_or_else(|| rooms.clock(), |(_, since)| *since);
        if let Some((before, _)) = kept.as_ref()
            && trouble.as_ref().is_none_or(|trouble| trouble.code != before.code)
        {
            rooms.troubles.clear(listed_code(before.code));
        }
        if let Some(trouble) = &trouble {
            rooms.troubles.set(listed_code(trouble.code), trouble.to_string(), since);
        }
        if kept.is_some() && trouble.is_none() {
            self.recheck.notify_one();
        }
        *kept = trouble.map(|trouble| (trouble, since));
    }
}

impl Services {
    /// Before the server goes: what was saved last is sent if that works within this time.
    pub async fn drain_replication(&self, longest: Duration) {
        let Some(far) = &self.replicator else { return };
        let mut sent = far.sent.subscribe();
        let draining = async {
            while far.trouble().is_none()
                && self.store.pending_uploads(1, &[]).await.is_ok_and(|left| !left.is_empty())
            {
                far.notify();
                if sent.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(longest, draining).await.is_err() {
            tracing::warn!("not everything is in the object store yet; the next start goes on with it");
        }
    }

    /// Waits until a checkpoint is far away, or gives up.
    pub(crate) async fn wait_until_remote(
        &self,
        workspace: WorkspaceId,
        number: u64,
        longest: Duration,
    ) -> Result<()> {
        let Some(far) = &self.replicator else { return Err(Error::NoBucket) };
        let mut sent = far.sent.subscribe();
        let waiting = async {
            loop {
                let found = self.store.checkpoint(workspace, number).await?;
                if found.is_none_or(|checkpoint| checkpoint.uploaded_at.is_some()) {
                    return Ok(());
                }
                far.notify();
                sent.changed().await.map_err(|_| Error::Stopping)?;
            }
        };
        match tokio::time::timeout(longest, waiting).await {
            Ok(done) => done,
            Err(_) => {
                let why = far.trouble().map(|(trouble, _)| trouble.to_string());
                Err(Error::NotFar { seconds: longest.as_secs(), why: why.unwrap_or_default() })
            }
        }
    }
}

/// As everybody sees it who has to open something there.
pub(crate) fn trouble(error: BucketError) -> Error {
    Error::Bucket(error)
}

/// As the list of the server's troubles calls it: there other parts have troubles too.
fn listed_code(code: BucketErrorCode) -> &'static str {
    match code {
        BucketErrorCode::BucketMissing => "object_store_bucket_missing",
        BucketErrorCode::AccessDenied => "object_store_access_denied",
        BucketErrorCode::WrongKey => "object_store_wrong_key",
        BucketErrorCode::Expired => "object_store_expired",
        BucketErrorCode::ClockSkew => "object_store_clock_skew",
        BucketErrorCode::WrongRegion => "object_store_wrong_region",
        BucketErrorCode::NoSpace => "object_store_no_space",
        BucketErrorCode::Unreachable => "object_store_unreachable",
        BucketErrorCode::NoCredentials => "object_store_no_credentials",
        BucketErrorCode::Throttled => "object_store_throttled",
        BucketErrorCode::Settings => "object_store_settings",
        BucketErrorCode::Missing => "object_store_missing",
        BucketErrorCode::Damaged => "object_store_damaged",
        BucketErrorCode::Claimed | BucketErrorCode::Taken => code.as_str(),
        BucketErrorCode::Other => "object_store_other",
    }
}
