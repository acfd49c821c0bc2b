//! The edge: everything between a socket and a handler. It bounds what clients can take of the server before they are
//! known, and what a slow or silent one can hold.

mod body;
mod connections;
mod headers;
mod hosts;
mod memory;
mod peer_uid;
mod socket;
mod streams;
mod throttle;

pub(crate) use body::{LargeBodies, WholeBody, read_file, with_timeout};
pub(crate) use connections::{Edge, Peer, Reserved, raise_open_files};
pub(crate) use headers::{cors, no_store};
pub(crate) use hosts::{AllowedHosts, check_host};
pub(crate) use memory::{give_back_memory, return_large_blocks};
pub(crate) use peer_uid::is_own_user;
pub(crate) use streams::{KeyStreams, StreamLease, TooManyStreams};
pub(crate) use throttle::FailedKeys;
