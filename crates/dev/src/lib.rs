//! Test doubles for tests and demonstrations: a Messages API (and chat completions) on this machine. It replies like a
//! model, deterministically, and injects faults on request. Start reading at `decide.rs`.

#![forbid(unsafe_code)]

mod api_errors;
mod conversation;
mod decide;
mod directive;
mod faults;
mod helper_requests;
mod openai;
mod reply;
mod request_log;
mod respond;
mod script;
mod server;
mod sse_events;
mod tools;
mod unscripted;

pub use script::{ModelScript, ModelScriptError};
pub use server::{ListenAddress, ModelServer, ModelServerError, ModelServerOptions};
