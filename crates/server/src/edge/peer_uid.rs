//! Finds the local user at the other end of a connection in the kernel's socket tables.

use super::PeerAddresses;
use axum::http::HeaderMap;
use std::net::{IpAddr, SocketAddr};

/// TCP_ESTABLISHED. A socket that its owner has closed is listed as root's, so other states are ignored.
const ESTABLISHED: &str = "01";

/// Whether a request comes directly from a process of the server's own user.
pub(crate) fn is_own_user(peer: Option<PeerAddresses>, headers: &HeaderMap) -> bool {
    let Some(PeerAddresses { remote, local: Some(local) }) = peer else { return false };
    comes_straight(remote, headers) && uid_of(remote, local) == Some(rustix::process::geteuid().as_raw())
}

fn comes_straight(remote: SocketAddr, headers: &HeaderMap) -> bool {
    let is_forwarded = headers.keys().any(|name| ash_model::is_forwarding_header(name.as_str()));
    remote.ip().to_canonical().is_loopback() && !is_forwarded
}

/// The owner of the socket that is bound to `own` and connected to `other`.
fn uid_of(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    tables.iter().flatten().find_map(|table| uid_in(table, own, other))
}

fn uid_in(table: &str, own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (own, other) = (plain(own), plain(other));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
        let same = address(local) == Some(own) && address(remote) == Some(other);
        (same && state == ESTABLISHED && inode != "0").then(|| uid.parse().ok()).flatten()
    })
}

/// `0100007F:1F90`: words in the byte order of the machine, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for word in words.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok()?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_of_this_user_is_known_until_it_is_forwarded() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).expect("bound");
            let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
            let (socket, remote) = listener.accept().expect("accepted");
            let peer = PeerAddresses { remote, local: socket.local_addr().ok() };
            assert!(is_own_user(Some(peer), &HeaderMap::new()), "{host}");
            assert!(!is_own_user(Some(PeerAddresses { local: None, ..peer }), &HeaderMap::new()));
            for name in
                ["forwarded", "x-forwarded-for", "x_forwarded_host", "via", "x-real-ip", "cf-connecting-ip"]
            {
                let headers = [(name.parse().expect("a name"), HeaderValue::from_static("x"))];
                assert!(!is_own_user(Some(peer), &headers.into_iter().collect()), "{name}");
            }
            drop(client);
            assert!(!is_own_user(Some(peer), &HeaderMap::new()), "its owner is gone");
        }
    }

    #[test]
    fn only_loopback_is_this_machine() {
        let comes_straight = |ip: &str| {
            super::comes_straight(SocketAddr::new(ip.parse().expect("an address"), 1), &HeaderMap::new())
        };
        for ip in ["10.1.2.3", "192.168.0.7", "203.0.113.9", "2001:db8::1", "::ffff:10.1.2.3", "0.0.0.0"] {
            assert!(!comes_straight(ip), "{ip}");
        }
        for ip in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(comes_straight(ip), "{ip}");
        }
    }

    #[test]
    fn other_users_and_closed_sockets_are_not_taken_for_this_one() {
        let line = |state: &str, uid: u32, inode: u32| {
            format!(
                "head\n 0: 0100007F:1F91 0100007F:1F90 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1\n"
            )
        };
        let (own, other) = ("127.0.0.1:8081".parse().expect("one"), "127.0.0.1:8080".parse().expect("other"));
        assert_eq!(uid_in(&line("01", 1000, 7), own, other), Some(1000));
        assert_eq!(uid_in(&line("06", 0, 0), own, other), None);
        assert_eq!(uid_in(&line("01", 0, 0), own, other), None);
        assert_eq!(uid_in(&line("01", 1000, 7), other, own), None);
    }
}
