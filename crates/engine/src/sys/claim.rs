//! RDMA ports in use in this network namespace. A port is held by an unconnected Unix socket with a name in the
//! abstract namespace: the kernel keeps it for as long as the process lives, in the network namespace of the TCP ports,
//! and lists all names in `/proc/net/unix`. So processes find each other's ports without a directory or a daemon.
//!
//! The rules, and the error numbers, are those of the kernel's connection manager (`cma_check_port` in
//! drivers/infiniband/core/cma.c):
//!
//! | two ids have the same port and | |
//! |---|---|
//! | both are for one address family, and these differ | no conflict |
//! | both share (RDMA_OPTION_ID_REUSEADDR), and the one that came first does not listen | no conflict |
//! | one has the wildcard address | EADDRNOTAVAIL |
//! | they have the same address | EADDRINUSE |
//!
//! Any user can take a name, as any user can take a port.

use super::fork::Fd;
use ironwarp_wire::private::RdmaPort;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// Lists the names of this thread's network namespace.
const NAMES: &str = "/proc/thread-self/net/unix";
/// Follows the address in a name if the port is taken for both address families.
const BOTH: char = '+';
/// Follows the address in a name if the port is shared; what comes after it makes the name unique.
const SHARED: char = '#';

/// An RDMA port at an address. Dropping it frees the port.
#[derive(Debug)]
pub(crate) struct Claim {
    _fd: Option<Fd>,
    port: RdmaPort,
    who: Who,
    name: String,
}

/// Where a port is taken, as encoded in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Who {
    ip: IpAddr,
    /// Index of the interface of a link-local address.
    scope: u32,
    /// The port is taken for addresses of its own family only (RDMA_OPTION_ID_AFONLY).
    one_family: bool,
    share: bool,
}

impl Claim {
    /// Takes a port at the address `at`.
    pub(crate) fn new(port: RdmaPort, at: SocketAddr, one_family: bool, share: bool) -> io::Result<Self> {
        let scope = if let SocketAddr::V6(v6) = at { v6.scope_id() } else { 0 };
        Self::take(port, Who { ip: at.ip(), scope, one_family, share }, None)
    }

    /// A shared port is not shared any more once it listens.
    pub(crate) fn listen(self) -> io::Result<Self> {
        match self.who.share {
            true => Self::take(self.port, Who { share: false, ..self.who }, Some(&self.name)),
            false => Ok(self),
        }
    }

    /// The name is taken first: of two processes that take a port at the same time, at least one finds the other.
    fn take(port: RdmaPort, who: Who, beside: Option<&str>) -> io::Result<Self> {
        let prefix = prefix(port);
        let name = format!("{prefix}{}", who.name());
        let fd = match bind(&name) {
            Ok(fd) => Some(fd),
            Err(Errno::ADDRINUSE) => return Err(who.taken().into()),
            // In a sandbox that denies it, only TCP ports can conflict.
            Err(error) => {
                tracing::debug!(%error, "other processes cannot see that {port} is taken");
                None
            }
        };
        // Without this file, only a port at the same address is found to be in use.
        let names = std::fs::read(NAMES).unwrap_or_default();
        let others = listed(&names, &prefix).filter(|other| *other != name && beside != Some(other));
        match others.filter_map(|other| Who::parse(&other[prefix.len()..])).find_map(|it| who.conflict(it)) {
            Some(errno) => Err(errno.into()),
            None => Ok(Self { _fd: fd, port, who, name }),
        }
    }
}

fn bind(name: &str) -> rustix::io::Result<Fd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = Fd::open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(fd)
}

fn prefix(port: RdmaPort) -> String {
    format!("ironwarp/rdma/{}/{}/", port.space as u8, port.number)
}

/// The names with this prefix in the kernel's list. The first byte of an abstract name, which is zero, is shown as `@`.
fn listed<'a>(names: &'a [u8], prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = names.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines
        .filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@'))
        .filter(move |it| it.starts_with(prefix))
}

impl Who {
    fn name(self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut name = self.ip.to_string();
        if self.scope != 0 {
            name += &format!("%{}", self.scope);
        }
        if !self.one_family {
            name.push(BOTH);
        }
        if self.share {
            let unique = NEXT.fetch_add(1, Ordering::Relaxed);
            name += &format!("{SHARED}{}.{unique}", std::process::id());
        }
        name
    }

    /// Parses a name. `None` if it is not one of ours: any process can choose a name.
    fn parse(name: &str) -> Option<Self> {
        let (name, share) = name.split_once(SHARED).map_or((name, false), |(name, _)| (name, true));
        let (name, one_family) = name.strip_suffix(BOTH).map_or((name, true), |name| (name, false));
        let (ip, scope) = match name.split_once('%') {
            Some((ip, scope)) => (ip.parse::<Ipv6Addr>().ok()?.into(), scope.parse().ok()?),
            None => (name.parse().ok()?, 0),
        };
        Some(Self { ip, scope, one_family, share })
    }

    /// The kernel's error if this one comes after the other.
    fn conflict(self, other: Self) -> Option<Errno> {
        let apart = self.one_family && other.one_family && self.ip.is_ipv4() != other.ip.is_ipv4();
        if apart || (self.share && other.share) {
            return None;
        }
        if self.ip.is_unspecified() || other.ip.is_unspecified() {
            return Some(Errno::ADDRNOTAVAIL);
        }
        ((self.ip, self.scope) == (other.ip, other.scope)).then_some(Errno::ADDRINUSE)
    }

    /// The kernel's error if another has the same address.
    fn taken(self) -> Errno {
        if self.ip.is_unspecified() { Errno::ADDRNOTAVAIL } else { Errno::ADDRINUSE }
    }
}
