//! The object store: what a lost machine must not take along is sent there, in order, and comes back from there.
//!
//! What is to be sent is what the store's rows say was not: nobody keeps a list, so a crash forgets none. A pack goes
//! after those that it needs, a manifest after the packs that it tells of, a session after its agent, and a fork after its
//! parent: who finds a manifest finds everything.

mod back;
mod keys;
mod manifest;
mod packs;
mod send;
mod tidy;

pub use back::{FarSession, Returned};

use crate::{Error, Result, rooms::Rooms};
use ash_cloud::{Bucket, Code, Limits, Patience, Tally, Trouble};
use ash_model::{TenantId, Timestamp, WorkspaceId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

const SENDING: Patience =
    Patience { tries: 4, first: Duration::from_millis(200), longest: Duration::from_secs(1) };
/// How long after a failure it is tried again, at first and at last.
const BREATH: Duration = Duration::from_millis(500);
const LONGEST_BREATH: Duration = Duration::from_secs(60);

pub struct Far {
    pub bucket: Bucket,
    /// The same, that gives up sooner: whoever sends comes back, and says meanwhile what is wrong.
    sending: Bucket,
    /// Something may be there to be sent.
    bell: Notify,
    /// Counts what was sent, for whoever waits for something.
    sent: watch::Sender<u64>,
    trouble: Mutex<Option<(Trouble, Timestamp)>>,
    /// Packs that are there, by tenant, as the store knows them.
    known: tokio::sync::Mutex<HashMap<TenantId, HashMap<String, u64>>>,
    /// Whether the database knows everybody who is there.
    counted: AtomicBool,
    /// When it was last looked for what nobody needs there.
    looked: Mutex<HashMap<TenantId, Instant>>,
}

impl Far {
    /// Sends so many bytes in a second.
    pub fn new(bucket: Bucket, bytes_per_second: Option<u64>) -> Far {
        let sending = match bytes_per_second {
            Some(_) => bucket.clone().limited(Limits { bytes_per_second, ..Limits::default() }),
            None => bucket.clone(),
        };
        let sending = sending.patient(SENDING);
        Far {
            bucket,
            sending,
            bell: Notify::new(),
            sent: watch::channel(0).0,
            trouble: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            counted: AtomicBool::new(false),
            looked: Mutex::default(),
        }
    }

    /// What was asked of the object store so far.
    pub fn tally(&self) -> Tally {
        self.bucket.tally() + self.sending.tally()
    }

    /// What keeps it from sending, and since when.
    pub fn trouble(&self) -> Option<(Trouble, Timestamp)> {
        self.trouble.lock().expect("nobody panics while holding it").clone()
    }

    pub(crate) fn packs(&self, tenant: &TenantId) -> Arc<packs::Packs> {
        Arc::new(packs::Packs::new(&self.bucket, tenant))
    }

    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Also in the list of the server's troubles, under a code that names the object store.
    fn set_trouble(&self, trouble: Option<Trouble>, rooms: &Rooms) {
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
        *kept = trouble.map(|trouble| (trouble, since));
    }
}

impl Rooms {
    /// Before the server goes: what was saved last is sent if that works within this time.
    pub async fn drain_far(&self, longest: Duration) {
        let Some(far) = &self.far else { return };
        let mut sent = far.sent.subscribe();
        let draining = async {
            while far.trouble().is_none()
                && self.store.outgoing(1, &[]).await.is_ok_and(|left| !left.is_empty())
            {
                far.ring();
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
    pub(crate) async fn wait_until_far(
        &self,
        workspace: WorkspaceId,
        number: u64,
        longest: Duration,
    ) -> Result<()> {
        let Some(far) = &self.far else { return Err(Error::NoBucket) };
        let mut sent = far.sent.subscribe();
        let waiting = async {
            loop {
                let found = self.store.checkpoint(workspace, number).await?;
                if found.is_none_or(|checkpoint| checkpoint.far.is_some()) {
                    return Ok(());
                }
                far.ring();
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
pub(crate) fn trouble(error: Trouble) -> Error {
    Error::Bucket(error)
}

/// As the list of the server's troubles calls it: there other parts have troubles too.
fn listed_code(code: Code) -> &'static str {
    match code {
        Code::BucketMissing => "object_store_bucket_missing",
        Code::AccessDenied => "object_store_access_denied",
        Code::WrongKey => "object_store_wrong_key",
        Code::Expired => "object_store_expired",
        Code::ClockSkew => "object_store_clock_skew",
        Code::WrongRegion => "object_store_wrong_region",
        Code::NoSpace => "object_store_no_space",
        Code::Unreachable => "object_store_unreachable",
        Code::NoCredentials => "object_store_no_credentials",
        Code::Throttled => "object_store_throttled",
        Code::Settings => "object_store_settings",
        Code::Missing => "object_store_missing",
        Code::Damaged => "object_store_damaged",
        Code::Other => "object_store_other",
    }
}
