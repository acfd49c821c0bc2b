//! THE STAGE: what tests and demonstrations play against. So far one thing: a Messages API (and chat completions)
//! on this machine that answers as a model would, always the same, and misbehaves on request. Start reading at `decide.rs`.

mod conversation;
mod decide;
mod directive;
mod events;
mod follow;
mod log;
mod openai;
mod perform;
mod problem;
mod reply;
mod script;
mod server;
mod side;
mod tools;
mod trouble;

pub use script::{ModelScript, ModelScriptError};
pub use server::{ListenAddress, ModelServer, ModelServerError, ModelServerOptions};
