//! Attempts to reach listeners: on this machine, on other machines, and in the kernel.

use crate::{Attempt, Tried, answer, hold_on, word};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixStream},
    },
    time::Duration,
};

const SHORT: Duration = Duration::from_secs(2);

pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("tcp", |args| {
        let address: SocketAddr = word(args, 0).parse().map_err(io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&address, SHORT)?;
        stream.set_read_timeout(Some(SHORT))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        heard(stream)
    }),
    ("udp", |args| {
        let address: SocketAddr = word(args, 0).parse().map_err(io::Error::other)?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(SHORT))?;
        socket.send_to(b"?", address)?;
        let mut bytes = [0; 100];
        let got = socket.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..got]).into_owned())
    }),
    ("unix", |args| {
        let stream = UnixStream::connect(word(args, 0))?;
        stream.set_read_timeout(Some(SHORT))?;
        heard(stream)
    }),
    ("abstract", |args| {
        let stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(word(args, 0))?)?;
        stream.set_read_timeout(Some(SHORT))?;
        heard(stream)
    }),
    ("socket", |args| {
        let number = |n: usize| word(args, n).parse::<i32>().map_err(io::Error::other);
        // SAFETY: numbers only.
        answer(unsafe { libc::socket(number(0)?, number(1)?, number(2)?) }.into())?;
        Ok("a socket".to_owned())
    }),
    ("raise-interface", |_| {
        // SAFETY: the structure is all numbers, and outlives the calls.
        unsafe {
            let fd = answer(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).into())?;
            let mut request: libc::ifreq = std::mem::zeroed();
            request.ifr_name[..2].copy_from_slice(&[b'l' as _, b'o' as _]);
            request.ifr_ifru.ifru_flags = libc::IFF_UP as _;
            answer(libc::ioctl(fd as i32, libc::SIOCSIFFLAGS as _, &request).into())?;
        }
        Ok("raised".to_owned())
    }),
];

/// A connection is enough, because many servers do not speak first.
fn heard(mut stream: impl Read) -> Tried {
    let mut bytes = [0; 300];
    let got = stream.read(&mut bytes).unwrap_or(0);
    Ok(format!("connected {}", String::from_utf8_lossy(&bytes[..got])))
}

/// Hundreds of callers that send the start of a request and then stall. Returns how many connected.
pub(crate) fn pester(socket: &str) -> usize {
    let mut callers = Vec::new();
    for _ in 0..400 {
        // Non-blocking, because a full queue would block for ever.
        let Ok(mut caller) = connect_at_once(socket) else { break };
        if caller.write_all(b"POST /v1/messages HTTP/1.1\r\nx-").is_err() {
            break;
        }
        callers.push(caller);
    }
    hold_on(Duration::from_millis(300));
    callers.len()
}

fn connect_at_once(path: &str) -> io::Result<UnixStream> {
    use std::os::fd::FromRawFd;
    // SAFETY: an address that is all bytes, shorter than its buffer; the new descriptor has no other owner.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        let fd = answer(libc::socket(libc::AF_UNIX, kind, 0).into())? as i32;
        let stream = UnixStream::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
            *to = from as _;
        }
        let length = size_of::<libc::sockaddr_un>() as u32;
        answer(libc::connect(fd, (&raw const address).cast(), length).into())?;
        Ok(stream)
    }
}
