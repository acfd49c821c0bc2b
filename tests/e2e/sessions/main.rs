//! A session and many of them: its life, its queue, its history, crossing wishes, the pool, cleaning up.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod busy;
mod cleaning;
mod corners;
mod crowd;
mod docker;
mod history;
mod idle;
mod life;
mod pool;
mod prewarmed;
mod purged;
mod races;
mod scale;
#[path = "../support.rs"]
mod support;
mod upkeep;
