//! The built-in agent of ash, which runs inside a sandbox as `ash builtin-agent`.
//!
//! It speaks Claude Code's stream-json on stdin and stdout. Thousands of these processes are idle at the same time. An
//! idle agent is therefore one thread in a read and holds no conversation: the transcript on disk is its only memory.
//! Only a long conversation stays in memory for a short time after a turn, so that the next turn need not read it again.

mod cancel;
mod client_calls;
mod compaction;
mod context_window;
mod conversation;
mod flags;
mod ids;
mod inbox;
mod instructions;
mod out;
mod protocol;
mod provider;
mod skills;
mod steering;
mod tools;
mod transcript;
mod turn;
mod turn_worker;

use flags::AgentFlags;
use std::ffi::OsString;
use std::path::Path;
use turn_worker::TurnWorker;

/// Runs the agent until its input ends. Returns the exit code of the process.
pub fn main(args: Vec<OsString>) -> i32 {
    keep_memory_small();
    let flags = match AgentFlags::parse(args) {
        Ok(flags) => flags,
        Err(wrong) => return give_up(&wrong, 2),
    };
    let Some(home) = std::env::var_os("HOME") else { return give_up("HOME is not set", 2) };
    let folder = Path::new(&home).join(".ash/agent");
    match TurnWorker::open(flags, folder) {
        Ok(desk) => inbox::serve(desk),
        Err(error) => give_up(&error.to_string(), 1),
    }
}

fn give_up(why: &str, code: i32) -> i32 {
    eprintln!("ash builtin-agent: {why}");
    code
}

/// Uses one heap for all threads: a heap per thread would stay allocated after every turn.
fn keep_memory_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number inside the allocator, before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns the memory of a turn to the machine, since the next turn may be days away.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
