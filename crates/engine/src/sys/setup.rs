//! How a connection comes to be: connect, or listen and accept, and the options that every connection gets. What comes
//! out is a [`TcpLink`], on which the two ends then agree (MPA startup) before it carries a stream.

use super::fork::Fd;
use super::reserve::Reservation;
use super::socket::{TcpLink, choose_port_late};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// How many connections may wait to be accepted; the system may set a lower limit (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// When a silent peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a connection is silent before the kernel asks the peer for a sign of life. Whole seconds, at least one.
    pub idle: Duration,
    /// How long it waits before it asks again. Whole seconds, at least one.
    pub interval: Duration,
    /// How often it asks.
    pub probes: u32,
    /// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT). It limits the probes, too.
    pub unacknowledged: Duration,
}

/// Begins to connect to `to`, from the address `from` if it is given; port 0 lets the kernel choose.
///
/// When the socket becomes writable, [`TcpLink::connected`] tells how it went.
pub fn connect(to: SocketAddr, from: Option<SocketAddr>, keepalive: &Keepalive) -> io::Result<TcpLink> {
    let fd = socket(to, SocketType::STREAM)?;
    set_options(&fd, keepalive)?;
    speed_up_same_host(&fd, to);
    if let Some(from) = from {
        if from.port() == 0 {
            choose_port_late(&fd)?;
        } else {
            // The port may still be busy with connections that are long closed (TIME_WAIT).
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        rustix::net::bind(&fd, &from)?;
    }
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpLink::new(fd)),
        Err(error) => Err(error.into()),
    }
}

/// Begins to connect a socket to itself, at the address of `at`, with a port that the kernel chooses: what is sent is
/// received (RFC 9293 §3.5, both ends open at once, and are one).
pub fn connect_to_itself(at: SocketAddr, keepalive: &Keepalive) -> io::Result<TcpLink> {
    let fd = socket(at, SocketType::STREAM)?;
    set_options(&fd, keepalive)?;
    speed_up_same_host(&fd, at);
    let mut at = at;
    at.set_port(0);
    rustix::net::bind(&fd, &at)?;
    let itself = rustix::net::getsockname(&fd)?;
    match rustix::net::connect(&fd, &itself) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpLink::new(fd)),
        Err(error) => Err(error.into()),
    }
}

/// An address that is ours, though nobody listens there yet.
#[derive(Debug)]
pub struct Bound {
    fd: Fd,
}

/// How an address is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Others that allow it, too, may have the same address (SO_REUSEADDR).
    pub share: bool,
    /// The unspecified address of IPv6 stands for that of IPv4, too. Peers there have addresses that are IPv4 in IPv6.
    pub both_versions: bool,
}

impl Bound {
    /// Takes `at`; port 0 lets the kernel choose.
    pub fn new(at: SocketAddr, options: BindOptions) -> io::Result<Self> {
        let share = options.share && at.port() != 0;
        match Self::take(at, share, options) {
            // It may be that only connections that are long closed (TIME_WAIT) are in the way.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !share && at.port() != 0 => {
                Self::take(at, true, options)
            }
            taken => taken,
        }
    }

    fn take(at: SocketAddr, share: bool, options: BindOptions) -> io::Result<Self> {
        Self::bind(socket(at, SocketType::STREAM)?, at, share, options)
    }

    fn bind(fd: Fd, at: SocketAddr, share: bool, options: BindOptions) -> io::Result<Self> {
        sockopt::set_socket_reuseaddr(&fd, share)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, !options.both_versions)?;
        }
        rustix::net::bind(&fd, &at)?;
        Ok(Self { fd })
    }

    /// What was taken.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// Peers may connect from now on.
    pub fn listen(self, keepalive: &Keepalive) -> io::Result<Listener> {
        set_options(&self.fd, keepalive)?;
        // Connections inherit it: when they are long closed, whoever listens here next is not kept from it.
        sockopt::set_socket_reuseaddr(&self.fd, true)?;
        // This, too, until `settle`: if a stranger's connection is closed, nothing is left of it in the kernel.
        sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?;
        rustix::net::listen(&self.fd, BACKLOG)?;
        Ok(Listener { fd: self.fd })
    }
}

