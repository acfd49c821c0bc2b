//! Recovery after a death, a restart, a full disk, a lost file or a wrong table.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod deaths;
mod docker;
mod failing_saves;
mod full_disk;
mod keep;
mod kill_server;
mod lost_tree;
mod restart;
#[path = "../support.rs"]
mod support;
mod verified;
mod witness;
