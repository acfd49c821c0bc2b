//! One session and many: life cycle, queue, history, concurrent commands, pool, and retention.

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
