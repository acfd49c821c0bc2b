//! The sandbox and the workspace as attackers, their limits, scripts and walls, behind bubblewrap and in containers.

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
