//! The UDP sockets of a connectionless queue pair: one at each of its addresses, all with one port number, which is part of the queue pair's
//! number. `verbs/datagram.rs` adds them to a poll set; the device sends and receives through them.
//!
//! None of them is bound to the wildcard address: a datagram has the address of the socket that sends it, and the socket at which it arrives
//! tells its destination. (Only the reservation of the port is bound to the wildcard address, and is never read.)

use super::counters;
use super::denied::Denied;
use super::fork::Fd;
use super::reserve::{Kind, Reservation};
use crate::config::PortRange;
use ironwarp_rnic::datagram::{Arrived, Sent};
use ironwarp_rnic::gid::Gid;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(test)]
mod tests;

/// The smallest port: queue pair numbers made of lower ports have no port in them.
const LOWEST_PORT: u16 = 1024;
/// Receive buffer of a socket, for a program that does not poll. The system may set a lower limit (net.core.rmem_max).
const RECEIVE_BUFFER: usize = 4 << 20;
/// Number of retries: a socket reports the failure of an earlier datagram once, instead of doing what it was asked to.
const TRIES: usize = 3;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The index of the interface for a link-local IPv6 address; zero otherwise.
    pub scope: u32,
}

impl From<IpAddr> for LocalAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, scope: 0 }
    }
}

/// One port at several addresses.
#[derive(Debug)]
pub struct UdpPort {
    /// Keeps others from using the port at the other addresses.
    reservation: Reservation,
    sockets: Vec<UdpSocket>,
    /// The socket to receive from next.
    turn: AtomicUsize,
}

/// One port at one address.
#[derive(Debug)]
pub struct UdpSocket {
    fd: Fd,
    gid: Gid,
    address: LocalAddress,
    /// There may be something to receive.
    readable: AtomicBool,
}

impl UdpPort {
    /// Takes a port of the range, or one that the kernel chooses, and binds it at all of `addresses`.
    pub fn bind(addresses: &[LocalAddress], range: PortRange) -> io::Result<Self> {
        Self::at(addresses, range, |_| false)
    }

    /// Binds a port at those of `addresses` that exist. An address may go away at any time.
    pub fn bind_available(addresses: &[LocalAddress], range: PortRange) -> io::Result<Self> {
        Self::at(addresses, range, |error| error.kind() == io::ErrorKind::AddrNotAvailable)
    }

    fn at(
        addresses: &[LocalAddress],
        range: PortRange,
        may_lack: impl Fn(&io::Error) -> bool,
    ) -> io::Result<Self> {
        let reservation = Reservation::new(Kind::Datagram, range)?;
        let port = reservation.port();
        let mut sockets = Vec::with_capacity(addresses.len());
        for address in addresses {
            match reservation.share(|| UdpSocket::bind(*address, port)) {
                Err(error) if may_lack(&error) => {}
                bound => sockets.push(bound?),
            }
        }
        if sockets.is_empty() || port < LOWEST_PORT {
            let why = "a connectionless queue pair needs an address, and a port of 1024 or above";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self { reservation, sockets, turn: AtomicUsize::new(0) })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.reservation.port()
    }

    /// Returns the sockets, in the order of the addresses.
    pub fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// Returns the socket with this GID.
    pub fn at_gid(&self, gid: Gid) -> Option<&UdpSocket> {
        self.sockets.iter().find(|socket| socket.gid == gid)
    }

    /// Returns the local GID that the host's routes choose for datagrams to a remote GID.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        let unreachable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        if to.is_link_local() {
            let scoped = self.sockets.iter().find(|socket| socket.gid.is_link_local());
            return scoped.map(|socket| socket.gid).ok_or_else(unreachable);
        }
        let to = SocketAddr::new(to.ip().ok_or_else(unreachable)?, self.port());
        let probe = open(to)?;
        rustix::net::connect(&probe, &to)?; // sends nothing
        let source = Gid::from(SocketAddr::try_from(rustix::net::getsockname(&probe)?)?.ip());
        self.at_gid(source).map(|socket| socket.gid).ok_or_else(unreachable)
    }

    /// Notes that a socket may have something to receive.
    pub fn set_readable(&self, socket: usize) {
        self.sockets[socket].readable.store(true, Ordering::Release);
    }

    /// Receives one datagram, from the sockets in turn. Called by one thread at a time.
    pub fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let count = self.sockets.len();
        let first = self.turn.load(Ordering::Relaxed);
        (first..first + count).map(|turn| turn % count).find_map(|turn| {
            let arrived = self.sockets[turn].recv(into)?;
            self.turn.store((turn + 1) % count, Ordering::Relaxed);
            Some(arrived)
        })
    }
}

impl UdpSocket {
    fn bind(address: LocalAddress, port: u16) -> io::Result<Self> {
        let at = address.with_port(address.ip, port);
        let fd = open(at)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        } else {
            // Routers may fragment datagrams that are too long for a path, which the first datagram cannot know.
            sockopt::set_ip_mtu_discover(&fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        // More than the system's limit, where the process may; up to the limit otherwise.
        if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        }
        sockopt::set_socket_reuseport(&fd, true)?; // the reservation turns it off again
        rustix::net::bind(&fd, &at)?;
        Ok(Self { fd, gid: address.ip.into(), address, readable: AtomicBool::new(true) })
    }

    /// Returns its GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns whether a datagram from here can reach that GID at all.
    pub fn reaches(&self, to: Gid) -> bool {
        to.ip().is_some_and(|ip| ip.is_ipv4() == self.address.ip.is_ipv4())
    }

    /// Sends one datagram.
    pub fn send(&self, (to, port): (Gid, u16), bytes: &[u8]) -> Sent {
        let Some(ip) = to.ip() else { return Sent::Lost };
        let to = self.address.with_port(ip, port);
        for _ in 0..TRIES {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::io::retry_on_intr(|| rustix::net::sendto(&self.fd, bytes, flags, &to)) {
                Ok(_) => {
                    counters::datagram_sent(bytes.len());
                    return Sent::Taken;
                }
                Err(Errno::AGAIN) => return Sent::Full,
                Err(error) => tracing::trace!(%error, %to, "failed to send a datagram"),
            }
        }
        Sent::Lost
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let mut errors = 0;
        // Cleared before the socket is read: if it is set again afterwards, there may be more than was seen.
        while errors < TRIES && self.readable.swap(false, Ordering::AcqRel) {
            match rustix::net::recvfrom(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((len, _, from)) => {
                    self.readable.store(true, Ordering::Release);
                    counters::datagram_received(len);
                    let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else { continue };
                    return Some(Arrived { from: from.ip().into(), port: from.port(), to: self.gid, len });
                }
                Err(Errno::AGAIN) => {}
                Err(_) => {
                    self.readable.store(true, Ordering::Release);
                    errors += 1;
                }
            }
        }
        None
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl LocalAddress {
    /// The address of `ip` with a port: link-local addresses are of the same interface.
    fn with_port(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, self.scope).into(),
            ip => SocketAddr::new(ip, port),
        }
    }
}

fn open(at: SocketAddr) -> io::Result<Fd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Denied::check("socket", Fd::open(|| rustix::net::socket_with(family, SocketType::DGRAM, flags, None)))
}
