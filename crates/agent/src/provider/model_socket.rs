//! The socket for model calls. Every wait ends when the turn is cancelled, or at a timeout.

use super::failure::ProviderFailure;
use super::http::ByteSource;
use crate::cancel::{CancelToken, timespec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// While a model thinks, the service sends a ping every few seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct ModelSocket<'a> {
    socket: OwnedFd,
    cancel: &'a CancelToken,
}

impl ModelSocket<'_> {
    pub(super) fn connect<'a>(
        path: &Path,
        cancel: &'a CancelToken,
    ) -> Result<ModelSocket<'a>, ProviderFailure> {
        let broken =
            |error: Errno| ProviderFailure::Broken(format!("cannot connect to {}: {error}", path.display()));
        // Non-blocking: a full queue is then a temporary error instead of a wait that cannot be cancelled.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(broken)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(broken)?).map_err(broken)?;
        Ok(ModelSocket { socket, cancel })
    }

    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<(), ProviderFailure> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                // A service that closes the connection early may have sent the reason, which we read next.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> Result<(), ProviderFailure> {
        loop {
            let mut fds = [PollFd::new(self.cancel, PollFlags::IN), PollFd::new(&self.socket, what)];
            match poll(&mut fds, Some(&timespec(IDLE_TIMEOUT))) {
                Ok(0) => {
                    return Err(ProviderFailure::Broken(format!(
                        "nothing came for {} s",
                        IDLE_TIMEOUT.as_secs()
                    )));
                }
                Ok(_) if !fds[0].revents().is_empty() => return Err(ProviderFailure::Cancelled),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

fn broken(error: Errno) -> ProviderFailure {
    ProviderFailure::Broken(format!("the connection broke: {error}"))
}

impl ByteSource for ModelSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, ProviderFailure> {
        loop {
            self.wait(PollFlags::IN)?;
            match rustix::io::read(&self.socket, &mut *into) {
                Ok(length) => return Ok(length),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_wait_ends_when_the_turn_is_cancelled() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("sock");
        let cancel = CancelToken::new().expect("eventfd");
        assert!(
            matches!(ModelSocket::connect(&path, &cancel), Err(ProviderFailure::Broken(_))),
            "no listener is there"
        );
        let _listener = UnixListener::bind(&path).expect("bind");
        let mut wire = ModelSocket::connect(&path, &cancel).expect("connected");
        let far = cancel.clone();
        let canceller = std::thread::spawn(move || far.cancel());
        assert_eq!(wire.read(&mut [0; 8]), Err(ProviderFailure::Cancelled));
        // More than a socket buffer holds, and the peer does not read.
        assert_eq!(wire.send(&vec![0; 64 << 20]), Err(ProviderFailure::Cancelled));
        canceller.join().expect("no panic");
    }

    #[test]
    fn an_answer_sent_before_an_early_hang_up_is_read() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("sock");
        let cancel = CancelToken::new().expect("eventfd");
        let listener = UnixListener::bind(&path).expect("bind");
        let mut wire = ModelSocket::connect(&path, &cancel).expect("connected");
        drop(listener.accept().expect("accepted"));
        assert_eq!(wire.send(&vec![0; 64 << 20]), Ok(()));
    }
}
