//! The built-in agent and the real Claude Code: options, permissions, keys, long conversations, usage.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod builtin_model;
mod claude;
mod claude_kills;
mod claude_versions;
mod client_tools;
mod config_race;
mod credentials;
mod docker;
mod infinite;
mod ladder;
mod options;
mod own_key;
mod permission_modes;
mod permissions;
mod refused;
mod secrets;
#[path = "../support.rs"]
mod support;
mod usage;
