//! Bytes under keys, far away: S3, Google Cloud Storage, Azure, or a directory. Knows nothing about sessions.
//!
//! A [`Bucket`] is what the rest of the product holds. Beneath it are wrappers, each an object store around an object
//! store: [`Counted`] around [`Retried`] around [`Throttled`] around the store itself.

mod bucket;
mod counted;
mod dice;
mod disk;
mod faulty;
mod http;
mod open;
mod retried;
mod shelf;
mod throttled;
mod trouble;

pub use bucket::{Bucket, BucketObject, PutOutcome};
pub use counted::{BucketTraffic, CountingObjectStore};
pub use faulty::{FaultRates, FaultyObjectStore};
pub use retried::{RetryPolicy, RetryingObjectStore};
pub use shelf::{ObjectBackend, PART};
pub use throttled::{RequestLimits, ThrottledObjectStore};
pub use trouble::{BucketError, BucketErrorCode};
