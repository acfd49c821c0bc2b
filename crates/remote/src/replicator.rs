//! The replicator: sends to one bucket and restores from it, as long as the server lives.
//!
//! It sends what the database has not recorded as sent. There is no other list, so a crash forgets nothing. A pack is
//! sent after the packs that it refers to, a manifest after its packs, a session after its agent, and a fork after its
//! parent: a reader that finds a manifest finds everything it needs.

use crate::{ClaimConflict, Claimant, Error, RemoteServices, Result, bucket_listing, claim::BucketClaim};
use ash_cloud::{Bucket, BucketError, BucketErrorCode, BucketTraffic, RequestLimits, RetryPolicy};
use ash_model::{TenantId, Timestamp, WorkspaceId};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, RwLock, watch};

/// Uploads give up sooner than other requests, because they are repeated later and the trouble is shown until then.
const UPLOAD_RETRY_POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 4,
    initial_delay: Duration::from_millis(200),
    max_delay: Duration::from_secs(1),
};
/// The pause before a failed upload is repeated, at first and at most.
pub(crate) const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long a stopping server tries to give its claim back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The packs in the bucket, as the database knows them.
pub(crate) struct KnownRemotePacks {
    pub(crate) sizes: HashMap<String, u64>,
    /// Packs that were found missing, and not sent since.
    pub(crate) missing: HashSet<String>,
}

/// The names of a tenant's packs in the bucket, and when they were listed.
#[derive(Clone)]
pub(crate) struct PackNameListing {
    pub(crate) at: Instant,
    pub(crate) names: Arc<Vec<String>>,
}

/// The bucket to replicate to.
pub struct ReplicationTarget {
    pub bucket: Bucket,
    /// The rate limit of uploads. `None`: unlimited.
    pub bytes_per_second: Option<u64>,
}

pub struct Replicator {
    pub bucket: Bucket,
    /// The same bucket with the rate limit of uploads. Used only through [`Replicator::writer`], so that nothing is
    /// written without a claim.
    pub(crate) upload_bucket: Bucket,
    pub(crate) services: RemoteServices,
    pub(crate) claim: BucketClaim,
    /// Rung when there may be something to send.
    pub(crate) bell: Notify,
    /// Counts what was sent, for callers that wait for an upload.
    pub(crate) sent: watch::Sender<u64>,
    trouble: Mutex<Option<(BucketError, Timestamp)>>,
    pub(crate) known: tokio::sync::Mutex<HashMap<TenantId, KnownRemotePacks>>,
    /// The number of retractions of vanished objects. An upload that began before a retraction is not confirmed.
    pub(crate) retractions: RwLock<u64>,
    /// Rung after the object store did not answer for a while: objects may have vanished.
    pub(crate) recheck: Notify,
    /// Every session in the bucket is in the database.
    pub(crate) all_sessions_known: AtomicBool,
    /// When the bucket was last searched for garbage.
    pub(crate) gc_listed: Mutex<HashMap<TenantId, Instant>>,
    /// Cached for a moment, because many sessions come back at once.
    pub(crate) pack_names: Mutex<HashMap<TenantId, PackNameListing>>,
}

impl Replicator {
    pub fn new(target: ReplicationTarget, services: RemoteServices) -> Replicator {
        let ReplicationTarget { bucket, bytes_per_second } = target;
        let limited = match bytes_per_second {
            Some(_) => {
                bucket.clone().with_limits(RequestLimits { bytes_per_second, ..RequestLimits::default() })
            }
            None => bucket.clone(),
        };
        Replicator {
            claim: BucketClaim::new(&bucket),
            bucket,
            upload_bucket: limited.with_retry_policy(UPLOAD_RETRY_POLICY),
            services,
            bell: Notify::new(),
            sent: watch::channel(0).0,
            trouble: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            retractions: RwLock::default(),
            recheck: Notify::new(),
            all_sessions_known: AtomicBool::new(false),
            gc_listed: Mutex::default(),
            pack_names: Mutex::default(),
        }
    }

    /// The requests to the object store so far.
    pub fn tally(&self) -> BucketTraffic {
        self.bucket.traffic() + self.upload_bucket.traffic()
    }

    /// What prevents uploads, and since when.
    pub fn trouble(&self) -> Option<(BucketError, Timestamp)> {
        self.trouble.lock().expect("no code panics while it holds this lock").clone()
    }

