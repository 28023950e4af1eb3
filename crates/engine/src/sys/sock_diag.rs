//! Finds the user who owns a TCP socket of this host, with the kernel's socket monitor (`NETLINK_SOCK_DIAG`,
//! sock_diag(7)).
//!
//! Users of this host share its addresses, so the address of a connection from this host does not identify a user. But
//! the kernel knows which user opened the socket at the other end.

use super::netlink::Netlink;
use super::nlmsg::{ERROR, HEADER, Messages, bits, error, u16_at, u32_at};
use super::tcp::is_same_host;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(test)]
mod tests;

/// Message type of the request, and of the answer (`SOCK_DIAG_BY_FAMILY`).
const BY_FAMILY: u16 = 20;
/// Size of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Size of `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// Size of the receive buffer. An answer is far shorter, with all attributes that a kernel may add.
const BUFFER: usize = 4096;
/// The index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
/// The state of a listening socket (`TCP_LISTEN`).
const LISTEN: u8 = 10;
/// States in which the kernel keeps no full socket, and no owner (`TCP_SYN_RECV`, `TCP_TIME_WAIT`, `TCP_NEW_SYN_RECV`).
const WITHOUT_OWNER: [u8; 3] = [3, 6, 12];

thread_local! {
    /// The netlink socket of this thread; `None` before the first request, and after an error. With a socket for each
    /// thread there is no lock that a fork could leave locked in the child.
    static SOCKET: RefCell<Option<Netlink>> = const { RefCell::new(None) };
}

/// Returns the user who owns the TCP socket with the address `local` that is connected to `peer`; `None` if `local` is
/// not an address of this host and network namespace.
///
/// Fails if `local` is an address of this host but the kernel knows no owner, for example because the process has
/// closed its socket. Callers must then treat the connection as a stranger's. (The kernel itself reports closed sockets
/// as owned by root.)
pub(crate) fn socket_owner(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    match query((local, peer), |datagram| parse(datagram, local, peer))? {
        Some(uid) => Ok(Some(uid)),
        None if is_same_host(local)? => {
            let why = format!("no open socket of this host is connected from {local} to {peer}");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        None => Ok(None),
    }
}

/// Returns the user who owns the TCP socket that listens at `at`, or at the same port of the wildcard address. `None`
/// if nothing listens there, or the socket belongs to the kernel.
pub(crate) fn listener_owner(at: SocketAddr) -> io::Result<Option<u32>> {
    let no_peer = SocketAddr::new(
        if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
        0,
    );
    query((at, no_peer), |datagram| parse_listener(datagram, at.port()))
}

/// Sends a request for the socket with these addresses, its own and that of its peer, and returns the result of `parse`
/// for the answer. Tries again after any error, with a new netlink socket: the one of this thread may be unusable, for
/// example because this process was forked.
fn query(
    addresses: (SocketAddr, SocketAddr),
    parse: impl Fn(&[u8]) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    query_once(addresses, &parse).or_else(|_| query_once(addresses, &parse))
}

/// Sends a request over this thread's netlink socket, and returns the result of `parse` for the answer. After an error
/// the netlink socket is closed, because an answer could still be pending on it.
fn query_once(
    (local, peer): (SocketAddr, SocketAddr),
    parse: impl FnOnce(&[u8]) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    let socket = SOCKET.try_with(|slot| slot.borrow_mut().take()).ok().flatten();
    let socket = socket.map_or_else(Netlink::for_sockets, Ok)?;
    let mut buffer = [0; BUFFER];
    let len = socket.exchange(&request(local, peer), &mut buffer)?;
    let owner = parse(&buffer[..len])?;
    // Fails if the thread is about to end, and closes the socket then.
    let _ = SOCKET.try_with(|slot| *slot.borrow_mut() = Some(socket));
    Ok(owner)
}

/// Encodes a request for the socket with these addresses: a `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn request(local: SocketAddr, peer: SocketAddr) -> [u8; HEADER + REQUEST] {
    let (local, peer) = (canonical(local), canonical(peer));
    let family = bits(if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
    // The kernel finds a socket that is bound to an interface only if the request names that interface. Sockets at
    // link-local addresses are always bound to one, and any process may bind its socket to the loopback interface.
    // Other sockets are found with any interface.
    let interface = match local {
        SocketAddr::V6(at) if at.scope_id() != 0 => at.scope_id(),
        _ => LOOPBACK,
    };
    let mut bytes = [0; HEADER + REQUEST];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&u32::try_from(HEADER + REQUEST).unwrap_or_default().to_ne_bytes()); // the length, which always fits
    put(&BY_FAMILY.to_ne_bytes());
    put(&bits(libc::NLM_F_REQUEST).to_ne_bytes());
    put(&[0; 8]); // sequence number and port ID, which are not used: the answer is identified by its addresses
    put(&family.to_le_bytes()[..1]); // a field of one byte, like the next one
    put(&bits(libc::IPPROTO_TCP).to_le_bytes()[..1]);
    put(&[0; 2]); // no extensions, and padding
    put(&u32::MAX.to_ne_bytes()); // the set of TCP states: all
    put(&local.port().to_be_bytes());
    put(&peer.port().to_be_bytes());
    put(&octets(local.ip()));
    put(&octets(peer.ip()));
    put(&interface.to_ne_bytes());
    put(&[0xff; 8]); // no cookie
    bytes
}

