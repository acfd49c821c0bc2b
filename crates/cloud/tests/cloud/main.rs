//! What a bucket promises, on real servers where they are available.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod contract;
mod disk;
mod environment;
mod faults;
mod memory;
mod metadata;
mod scripted;
mod trouble;
mod wrappers;

#[path = "../../../../tests/support/gcs.rs"]
mod gcs;
#[path = "../../../../tests/support/servers.rs"]
mod servers;
