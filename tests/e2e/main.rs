//! End to end: the real binary, the real sandbox, the built-in agent, and clients that we did not write.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod crowd;
mod deaths;
mod doctor;
mod folder;
mod kill_server;
mod life;
mod restart;
mod support;
