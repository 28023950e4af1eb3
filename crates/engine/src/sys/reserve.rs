//! [`Reservation`] of a TCP or UDP port at all addresses of the host. A queue pair number contains a port, so the port
//! is reserved when the queue pair is created. A TCP listener or a UDP socket is bound to it later, at the one address
//! that it serves.
//!
//! The port is held by a socket that is bound to the wildcard address and never used. The kernel lets a second socket
//! have the port only if both have SO_REUSEPORT set and belong to the same user. The reservation sets that option only
//! while a socket of the adapter is being bound ([`Reservation::share`]). With SO_REUSEADDR instead, any user could
//! bind the port at that moment. Another process of the same user still could, but such a process can do more harm in
//! other ways. A process that changes its user ID cannot bind ports that it reserved before.

use super::denied::Denied;
use super::fork::Fd;
use crate::config::PortRange;
use ironwarp_rnic::sync::lock;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;

#[cfg(test)]
mod tests;

/// The protocol of a port. TCP and UDP have separate ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// A reserved port. Dropping it frees the port.
#[derive(Debug)]
pub struct Reservation {
    /// The socket that is bound to the port at the wildcard address.
    fd: Fd,
    port: u16,
    /// Locked while SO_REUSEPORT is set on `fd`.
    sharing: Mutex<()>,
}

impl Reservation {
    /// Reserves a free port of the range, or one that the kernel chooses if the range is the default one.
    pub fn new(kind: Kind, range: PortRange) -> io::Result<Self> {
        let Some(ports) = range.ports() else { return Self::at(kind, 0) };
        let (first, len) = (*ports.start(), ports.len());
        // A hash of the process ID (40,503 is 2^16 divided by the golden ratio) selects the first port to try. So
        // processes that start together rarely try the same ports.
        // Neither this conversion nor the next one can fail: a process ID has 32 bits, and an offset of a port 16.
        let begin = usize::try_from(std::process::id()).unwrap_or_default().wrapping_mul(40_503) % len;
        for step in 0..len {
            let offset = u16::try_from((begin + step) % len).unwrap_or_default();
            match Self::at(kind, first + offset) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                outcome => return outcome,
            }
        }
        let why = format!("all ports of {range} are in use (IRONWARP_PORTS): allow more");
        Err(io::Error::new(io::ErrorKind::AddrInUse, why))
    }

    /// Reserves this port; port 0 lets the kernel choose.
    fn at(kind: Kind, port: u16) -> io::Result<Self> {
        let fd = bind_wildcard(kind, port)?;
        let port = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?.port();
        Ok(Self { fd, port, sharing: Mutex::default() })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Allows a second socket to have the port while `bind` runs. `bind` creates a socket with SO_REUSEPORT set, binds
    /// it to the port at one address, and makes it listen if it is a TCP socket. Returns that socket, on which the
    /// option is then cleared, so that no other socket can share its address.
    pub fn share<T: AsFd>(&self, bind: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _one_at_a_time = lock(&self.sharing);
        sockopt::set_socket_reuseport(&self.fd, true)?;
        let bound = bind();
        sockopt::set_socket_reuseport(&self.fd, false)?; // also if `bind` failed
        let bound = bound?;
        sockopt::set_socket_reuseport(&bound, false)?;
        Ok(bound)
    }
}

/// Opens a socket that is bound to a port at the wildcard address of both IP versions, or of IPv4 alone where the
/// system has no IPv6.
fn bind_wildcard(kind: Kind, port: u16) -> io::Result<Fd> {
    let open = |family| {
        let kind = match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::Datagram => SocketType::DGRAM,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Fd::open(|| rustix::net::socket_with(family, kind, flags, None))
    };
    let fd = match open(AddressFamily::INET6) {
        Ok(fd) => {
            sockopt::set_ipv6_v6only(&fd, false)?;
            rustix::net::bind(&fd, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
            fd
        }
        Err(Errno::AFNOSUPPORT) => {
            let fd = open(AddressFamily::INET)?;
            rustix::net::bind(&fd, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
            fd
        }
        Err(error) => return Err(Denied::from_errno("socket", error)),
    };
    if kind == Kind::Datagram {
        // Datagrams to addresses without a socket of their own are queued at this one, which is never read. The
        // smallest buffer wastes the least memory.
        sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    }
    Ok(fd)
}
