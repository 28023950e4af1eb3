//! The UDP sockets of a connectionless queue pair: one at each of its addresses, all with the same port, which is part
//! of the queue pair number. `verbs/datagram.rs` adds the sockets to a poll set; the device sends and receives through
//! them.
//!
//! None of the sockets is bound to the wildcard address. So the socket that sends a datagram determines its source
//! address, and the socket at which a datagram arrives determines its destination address. (Only the reservation of the
//! port is bound to the wildcard address. It is never read.)

use super::counters;
use super::denied::Denied;
use super::fork::Fd;
use super::reserve::{Kind, Reservation};
use super::socket::set_drops_datagrams;
use super::traffic_class::set_traffic_class;
use crate::config::PortRange;
use ironwarp_rnic::datagram::{Arrived, SendTo, Sent};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::sync::lock;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(test)]
mod tests;

/// The lowest port that a queue pair number can contain: smaller numbers are for queue pairs without a port.
const MIN_PORT: u16 = 1024;
/// Size of a socket's receive buffer in bytes, for datagrams that arrive before the program polls. The system may set a
/// lower limit (net.core.rmem_max).
const RECEIVE_BUFFER: usize = 4 << 20;
/// Maximum number of attempts to send or receive. A call on a socket can fail with the error of an earlier datagram,
/// which the kernel reports once; the next call then succeeds.
const MAX_TRIES: usize = 3;

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

/// A UDP port at several addresses: a socket for each.
#[derive(Debug)]
pub struct UdpPort {
    /// Keeps other sockets from using the port at any address.
    reservation: Reservation,
    sockets: Vec<UdpSocket>,
    /// Index of the socket to receive from next.
    next: AtomicUsize,
}

/// A UDP socket, at one address.
#[derive(Debug)]
pub struct UdpSocket {
    fd: Fd,
    /// The GID of the address.
    gid: Gid,
    address: LocalAddress,
    /// Whether a datagram may have arrived. Cleared when the socket was found empty.
    readable: AtomicBool,
    /// Nothing is sent or received.
    blocked: AtomicBool,
    /// The traffic class of the socket (requirement M16). Locked while a datagram is sent: another thread may send with
    /// another class.
    traffic_class: Mutex<u8>,
}

impl UdpPort {
    /// Reserves a port of the range, or one that the kernel chooses, and binds it at all of `addresses`.
    pub fn bind(addresses: &[LocalAddress], range: PortRange) -> io::Result<Self> {
        Self::bind_except(addresses, range, |_| false)
    }

    /// Reserves a port like [`bind`](Self::bind), and binds it at those of `addresses` that exist: the host may have
    /// lost an address since the list was made.
    pub fn bind_available(addresses: &[LocalAddress], range: PortRange) -> io::Result<Self> {
        Self::bind_except(addresses, range, |error| error.kind() == io::ErrorKind::AddrNotAvailable)
    }

    /// Reserves a port, and binds it at all `addresses` except those for which binding fails with an error that
    /// `is_skipped` accepts.
    fn bind_except(
        addresses: &[LocalAddress],
        range: PortRange,
        is_skipped: impl Fn(&io::Error) -> bool,
    ) -> io::Result<Self> {
        let reservation = Reservation::new(Kind::Datagram, range)?;
        let port = reservation.port();
        let mut sockets = Vec::with_capacity(addresses.len());
        for address in addresses {
            match reservation.share(|| UdpSocket::bind(*address, port)) {
                Err(error) if is_skipped(&error) => {}
                bound => sockets.push(bound?),
            }
        }
        if sockets.is_empty() || port < MIN_PORT {
            let why = "a connectionless queue pair needs an address, and a port of 1024 or above";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self { reservation, sockets, next: AtomicUsize::new(0) })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.reservation.port()
    }

