//! Files, archives, documents, and shared workspaces.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod acceptance;
mod archives;
mod artifacts;
mod docker;
mod files;
mod shared;
#[path = "../support.rs"]
mod support;
