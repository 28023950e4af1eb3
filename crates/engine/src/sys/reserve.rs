//! Ports that are ours on every address of the host, though nobody listens there yet. Before this, a queue pair needs a
//! number with a port in it; after, `setup.rs` or a datagram's socket binds the port at the one address that is served.
//!
//! A socket bound to all addresses holds the port. Two sockets share a port only if both ask for it, and this one asks only for the
//! moment in which one of our own is bound. It asks for SO_REUSEPORT, which the kernel grants to sockets of one user only; any user could
//! have used SO_REUSEADDR in that moment. What remains: another process of the same user, which could do worse. And a process that changes
//! its user cannot serve ports that it reserved before.

use super::denied::Denied;
use super::fork::Fd;
use ironwarp_rnic::config::PortRange;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

#[cfg(test)]
mod tests;

/// What a port is for; each has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// A port, held until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    fd: Fd,
    port: u16,
    /// Held while others may share.
    sharing: Mutex<()>,
}

impl Reservation {
    /// Takes a port out of the range, or one that the kernel chooses.
    pub fn new(kind: Kind, range: PortRange) -> io::Result<Self> {
        let Some(ports) = range.ports() else { return Self::at(kind, 0) };
        let (first, len) = (*ports.start(), ports.len());
        // Processes that start together begin at different places, and seldom get in each other's way.
        let begin = usize::try_from(std::process::id()).unwrap_or_default().wrapping_mul(40_503) % len;
        for step in 0..len {
            let offset = u16::try_from((begin + step) % len).unwrap_or_default();
            match Self::at(kind, first + offset) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                outcome => return outcome,
            }
        }
        let why = format!("all ports of {range} are taken (IRONWARP_PORTS): allow more");
        Err(io::Error::new(io::ErrorKind::AddrInUse, why))
    }

    fn at(kind: Kind, port: u16) -> io::Result<Self> {
        let fd = bind_everywhere(kind, port)?;
        let port = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?.port();
        Ok(Self { fd, port, sharing: Mutex::default() })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets `bind` bind a socket to the port at one address, and listen. That socket must have SO_REUSEPORT; it loses it by this, so that the port is
    /// not shared any further.
    pub fn share<T: AsFd>(&self, bind: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _alone = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        sockopt::set_socket_reuseport(&self.fd, true)?;
        let bound = bind();
        sockopt::set_socket_reuseport(&self.fd, false)?;
        let bound = bound?;
        sockopt::set_socket_reuseport(&bound, false)?;
        Ok(bound)
    }
}

/// Both IP versions; IPv4 alone where the system has no other.
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
        Err(error) => return Err(Denied::or_failed("socket", error)),
    };
    if kind == Kind::Datagram {
        // What comes at an address that is not served ends here, unread. The kernel makes the least of it that it can.
        sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    }
    Ok(fd)
}
