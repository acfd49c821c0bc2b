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

pub(crate) use body::{BodySpooler, BufferedBody, read_file, with_timeout};
pub(crate) use connections::{HttpServer, PeerAddresses, ReservedConnection, raise_open_files};
pub(crate) use headers::{cors, no_store};
pub(crate) use hosts::{AllowedHosts, check_host};
pub(crate) use memory::{set_mmap_threshold, trim_memory_forever};
pub(crate) use peer_uid::is_own_user;
pub(crate) use streams::{KeyStreamLimiter, StreamPermit, TooManyStreams};
pub(crate) use throttle::FailedAuthThrottle;
