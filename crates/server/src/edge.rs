//! The edge: everything between a socket and a handler. It bounds what unauthenticated clients can use of the server,
//! and what a slow or silent client can hold.

mod allowed_hosts;
mod auth_throttle;
mod body;
mod connections;
mod headers;
mod memory_trim;
mod peer_uid;
mod stream_limit;
mod timeout_socket;

pub(crate) use allowed_hosts::{AllowedHosts, check_host};
pub(crate) use auth_throttle::FailedAuthThrottle;
pub(crate) use body::{BodyMemory, BodySpooler, BufferedBody, read_file, with_timeout};
pub(crate) use connections::{HttpServer, PeerAddresses, ReservedConnection, raise_open_files};
pub(crate) use headers::{cors, no_store};
pub(crate) use memory_trim::{set_mmap_threshold, trim_memory_forever};
pub(crate) use peer_uid::is_own_user;
pub(crate) use stream_limit::{KeyStreamLimiter, StreamPermit, TooManyStreams};