    /// The bucket to write to, if this server holds the claim on it.
    pub(crate) async fn writer(&self) -> Result<&Bucket> {
        self.claim.allow().await.map_err(Error::Bucket)?;
        Ok(&self.upload_bucket)
    }

    /// Gets the claim on the bucket and renews it as long as the server lives. Returns if another server holds the
    /// claim and is alive. If the claim is lost later, the server continues without writing to the bucket, and shows
    /// the trouble.
    pub async fn keep_claim(&self, claimant: Claimant) -> ClaimConflict {
        let show = |why: BucketError| self.set_trouble(Some(why));
        if let Err(conflict) = self.claim.acquire(&claimant, &show).await {
            return conflict;
        }
        self.set_trouble(None);
        self.notify();
        let every = self.claim.every(&claimant);
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.claim.renew().await {
                Ok(()) => every,
                Err(why) => {
                    // The next upload, or the next check of the bucket, finds out when the trouble is over.
                    self.set_trouble(Some(why));
                    self.notify();
                    every / 4
                }
            };
            if let Some(taken) = self.claim.trouble() {
                self.set_trouble(Some(taken));
                std::future::pending::<()>().await;
            }
        }
    }

    /// Gives the claim back when the server stops, so that the next server need not wait.
    pub async fn release_claim(&self) {
        let released = tokio::time::timeout(RELEASE_TIMEOUT, self.claim.release()).await;
        match released {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the server could not release its claim on the bucket: a server with another data directory has to wait before it writes")
            }
            Err(_) => tracing::warn!(
                "the server could not release its claim on the bucket: a server with another data directory has to wait before it writes"
            ),
        }
    }

    /// Changes whenever something was sent.
    pub fn sent(&self) -> watch::Receiver<u64> {
        self.sent.subscribe()
    }

    /// Wakes the uploads: there may be something to send.
    pub fn notify(&self) {
        self.bell.notify_one();
    }

    /// Tenants that have objects in the bucket.
    pub async fn tenants(&self) -> Result<Vec<TenantId>> {
        bucket_listing::tenants(&self.bucket).await
    }

    /// Before the server stops: sends what was saved last, if that works within this time.
    pub async fn drain(&self, longest: Duration) {
        let mut sent = self.sent();
        let draining = async {
            while self.trouble().is_none()
                && self.services.store.pending_uploads(1, &[]).await.is_ok_and(|left| !left.is_empty())
            {
                self.notify();
                if sent.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(longest, draining).await.is_err() {
            tracing::warn!("some data is not in the object store yet; the next start sends it");
        }
    }

    /// Waits until a checkpoint is in the bucket. Returns at once if the checkpoint was removed meanwhile.
    pub async fn wait_until_uploaded(
        &self,
        workspace: WorkspaceId,
        number: u64,
        longest: Duration,
    ) -> Result<()> {
        let mut sent = self.sent();
        let waiting = async {
            loop {
                let found = self.services.store.checkpoint(workspace, number).await?;
                if found.is_none_or(|checkpoint| checkpoint.uploaded_at.is_some()) {
                    return Ok(());
                }
                self.notify();
                sent.changed().await.expect("its sender is ours");
            }
        };
        match tokio::time::timeout(longest, waiting).await {
            Ok(done) => done,
            Err(_) => {
                let why = self.trouble().map(|(trouble, _)| trouble.to_string());
                Err(Error::NotUploaded { seconds: longest.as_secs(), why: why.unwrap_or_default() })
            }
        }
    }

    /// Also shows the trouble to the operator, under a code that names the object store.
    pub(crate) fn set_trouble(&self, trouble: Option<BucketError>) {
        let mut kept = self.trouble.lock().expect("no code panics while it holds this lock");
        let since = kept.as_ref().map_or_else(|| self.services.clock(), |(_, since)| *since);
        if let Some((before, _)) = kept.as_ref()
            && trouble.as_ref().is_none_or(|trouble| trouble.code != before.code)
        {
            self.services.troubles.clear(listed_code(before.code));
        }
        if let Some(trouble) = &trouble {
            self.services.troubles.set(listed_code(trouble.code), trouble.to_string(), since);
        }
        if kept.is_some() && trouble.is_none() {
            self.recheck.notify_one();
        }
        *kept = trouble.map(|trouble| (trouble, since));
    }
}

/// The code in the list of the server's troubles, which other parts of the server share.
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