    /// Returns the addresses of the sockets, with the port.
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|socket| match socket.address {
            LocalAddress { ip: IpAddr::V4(ip), .. } => (ip, self.port()).into(),
            LocalAddress { ip: IpAddr::V6(ip), scope } => SocketAddrV6::new(ip, self.port(), 0, scope).into(),
        })
    }

    /// Returns the sockets, in the order of the addresses.
    pub fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// Returns the socket at the address with this GID.
    pub fn at_gid(&self, gid: Gid) -> Option<&UdpSocket> {
        self.sockets.iter().find(|socket| socket.gid == gid)
    }

    /// Returns the local GID that the host's routes select as source of datagrams to `to`. Fails if that is not one of
    /// the sockets' GIDs.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        let unreachable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        if to.is_link_local() {
            let scoped = self.sockets.iter().find(|socket| socket.gid.is_link_local());
            return scoped.map(|socket| socket.gid).ok_or_else(unreachable);
        }
        let to = SocketAddr::new(to.ip().ok_or_else(unreachable)?, self.port());
        let probe = open(to)?;
        rustix::net::connect(&probe, &to)?; // selects the source address, and sends nothing
        let source = Gid::from(SocketAddr::try_from(rustix::net::getsockname(&probe)?)?.ip());
        self.at_gid(source).map(|socket| socket.gid).ok_or_else(unreachable)
    }

    /// Records that a datagram may have arrived at the socket with this index.
    pub fn set_readable(&self, index: usize) {
        self.sockets[index].readable.store(true, Ordering::Release);
    }

    /// Receives one datagram, from the sockets round robin; `None` if no socket has one. Must be called by one thread
    /// at a time.
    pub fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let count = self.sockets.len();
        let first = self.next.load(Ordering::Relaxed);
        (first..first + count).map(|index| index % count).find_map(|index| {
            let arrived = self.sockets[index].recv(into)?;
            self.next.store((index + 1) % count, Ordering::Relaxed);
            Some(arrived)
        })
    }
}

impl UdpSocket {
    /// Opens a socket, and binds it to `port` at `address`. Must be called in [`Reservation::share`].
    fn bind(address: LocalAddress, port: u16) -> io::Result<Self> {
        let at = address.with_port(address.ip, port);
        let fd = open(at)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        } else {
            // Without path MTU discovery, routers fragment datagrams that are too long for the path. With it, the first
            // such datagram would be lost.
            sockopt::set_ip_mtu_discover(&fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        // A privileged process may exceed the system's limit; for others the size is capped at the limit.
        if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        }
        sockopt::set_socket_reuseport(&fd, true)?; // the reservation turns it off again
        rustix::net::bind(&fd, &at)?;
        Ok(Self {
            fd,
            gid: address.ip.into(),
            address,
            readable: AtomicBool::new(true),
            blocked: AtomicBool::new(false),
            traffic_class: Mutex::new(0),
        })
    }

    /// Drops all datagrams from now on, in both directions, or none any more.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        if self.blocked.swap(blocked, Ordering::SeqCst) != blocked
            && let Err(error) = set_drops_datagrams(&self.fd, blocked)
        {
            tracing::error!(%error, "failed to block datagrams");
        }
    }

    /// Returns the GID of the socket's address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns whether the socket can send to a GID: both must be of the same IP version.
    pub fn can_reach(&self, to: Gid) -> bool {
        to.ip().is_some_and(|ip| ip.is_ipv4() == self.address.ip.is_ipv4())
    }

    /// Sends one datagram.
    pub fn send(&self, to: SendTo, bytes: &[u8]) -> Sent {
        let Some(ip) = to.gid.ip() else { return Sent::Lost };
        if self.blocked.load(Ordering::Relaxed) {
            return Sent::Lost;
        }
        let mut class = lock(&self.traffic_class);
        if *class != to.traffic_class {
            if let Err(error) = set_traffic_class(&self.fd, to.traffic_class) {
                tracing::debug!(%error, "failed to set the traffic class of a datagram");
            }
            *class = to.traffic_class;
        }
        let to = self.address.with_port(ip, to.port);
        for _ in 0..MAX_TRIES {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::io::retry_on_intr(|| rustix::net::sendto(&self.fd, bytes, flags, &to)) {
                Ok(_) => {
                    counters::count_sent_datagram(bytes.len());
                    return Sent::Taken;
                }
                Err(Errno::AGAIN) => return Sent::Full,
                Err(error) => tracing::trace!(%error, %to, "failed to send a datagram"),
            }
        }
        Sent::Lost
    }

    /// Receives one datagram; `None` if there is none. A datagram that is longer than `into` is cut off.
    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let mut errors = 0;
        // The flag is cleared before the socket is read. So a `set_readable` after the read is not overwritten.
        while errors < MAX_TRIES && self.readable.swap(false, Ordering::AcqRel) {
            match rustix::net::recvfrom(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((len, _, from)) => {
                    self.readable.store(true, Ordering::Release);
                    counters::count_received_datagram(len);
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
    /// Returns the socket address of `ip` and `port`. A link-local `ip` gets the interface of this address.
    fn with_port(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, self.scope).into(),
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// Opens a non-blocking UDP socket for the IP version of `at`.
fn open(at: SocketAddr) -> io::Result<Fd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Denied::check("socket", Fd::open(|| rustix::net::socket_with(family, SocketType::DGRAM, flags, None)))
}
