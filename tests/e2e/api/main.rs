//! Requests: what is refused, who may see what, limits at the door, and clients that we did not write.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod bad_input;
mod clients;
mod edge;
mod guide;
mod owners;
#[path = "../support.rs"]
mod support;
mod values;
