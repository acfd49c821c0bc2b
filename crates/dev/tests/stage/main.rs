//! The model server as others see it: over HTTP, and from the real Claude Code.

mod claude;
mod server;
mod support;
