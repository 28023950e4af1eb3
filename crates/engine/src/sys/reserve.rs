//! Ports that are reserved on every address of the host before anything listens there. A queue pair needs one for its
//! number; a TCP listener or a UDP socket binds the port later, at the one address that it serves.
//!
//! A socket bound to all addresses holds the port. Two sockets share a port only if both allow it, and this one allows
//! it only while one of ours is being bound. It uses SO_REUSEPORT, which the kernel grants to sockets of one user only;
//! with SO_REUSEADDR any user could take the port in that moment. Another process of the same user still can, but could
//! do worse. A process that changes its user cannot serve ports that it reserved before.

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

/// What a port is for; TCP and UDP have separate ports.
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
    fd: Fd,
    port: u16,
    /// Held while another socket may share the port.
    sharing: Mutex<()>,
}

impl Reservation {
    /// Reserves a port of the range, or one that the kernel chooses.
    pub fn new(kind: Kind, range: PortRange) -> io::Result<Self> {
        let Some(ports) = range.ports() else { return Self::at(kind, 0) };
        let (first, len) = (*ports.start(), ports.len());
        // Processes that start together begin at different ports, so they rarely conflict.
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

    fn at(kind: Kind, port: u16) -> io::Result<Self> {
        let fd = bind_everywhere(kind, port)?;
        let port = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?.port();
        Ok(Self { fd, port, sharing: Mutex::default() })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets `bind` bind a socket to the port at one address, and listen. That socket must have SO_REUSEPORT; it is
    /// turned off afterwards, so that the port is not shared any further.
    pub fn share<T: AsFd>(&self, bind: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _alone = lock(&self.sharing);
        sockopt::set_socket_reuseport(&self.fd, true)?;
        let bound = bind();
        sockopt::set_socket_reuseport(&self.fd, false)?;
        let bound = bound?;
        sockopt::set_socket_reuseport(&bound, false)?;
        Ok(bound)
    }
}

/// A socket for both IP versions, or for IPv4 alone where the system has no IPv6.
fn bind_everywhere(kind: Kind, port: u16) -> io::Result<Fd> {
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
        // Datagrams to an address that is not served end here, unread, at the least cost in the kernel.
        sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    }
    Ok(fd)
}