/// Returns the owner in a datagram with which the kernel answers [`request`]; `None` if there is no such socket, or its
/// owner is unknown.
///
/// If no socket has both addresses, the kernel answers with a socket that listens at `local`. So the addresses in the
/// answer are compared.
pub(crate) fn parse(datagram: &[u8], local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let Some(body) = answer(datagram)? else { return Ok(None) };
    // The numbers are offsets in `struct inet_diag_msg`.
    let address_at = |port, ip| Some(SocketAddr::new(ip_at(body, ip)?, u16_at(body, port)?.to_be()));
    let found = (address_at(4, 8).ok_or_else(malformed)?, address_at(6, 24).ok_or_else(malformed)?);
    if found != (without_scope(local), without_scope(peer)) {
        return Ok(None);
    }
    let (state, inode) = (body[1], u32_at(body, 68).ok_or_else(malformed)?);
    // Without an inode the socket was closed by its process; the kernel reports such a socket as owned by root.
    if WITHOUT_OWNER.contains(&state) || inode == 0 {
        return Ok(None);
    }
    u32_at(body, 64).map(Some).ok_or_else(malformed)
}

/// Returns the owner of the socket that listens at `port`, in a datagram of the kernel; `None` if no socket listens
/// there, or the socket belongs to the kernel.
fn parse_listener(datagram: &[u8], port: u16) -> io::Result<Option<u32>> {
    let Some(body) = answer(datagram)? else { return Ok(None) };
    // The numbers are offsets in `struct inet_diag_msg`.
    let listens = body[1] == LISTEN && u16_at(body, 4).ok_or_else(malformed)?.to_be() == port;
    let (owner, inode) = (u32_at(body, 64), u32_at(body, 68));
    let is_of_kernel = inode == Some(0);
    Ok(if listens && !is_of_kernel { owner } else { None })
}

/// Returns the `struct inet_diag_msg` in a datagram of the kernel; `None` if the kernel reports that there is no such
/// socket.
fn answer(datagram: &[u8]) -> io::Result<Option<&[u8]>> {
    let message = Messages(datagram).next().ok_or_else(malformed)?;
    if message.kind == ERROR {
        let error = error(message.body);
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    match message.body.get(..ANSWER) {
        Some(body) if message.kind == BY_FAMILY => Ok(Some(body)),
        _ => Err(malformed()),
    }
}

/// Returns the error for an answer that cannot be parsed.
fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed answer of NETLINK_SOCK_DIAG")
}

/// Returns the IP address in the 16 bytes at an offset of a `struct inet_diag_msg`, whose first byte is the address
/// family.
fn ip_at(body: &[u8], at: usize) -> Option<IpAddr> {
    let octets = <[u8; 16]>::try_from(body.get(at..at.checked_add(16)?)?).ok()?;
    match i32::from(*body.first()?) {
        libc::AF_INET => Some(Ipv4Addr::from(*octets.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(octets).to_canonical()),
        _ => None,
    }
}

/// Encodes an IP address in 16 bytes. An IPv4 address is padded with zeros, as in the kernel's structures.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            octets
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4. The kernel looks up such a connection by its IPv4 addresses.
fn canonical(mut addr: SocketAddr) -> SocketAddr {
    addr.set_ip(addr.ip().to_canonical());
    addr
}

/// Returns the address in canonical form, and without the scope of a link-local address, which answers do not contain.
fn without_scope(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
