//! A directory as a bucket: only what differs from other backends.

use ash_cloud::{Bucket, BucketErrorCode};
use bytes::Bytes;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::UnshareFlags,
};
use std::{collections::BTreeMap, path::Path};

/// Needs root to mount the disk. No other process sees it.
#[test]
fn as_root_a_full_disk_is_reported_and_leaves_no_file() {
    let alone = std::thread::spawn(|| {
        // SAFETY: only this thread gets its own mounts, and the threads of the runtime inherit them.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("mounts of its own");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).expect("private mounts");
        let directory = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
        mount("none", directory.path(), "tmpfs", MountFlags::empty(), Some(c"size=20m")).expect("a disk");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(fill(directory.path()));
        rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    });
    alone.join().expect("as it should be");
}

async fn fill(disk: &Path) {
    let bucket = Bucket::open(&format!("file://{}", disk.display()), &BTreeMap::new()).expect("a bucket");
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    file.as_file().set_len(30 << 20).expect("a length");
    let trouble = bucket.put_file("large", file.path(), &|_| {}).await.expect_err("no space");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::NoSpace, false), "{trouble}");
    let trouble = bucket.put_new("medium", Bytes::from(vec![0; 25 << 20])).await.expect_err("no space");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::NoSpace, false), "{trouble}");
    assert_eq!(std::fs::read_dir(disk).expect("a listing").count(), 0, "nothing is left of them");
    bucket.check().await.expect("there is space for a little");
}