/// A connection that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// This end of it.
    pub link: TcpLink,
    /// The peer's address.
    pub peer: SocketAddr,
    /// The peer's address is one of this host.
    pub same_host: bool,
}

/// A port at which peers may connect.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
}

impl Listener {
    /// Listens at `at`; port 0 lets the kernel choose. Connections inherit the options. An address of IPv6 does not take the
    /// port of IPv4, or peers there would have two kinds of address.
    pub fn new(at: SocketAddr, keepalive: &Keepalive) -> io::Result<Self> {
        Bound::take(at, true, BindOptions::default())?.listen(keepalive)
    }

    /// Listens at an address with a port that is reserved.
    pub fn reserved(reservation: &Reservation, at: SocketAddr, keepalive: &Keepalive) -> io::Result<Self> {
        // The kernel looks for conflicts once more when a socket begins to listen.
        reservation.share(|| {
            let fd = socket(at, SocketType::STREAM)?;
            sockopt::set_socket_reuseport(&fd, true)?;
            Bound::bind(fd, at, true, BindOptions::default())?.listen(keepalive)
        })
    }

    /// Takes the next connection, if one waits. An error such as "too many open files" leaves it waiting. If it is closed before
    /// `settle`, its peer sees a reset.
    pub fn accept(&self) -> io::Result<Option<Accepted>> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match Fd::open_with(|| rustix::net::acceptfrom_with(&self.fd, flags)) {
                Ok((fd, Some(peer))) => {
                    let peer = SocketAddr::try_from(peer)?;
                    let same_host = is_same_host(peer).unwrap_or(false);
                    return Ok(Some(Accepted { link: TcpLink::new(fd), peer, same_host }));
                }
                // It came and went while it waited. Each turn takes one off a bounded queue.
                Ok((_, None)) | Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// From now on nobody can connect here, whoever still holds the socket. Others may listen at the address.
    pub fn stop(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many descriptors the process may have (RLIMIT_NOFILE).
pub(crate) fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn socket(addr: SocketAddr, kind: SocketType) -> io::Result<Fd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(Fd::open(|| rustix::net::socket_with(family, kind, flags, None))?)
}

fn set_options(fd: &Fd, keepalive: &Keepalive) -> io::Result<()> {
    // What is sent is whole FPDUs already; waiting for more would only delay it.
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, keepalive.idle)?;
    sockopt::set_tcp_keepintvl(fd, keepalive.interval)?;
    sockopt::set_tcp_keepcnt(fd, keepalive.probes)?;
    let unacknowledged = u32::try_from(keepalive.unacknowledged.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, unacknowledged)?;
    Ok(())
}

/// A connection that was accepted is worth its options: its peer speaks MPA.
pub(crate) fn settle(link: &TcpLink, same_host: bool) {
    let _ = sockopt::set_socket_linger(link, None);
    if same_host {
        speed_up(link);
    }
}

/// Between two ends on one host nothing is lost and nothing queues, so pacing (bbr, where it is the default) only costs:
/// reno moves up to 1.8 times as much. To other hosts the system's choice stands. Where reno is refused, too.
fn speed_up(fd: impl AsFd) {
    let _ = sockopt::set_tcp_congestion(fd, "reno");
}

fn speed_up_same_host(fd: &Fd, peer: SocketAddr) {
    if is_same_host(peer).unwrap_or(false) {
        speed_up(fd);
    }
}

/// Loopback, or an address of this host: those are the ones that a socket can be bound to.
/// A link-local address is one of this host only at the interface that it names.
pub(super) fn is_same_host(mut at: SocketAddr) -> io::Result<bool> {
    at.set_ip(at.ip().to_canonical());
    at.set_port(0);
    if at.ip().is_loopback() {
        return Ok(true);
    }
    let probe = socket(at, SocketType::DGRAM)?;
    match rustix::net::bind(&probe, &at) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRNOTAVAIL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
