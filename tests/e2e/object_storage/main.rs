//! Object storage: uploads, restores, and deletion.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod far;
mod far_claims;
mod far_clean;
mod far_faults;
mod far_vanished;
#[path = "../../support/gcs.rs"]
mod gcs;
#[path = "../../support/proxy.rs"]
mod proxy;
#[path = "../../support/servers.rs"]
mod servers;
#[path = "../support.rs"]
mod support;
