//! The UDP sockets of a connectionless queue pair: one at each address that it is reached at, all with one port number, which
//! is part of the queue pair's. `datagram.rs` puts them into a set; the device then sends and receives through them.
//!
//! None of them is bound to the wildcard address (only what reserves the port is, and nobody reads it): the one that a datagram leaves from is its source address, and the one that it
//! comes in at says where it was sent to.

use super::denied::Denied;
use super::fork::Fd;
use super::reserve::{Kind, Reservation};
use crate::traffic;
use ironwarp_rnic::config::PortRange;
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

/// Queue pair numbers made of lower ports belong to queue pairs without a port.
const LOWEST_PORT: u16 = 1024;
/// What a socket holds for a program that does not poll. The system may set a lower limit (net.core.rmem_max).
const RECEIVE_BUFFER: usize = 4 << 20;
/// A socket tells of an earlier datagram's fate once, instead of doing what it was asked to. Then it is asked again.
const TRIES: usize = 3;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The interface's number, for a link-local address of IPv6; otherwise zero.
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
    /// Keeps others from having it at the addresses that are not served.
    reservation: Reservation,
    sockets: Vec<UdpSocket>,
    /// Which socket has its turn to be received from.
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
    /// Takes a port out of the range, or one that the kernel chooses, and binds it at all of `addresses`.
    pub fn bind(addresses: &[LocalAddress], range: PortRange) -> io::Result<Self> {
        Self::at(addresses, range, |_| false)
    }

    /// The same at those of `addresses` that are there. One may go at any time, and one that is new is there in a moment.
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

    /// The port.
    pub fn port(&self) -> u16 {
        self.reservation.port()
    }

    /// The sockets, in the order of the addresses.
    pub fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// The socket at this address.
    pub fn at_gid(&self, gid: Gid) -> Option<&UdpSocket> {
        self.sockets.iter().find(|socket| socket.gid == gid)
    }

    /// The address of ours that the host's routes choose for datagrams to another.
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

    /// One of the sockets may have something to receive.
    pub fn set_readable(&self, socket: usize) {
        self.sockets[socket].readable.store(true, Ordering::Release);
    }

    /// Receives one datagram, from the sockets in turn. One thread at a time.
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
            // Routers may cut datagrams that are too long for a path, which the first one cannot know.
            sockopt::set_ip_mtu_discover(&fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        // More than the limit for everybody, where the process may; up to the limit otherwise.
        if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        }
        sockopt::set_socket_reuseport(&fd, true)?; // with the reservation, which takes it back
        rustix::net::bind(&fd, &at)?;
        Ok(Self { fd, gid: address.ip.into(), address, readable: AtomicBool::new(true) })
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Whether a datagram from here can go there at all.
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
                    traffic::datagram_sent(bytes.len());
                    return Sent::Taken;
                }
                Err(Errno::AGAIN) => return Sent::Full,
                Err(error) => tracing::trace!(%error, %to, "a datagram was not sent"),
            }
        }
        Sent::Lost
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let mut errors = 0;
        // Cleared before the socket is asked: if it is set again afterwards, there may be more than was seen.
        while errors < TRIES && self.readable.swap(false, Ordering::AcqRel) {
            match rustix::net::recvfrom(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((len, _, from)) => {
                    self.readable.store(true, Ordering::Release);
                    traffic::datagram_received(len);
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
    /// A port of `ip`, as this address names it: link-local ones are of the same interface.
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
    Denied::name("socket", Fd::open(|| rustix::net::socket_with(family, SocketType::DGRAM, flags, None)))
}
