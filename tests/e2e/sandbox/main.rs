//! Hostile sandboxes and workspaces, limits, setup scripts and isolation, with bubblewrap and with containers.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod boundary;
mod docker;
mod engine;
mod hostile;
mod hostile_workspace;
mod limits;
mod setup;
#[path = "../support.rs"]
mod support;
mod walls;
