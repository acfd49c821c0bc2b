//! The JSON of the API as types: what handlers answer, and what streams send. Their names in the OpenAPI document are
//! those of the Ash API where it has them.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod conversation;
pub(crate) mod credential;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod permission;
pub(crate) mod session;
pub(crate) mod stream;
pub(crate) mod tool;
pub(crate) mod usage;
