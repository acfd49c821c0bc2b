//! Gives a repository the packs that are only in the bucket. Called from a thread that may block.

use crate::object_keys;
use ash_cloud::{Bucket, BucketError, BucketErrorCode};
use ash_model::TenantId;
use ash_snapshot::{PackPrefix, PackRange};
use futures::StreamExt;
use std::{fmt, io};
use tokio::runtime::Handle;

/// The number of concurrent reads.
const AT_ONCE: usize = 8;

pub(crate) struct BucketPackSource {
    bucket: Bucket,
    tenant: TenantId,
    runtime: Handle,
}

impl BucketPackSource {
    pub(crate) fn new(bucket: &Bucket, tenant: &TenantId) -> BucketPackSource {
        BucketPackSource { bucket: bucket.clone(), tenant: tenant.clone(), runtime: Handle::current() }
    }
}

impl fmt::Debug for BucketPackSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketPackSource({} of {})", self.tenant, self.bucket)
    }
}

impl ash_snapshot::RemotePackSource for BucketPackSource {
    fn read_prefixes(
        &self,
        packs: &[String],
        most: u64,
        each: &mut dyn FnMut(usize, Option<PackPrefix>) -> io::Result<()>,
    ) -> io::Result<()> {
        let read = |(number, pack): (usize, &String)| {
            let (bucket, key) = (self.bucket.clone(), object_keys::pack(&self.tenant, pack));
            async move { (number, bucket.read_prefix(&key, most).await) }
        };
        let mut reads = futures::stream::iter(packs.iter().enumerate().map(read)).buffer_unordered(AT_ONCE);
        while let Some((number, begun)) = self.runtime.block_on(reads.next()) {
            let begun = begun.map_err(unreachable)?;
            each(number, begun.map(|(size, bytes)| PackPrefix { size, bytes: bytes.into() }))?;
        }
        Ok(())
    }

    fn read_ranges(
        &self,
        parts: &[PackRange],
        each: &mut dyn FnMut(usize, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let read = |(number, part): (usize, &PackRange)| {
            let (bucket, key, range) =
                (self.bucket.clone(), object_keys::pack(&self.tenant, &part.pack), part.range.clone());
            async move { (number, bucket.get_range(&key, range).await) }
        };
        let mut reads = futures::stream::iter(parts.iter().enumerate().map(read)).buffer_unordered(AT_ONCE);
        while let Some((number, read)) = self.runtime.block_on(reads.next()) {
            match read {
                Ok(bytes) => each(number, bytes.into())?,
                // The pack is shorter than the range, or missing.
                Err(BucketError { code: BucketErrorCode::Damaged | BucketErrorCode::Missing, .. }) => {
                    each(number, Vec::new())?
                }
                Err(error) => return Err(unreachable(error)),
            }
        }
        Ok(())
    }
}

fn unreachable(error: BucketError) -> io::Error {
    io::Error::other(error)
}
