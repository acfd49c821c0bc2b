//! A connection from a server: reads frames, and writes journal bytes and answers, without ever blocking on it.

use std::os::fd::OwnedFd;

use rustix::{io::Errno, net::SendFlags};

use crate::{
    frame::{ClientFrame, FrameDecoder, MalformedFrame, ShimFrame},
    journal::Journal,
};

const PIECE: usize = 64 << 10;
/// Bounds the work for one client, so that one pass of the loop also serves the others.
const PIECES_PER_TURN: usize = 16;

#[derive(Debug)]
pub(super) struct ShimClient {
    pub(super) socket: OwnedFd,
    frames: FrameDecoder,
    out: Vec<u8>,
    sent: usize,
    /// How far the journal has been sent; None until the client asks to follow.
    cursor: Option<u64>,
}

/// The connection is broken or closed.
#[derive(Debug)]
pub(super) struct ClientDisconnected;

impl From<MalformedFrame> for ClientDisconnected {
    fn from(_: MalformedFrame) -> Self {
        ClientDisconnected
    }
}

impl ShimClient {
    /// None: the client belongs to another user, and the shim talks only to its own.
    pub(super) fn accept(listener: &OwnedFd) -> Option<Self> {
        use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
        let socket = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let peer = socket_peercred(&socket).ok()?;
        (peer.uid == rustix::process::geteuid()).then(|| Self {
            socket,
            frames: FrameDecoder::default(),
            out: Vec::new(),
            sent: 0,
            cursor: None,
        })
    }

    /// Reads once. `next` returns the frames that are complete by then.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<(), ClientDisconnected> {
        match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(0) => Err(ClientDisconnected),
            Ok(n) => {
                self.frames.push(&buffer[..n]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(ClientDisconnected),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<ClientFrame>, ClientDisconnected> {
        match self.frames.next()? {
            Some((kind, payload)) => Ok(Some(ClientFrame::decode(kind, &payload)?)),
            None => Ok(None),
        }
    }

    pub(super) fn say(&mut self, frame: &ShimFrame) {
        self.out.extend_from_slice(&frame.encode());
    }

    pub(super) fn follow(&mut self, offset: u64) {
        self.cursor = Some(offset);
    }

    fn unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    pub(super) fn wants_to_write(&self, end: u64) -> bool {
        self.unsent() || self.cursor.is_some_and(|cursor| cursor < end)
    }

    /// Sends as much as the socket accepts: answers first, then journal, refilled from the file piece by piece.
    pub(super) fn write(
        &mut self,
        journal: Option<&Journal>,
        buffer: &mut [u8],
    ) -> Result<(), ClientDisconnected> {
        for _ in 0..PIECES_PER_TURN {
            if !self.unsent() {
                self.out.clear();
                self.sent = 0;
                if !self.refill(journal, buffer)? {
                    return Ok(());
                }
            }
            match rustix::net::send(&self.socket, &self.out[self.sent..], SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ClientDisconnected),
            }
        }
        Ok(())
    }

    fn refill(&mut self, journal: Option<&Journal>, buffer: &mut [u8]) -> Result<bool, ClientDisconnected> {
        let (Some(cursor), Some(journal)) = (self.cursor, journal) else { return Ok(false) };
        let piece = buffer.len().min(PIECE);
        let read = journal.read(&mut buffer[..piece], cursor).map_err(|_| ClientDisconnected)?;
        if read == 0 {
            return Ok(false);
        }
        self.cursor = Some(cursor + read as u64);
        self.say(&ShimFrame::Data(buffer[..read].to_vec()));
        Ok(true)
    }
}
