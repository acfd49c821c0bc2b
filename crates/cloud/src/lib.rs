//! Bytes under keys in S3, Google Cloud Storage, Azure or a directory, behind one type. Knows nothing about sessions.
//!
//! The other crates use a [`Bucket`]. Each layer beneath it wraps another object store: [`CountingObjectStore`] around
//! [`RetryingObjectStore`] around [`ThrottledObjectStore`] around the store itself.

#![forbid(unsafe_code)]

mod bucket;
mod bucket_error;
mod counting_store;
mod directory_store;
mod faulty_store;
mod http;
mod object_backend;
mod open;
mod retrying_store;
mod seeded_random;
mod throttled_store;

pub use bucket::{Bucket, BucketObject, PutOutcome};
pub use bucket_error::{BucketError, BucketErrorCode};
pub use counting_store::{BucketTraffic, CountingObjectStore};
pub use faulty_store::{FaultRates, FaultyObjectStore};
pub use object_backend::{ObjectBackend, PART};
pub use retrying_store::{RetryPolicy, RetryingObjectStore};
pub use throttled_store::{RequestLimits, ThrottledObjectStore};
