//! Which user owns a TCP socket of this host, asked of the kernel's socket monitor (`NETLINK_SOCK_DIAG`, sock_diag(7)).
//!
//! A connection from this host has two addresses, like any other, but the kernel also knows which user opened its other
//! end. So local users can be told apart although they share an address.

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
/// Sizes of `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Room for an answer. With all attributes that a kernel may add, an answer is far shorter.
const ROOM: usize = 4096;
/// The index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
/// The state of a listening socket (`TCP_LISTEN`).
const LISTEN: u8 = 10;
/// States in which the kernel keeps no full socket, and no owner (`TCP_SYN_RECV`, `TCP_TIME_WAIT`, `TCP_NEW_SYN_RECV`).
const WITHOUT_OWNER: [u8; 3] = [3, 6, 12];

thread_local! {
    /// One socket for each thread, so that there is no lock that a fork could leave locked.
    static SOCKET: RefCell<Option<Netlink>> = const { RefCell::new(None) };
}

/// Returns the user who owns the TCP socket with the address `local` that is connected to `peer`; `None` if `local` is
/// an address of another host or network namespace.
///
/// Fails if `local` is an address of this host but no socket there has a known owner: its process may have closed it. A
/// caller that trusts a user must treat that as a stranger, since the kernel reports closed sockets as owned by root.
pub(crate) fn socket_owner(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let owner = match ask(local, peer) {
        // Stale, or replaced since a fork.
        Err(_) => ask(local, peer)?,
        Ok(owner) => owner,
    };
    match owner {
        Some(uid) => Ok(Some(uid)),
        None if is_same_host(local)? => {
            let why = format!("no open socket of this host is connected from {local} to {peer}");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        None => Ok(None),
    }
}

/// Returns the user who owns the TCP socket that listens at `at`, or at its port of all addresses; `None` if there is
/// none, or it is the kernel's.
pub(crate) fn listener_owner(at: SocketAddr) -> io::Result<Option<u32>> {
    let nobody = SocketAddr::new(
        if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
        0,
    );
    let find = |datagram: &[u8]| parse_listener(datagram, at.port());
    exchange((at, nobody), find).or_else(|_| exchange((at, nobody), find)) // as above
}

fn ask(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    exchange((local, peer), |datagram| parse(datagram, local, peer))
}

/// Asks over this thread's socket, which is kept only if everything went well.
fn exchange(
    (local, peer): (SocketAddr, SocketAddr),
    find: impl FnOnce(&[u8]) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    let socket = SOCKET.try_with(|socket| socket.borrow_mut().take()).ok().flatten();
    let socket = socket.map_or_else(Netlink::for_sockets, Ok)?;
    let mut buffer = [0; ROOM];
    let len = socket.exchange(&request(local, peer), &mut buffer)?;
    let owner = find(&buffer[..len])?;
    let _ = SOCKET.try_with(|place| *place.borrow_mut() = Some(socket)); // or the thread is about to end
    Ok(owner)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(local: SocketAddr, peer: SocketAddr) -> [u8; HEADER + REQUEST] {
    let (local, peer) = (canonical(local), canonical(peer));
    let family = bits(if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
    // A socket that is bound to an interface is found only with that: link-local addresses always are, and any process
    // may bind to loopback.
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
    put(&u32::try_from(HEADER + REQUEST).unwrap_or_default().to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&bits(libc::NLM_F_REQUEST).to_ne_bytes());
    put(&[0; 8]); // sequence number and sender: the answer names its addresses
    put(&family.to_le_bytes()[..1]);
    put(&bits(libc::IPPROTO_TCP).to_le_bytes()[..1]);
    put(&[0; 2]);
    put(&u32::MAX.to_ne_bytes()); // in any state
    put(&local.port().to_be_bytes());
    put(&peer.port().to_be_bytes());
    put(&octets(local.ip()));
    put(&octets(peer.ip()));
    put(&interface.to_ne_bytes());
    put(&[0xff; 8]); // no cookie
    bytes
}

/// The owner in a datagram of the kernel that answers [`request`] for these addresses; `None` if there is no such
/// socket.
///
/// The kernel falls back to a socket that listens at `local`, which is another one: the answer has to name both
/// addresses.
pub(crate) fn parse(datagram: &[u8], local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let Some(body) = answer(datagram)? else { return Ok(None) };
    let address = |port, ip| Some(SocketAddr::new(ip_at(body, ip)?, u16_at(body, port)?.to_be()));
    let found = (address(4, 8).ok_or_else(malformed)?, address(6, 24).ok_or_else(malformed)?);
    if found != (without_scope(local), without_scope(peer)) {
        return Ok(None);
    }
    let (state, inode) = (body[1], u32_at(body, 68).ok_or_else(malformed)?);
    // Its process closed it: what is left belongs to the kernel, and is reported as owned by root.
    if WITHOUT_OWNER.contains(&state) || inode == 0 {
        return Ok(None);
    }
    u32_at(body, 64).map(Some).ok_or_else(malformed)
}

/// The owner of the socket that listens at a port, in a datagram of the kernel.
fn parse_listener(datagram: &[u8], port: u16) -> io::Result<Option<u32>> {
    let Some(body) = answer(datagram)? else { return Ok(None) };
    let listens = body[1] == LISTEN && u16_at(body, 4).ok_or_else(malformed)?.to_be() == port;
    let (owner, inode) = (u32_at(body, 64), u32_at(body, 68));
    Ok(owner.filter(|_| listens && inode != Some(0))) // the kernel's own have no inode
}

/// Reads a `struct inet_diag_msg`; `None` if there is no such socket.
fn answer(datagram: &[u8]) -> io::Result<Option<&[u8]>> {
    let message = Messages(datagram).next().ok_or_else(malformed)?;
    if message.kind == ERROR {
        let error = error(message.body);
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    message.body.get(..ANSWER).filter(|_| message.kind == BY_FAMILY).ok_or_else(malformed).map(Some)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed answer of NETLINK_SOCK_DIAG")
}

/// The address in 16 bytes of a message.
fn ip_at(body: &[u8], at: usize) -> Option<IpAddr> {
    let octets = <[u8; 16]>::try_from(body.get(at..at.checked_add(16)?)?).ok()?;
    match i32::from(*body.first()?) {
        libc::AF_INET => Some(Ipv4Addr::from(*octets.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(octets).to_canonical()),
        _ => None,
    }
}

/// Padded with zeros, as the kernel stores IPv4 addresses.
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

/// An IPv4-mapped address is IPv4: that is how the kernel looks it up.
fn canonical(mut addr: SocketAddr) -> SocketAddr {
    addr.set_ip(addr.ip().to_canonical());
    addr
}

fn without_scope(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
