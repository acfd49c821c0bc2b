//! The model server from outside: over HTTP, and with the real Claude Code.

mod claude;
mod server;
mod support;
