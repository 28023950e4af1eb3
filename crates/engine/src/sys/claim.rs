//! [`Claim`], which marks an RDMA port as in use in this network namespace. A claim is an unconnected Unix socket whose
//! name, in the abstract namespace, contains the port and the address. The kernel frees the name when the process ends,
//! keeps names of different network namespaces apart, as it does TCP ports, and lists all names in `/proc/net/unix`. So
//! processes find each other's RDMA ports without a directory or a daemon.
//!
//! The rules and the errors are those of the kernel's RDMA connection manager (`cma_check_port` in
//! drivers/infiniband/core/cma.c):
//!
//! | if two claims have the same port, and | the second |
//! |---|---|
//! | each is for one address family only, and these differ | succeeds |
//! | both share the port (RDMA_OPTION_ID_REUSEADDR), and the first does not listen | succeeds |
//! | one has the wildcard address | fails with EADDRNOTAVAIL |
//! | both have the same address | fails with EADDRINUSE |
//! | none of the above | succeeds |
//!
//! Any user can bind such a name, as any user can bind a port.

use super::fork::Fd;
use ironwarp_wire::private::RdmaPort;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// The kernel's list of Unix sockets in this thread's network namespace.
const SOCKET_LIST: &str = "/proc/thread-self/net/unix";
/// Follows the address in a name if the claim is for both address families.
const BOTH_FAMILIES: char = '+';
/// Follows the address in a name if the port is shared. The rest of the name makes it unique.
const SHARED: char = '#';

/// A claim of an RDMA port at an address. Dropping it frees the port.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The socket that has the name; `None` if a sandbox denies binding it.
    _fd: Option<Fd>,
    port: RdmaPort,
    scope: Scope,
    /// Name of the socket.
    name: String,
}

/// The addresses for which a port is claimed, as encoded in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scope {
    ip: IpAddr,
    /// Index of the interface of a link-local address; zero otherwise.
    interface: u32,
    /// Whether the claim is for addresses of its own family only (RDMA_OPTION_ID_AFONLY).
    one_family: bool,
    /// Whether other claims that also set this may have the same port and address (RDMA_OPTION_ID_REUSEADDR).
    share: bool,
}

impl Claim {
    /// Claims a port at the address `at`. [`Scope`] explains the two flags.
    pub(crate) fn new(port: RdmaPort, at: SocketAddr, one_family: bool, share: bool) -> io::Result<Self> {
        let interface = if let SocketAddr::V6(v6) = at { v6.scope_id() } else { 0 };
        Self::bind(port, Scope { ip: at.ip(), interface, one_family, share }, None)
    }

    /// Makes the claim an exclusive one, because the port is about to listen. Fails if another claim shares the port.
    pub(crate) fn listen(self) -> io::Result<Self> {
        match self.scope.share {
            true => Self::bind(self.port, Scope { share: false, ..self.scope }, Some(&self.name)),
            false => Ok(self),
        }
    }

    /// Claims a port. A claim with the name `replaced` does not count as a conflict.
    ///
    /// The name is bound before the names of others are read. So of two processes that claim a port at the same time,
    /// at least one finds the other's name.
    fn bind(port: RdmaPort, scope: Scope, replaced: Option<&str>) -> io::Result<Self> {
        let prefix = prefix(port);
        let name = format!("{prefix}{}", scope.name());
        let fd = match bind(&name) {
            Ok(fd) => Some(fd),
            Err(Errno::ADDRINUSE) => return Err(scope.same_address_errno().into()),
            // A sandbox denies the socket. Then only conflicts between TCP ports are found.
            Err(error) => {
                tracing::debug!(%error, "other processes cannot see that {port} is taken");
                None
            }
        };
        // Where the list cannot be read, only a claim with exactly the same name is found, by `bind` above.
        let names = std::fs::read(SOCKET_LIST).unwrap_or_default();
        let others =
            names_with_prefix(&names, &prefix).filter(|other| *other != name && replaced != Some(other));
        let mut others = others.filter_map(|other| Scope::parse(&other[prefix.len()..]));
        match others.find_map(|other| scope.conflict(other)) {
            Some(errno) => Err(errno.into()),
            None => Ok(Self { _fd: fd, port, scope, name }),
        }
    }
}

/// Binds a Unix socket to a name in the abstract namespace.
fn bind(name: &str) -> rustix::io::Result<Fd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = Fd::open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(fd)
}

/// Returns the start of the names of all claims of a port.
fn prefix(port: RdmaPort) -> String {
    format!("ironwarp/rdma/{}/{}/", port.space as u8, port.number)
}

/// Returns the names with this prefix in the kernel's list, where the first byte of an abstract name, which is zero, is
/// shown as `@`.
fn names_with_prefix<'a>(list: &'a [u8], prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = list.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines
        .filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@'))
        .filter(move |name| name.starts_with(prefix))
}

impl Scope {
    /// Encodes the scope as the rest of a name, after the [`prefix`]. If the port is shared, each call returns another
    /// name.
    fn name(self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut name = self.ip.to_string();
        if self.interface != 0 {
            name += &format!("%{}", self.interface);
        }
        if !self.one_family {
            name.push(BOTH_FAMILIES);
        }
        if self.share {
            let unique = NEXT.fetch_add(1, Ordering::Relaxed);
            name += &format!("{SHARED}{}.{unique}", std::process::id());
        }
        name
    }

    /// Parses the rest of a name, after the [`prefix`]. `None` if it is invalid: any process can bind any name.
    fn parse(name: &str) -> Option<Self> {
        let (front, share) = name.split_once(SHARED).map_or((name, false), |(front, _unique)| (front, true));
        let (address, one_family) =
            front.strip_suffix(BOTH_FAMILIES).map_or((front, true), |address| (address, false));
        let (ip, interface) = match address.split_once('%') {
            // Only a link-local IPv6 address is bound to an interface.
            Some((ip, interface)) => (ip.parse::<Ipv6Addr>().ok()?.into(), interface.parse().ok()?),
            None => (address.parse().ok()?, 0),
        };
        Some(Self { ip, interface, one_family, share })
    }

    /// Returns the error with which a claim of this scope fails if there is a claim of the scope `other` already;
    /// `None` if both are possible.
    fn conflict(self, other: Self) -> Option<Errno> {
        let families_differ = self.one_family && other.one_family && self.ip.is_ipv4() != other.ip.is_ipv4();
        if families_differ || (self.share && other.share) {
            return None;
        }
        if self.ip.is_unspecified() || other.ip.is_unspecified() {
            return Some(Errno::ADDRNOTAVAIL);
        }
        ((self.ip, self.interface) == (other.ip, other.interface)).then_some(Errno::ADDRINUSE)
    }

    /// Returns the error with which a claim of this scope fails if there is a claim of the same scope already.
    fn same_address_errno(self) -> Errno {
        if self.ip.is_unspecified() { Errno::ADDRNOTAVAIL } else { Errno::ADDRINUSE }
    }
}
