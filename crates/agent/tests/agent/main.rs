//! The agent as its host sees it: a process that exchanges lines and can be killed at any moment.

mod client_tools;
mod commands;
mod compaction;
mod crashes;
mod harness;
mod interrupts;
mod memory;
mod model;
mod openai;
mod protocol;
