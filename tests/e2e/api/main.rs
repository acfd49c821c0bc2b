//! The API: refusals, access, limits for clients, and third-party clients.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod bad_input;
mod clients;
mod conversation;
mod edge;
mod guide;
mod log;
mod owners;
mod stream_tokens;
#[path = "../support.rs"]
mod support;
mod values;
