//! The socket between the shim and the init inside: small datagrams, with descriptors where a process needs its pipes.
//! The shim checks the shape of each message and trusts nothing else in it.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::MemfdFlags,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{BackendKind, RequiredWalls, UserNamespacePolicy, frame::ProcessSpec, limits::Rlimits};

const MAX_MESSAGE_BYTES: usize = 4096;
/// The file with the start request, and its three pipes.
const MAX_FDS: usize = 4;
/// Arguments and environment of one process. The kernel itself allows about 2 MiB.
const MAX_START_BYTES: u64 = 8 << 20;

/// The single argument of `ash confine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfineConfig {
    pub(crate) control: InitControlSocket,
    #[serde(rename = "walls")]
    pub(crate) backend: BackendKind,
    pub(crate) rlimits: Rlimits,
    /// Where it may write besides the scratch directories.
    pub(crate) writable: Vec<PathBuf>,
    /// The words that go before our program's command line where the image lacks its libraries.
    pub(crate) prefix: Vec<String>,
    pub(crate) user_namespaces: UserNamespacePolicy,
    /// Walls without which init starts no process.
    pub(crate) required: RequiredWalls,
}

/// The init's end of the socket to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InitControlSocket {
    Inherited(i32),
    /// A path to connect to: an engine passes no descriptors on.
    Listening(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InitCommand {
    /// Comes with four descriptors: the start request, stdin, stdout, stderr.
    Start,
    Signal {
        process: u16,
        signal: i32,
    },
    StopAll,
    ContinueAll,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InitReport {
    Ready,
    Started {
        process: u16,
        pid: u32,
    },
    StartFailed {
        process: u16,
        why: String,
    },
    Exited {
        process: u16,
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// `all`: whether init saw every process stopped.
    Stopped {
        all: bool,
    },
}

pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !extra.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `Ok(None)`: the peer has closed the socket. A message that is too long or unknown is an error of kind `InvalidData`.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut text = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let got =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut extra, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in extra.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let message = serde_json::from_slice(&text[..got.bytes]).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some((message, fds)))
}

/// A start request goes as a file: arguments and environment may be larger than a datagram.
pub(crate) fn seal(start: &ProcessSpec) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(rustix::fs::memfd_create("start", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(start).map_err(io::Error::other)?)?;
    file.rewind()?;
    Ok(file.into())
}

pub(crate) fn unseal(file: OwnedFd) -> io::Result<ProcessSpec> {
    let mut text = Vec::new();
    std::fs::File::from(file).take(MAX_START_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|_| io::ErrorKind::InvalidData.into())
}
