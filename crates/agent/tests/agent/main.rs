//! The agent as its host sees it: a process with lines going in and out, which may be killed at any moment.

mod commands;
mod compaction;
mod crashes;
mod harness;
mod interrupts;
mod memory;
mod model;
mod openai;
mod protocol;
