//! Establishing connections: connect, or listen and accept, and the options that every connection gets. The result is a [`TcpLink`], on
//! which the two ends then negotiate (MPA startup) before it carries a stream.

use super::claim::Claim;
use super::denied::Denied;
use super::fork::Fd;
use super::reserve::Reservation;
use super::socket::{TcpLink, choose_port_late};
use crate::config::PortPolicy;
use ironwarp_wire::private::{PortSpace, RdmaPort};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Maximum number of connections that wait to be accepted; the system may set a lower limit (net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// Maximum number of TCP ports tried for an RDMA port of any number. One fails only if its number is in use as an RDMA port.
const TRIES: usize = 64;

/// When the kernel gives up a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a connection is silent before the kernel sends a keepalive probe. Whole seconds, at least one.
    pub idle: Duration,
    /// Interval between probes. Whole seconds, at least one.
    pub interval: Duration,
    /// Number of probes.
    pub probes: u32,
    /// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT). It limits the probes, too.
    pub user_timeout: Duration,
}

/// Begins to connect to `to`, from the address `from` if it is given; port 0 lets the kernel choose.
///
/// When the socket becomes writable, [`TcpLink::is_connected`] returns the result.
pub fn connect(to: SocketAddr, from: Option<SocketAddr>, keepalive: &Keepalive) -> io::Result<TcpLink> {
    let fd = socket(to, SocketType::STREAM)?;
    set_options(&fd, keepalive)?;
    speed_up_same_host(&fd, to);
    if let Some(from) = from {
        if from.port() == 0 {
            choose_port_late(&fd)?;
        } else {
            // Closed connections (TIME_WAIT) may still use the port.
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        rustix::net::bind(&fd, &from)?;
    }
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpLink::new(fd)),
        Err(error) => Err(error.into()),
    }
}

/// Begins to connect a socket to itself, at the address of `at`, with a port that the kernel chooses: what is sent is received
/// (RFC 9293 §3.5: a simultaneous open in which both ends are the same).
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

/// A bound address at which nothing listens yet.
#[derive(Debug)]
pub struct Bound {
    fd: Fd,
    binding: Option<RdmaBinding>,
}

/// An RDMA port in use by this process.
#[derive(Debug)]
pub(crate) struct RdmaBinding {
    /// The address with the RDMA port, which need not be the TCP port of the socket.
    at: SocketAddr,
    port: RdmaPort,
    options: BindOptions,
    policy: PortPolicy,
    claim: Claim,
}

/// How an address is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Other sockets that allow it, too, may have the same address (SO_REUSEADDR).
    pub share: bool,
    /// The unspecified IPv6 address stands for that of IPv4, too. IPv4 peers then have IPv4-mapped addresses.
    pub both_versions: bool,
}

impl Bound {
    /// Binds `at`; port 0 lets the kernel choose.
    pub fn new(at: SocketAddr, options: BindOptions) -> io::Result<Self> {
        let share = options.share && at.port() != 0;
        match Self::take(at, share, options) {
            // It may be that only closed connections (TIME_WAIT) are in the way.
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
        Ok(Self { fd, binding: None })
    }

    /// Takes an RDMA port; 0 lets the kernel choose. Depending on the policy, it is at the TCP port of the same number, or at a candidate.
    pub fn for_rdma(
        at: SocketAddr,
        space: PortSpace,
        options: BindOptions,
        policy: PortPolicy,
    ) -> io::Result<Self> {
        let claim = |at: SocketAddr| {
            let port = RdmaPort { space, number: at.port() };
            let one_family = at.is_ipv4() || !options.both_versions;
            let claim = Claim::new(port, at, one_family, options.share && at.port() != 0)?;
            io::Result::Ok(RdmaBinding { at, port, options, policy, claim })
        };
        if at.port() != 0 {
            return claim(at)?.bind();
        }
        let mut taken = Vec::new(); // held until one is found, so that the kernel chooses another each time
        loop {
            let bound = Self::take(at, false, options)?;
            match claim(bound.local_addr()?) {
                Ok(binding) if policy == PortPolicy::Apart => return binding.aside(),
                Ok(binding) => return Ok(Self { binding: Some(binding), ..bound }),
                Err(error) if taken.len() == TRIES => return Err(error),
                Err(_) => taken.push(bound),
            }
        }
    }

    /// Returns the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// Returns the address that was asked for: with the RDMA port, if it is one.
    pub fn requested_addr(&self) -> io::Result<SocketAddr> {
        self.binding.as_ref().map_or_else(|| self.local_addr(), |binding| Ok(binding.at))
    }

    /// Leaves the TCP port of an RDMA port's own number to others, if it has that, and moves to a candidate. Returns whether it had it.
    pub fn move_aside(&mut self) -> io::Result<bool> {
        let local = self.local_addr()?;
        let Some(binding) = self.binding.as_ref().filter(|binding| binding.can_leave(local.port())) else {
            return Ok(false);
        };
        self.fd = binding.candidate()?;
        Ok(true)
    }

    /// Starts to listen.
    pub fn listen(self, keepalive: &Keepalive) -> io::Result<Listener> {
        self.listen_with_rdma_binding(keepalive).map(|(listener, _)| listener)
    }

    /// Starts to listen. The second value holds the RDMA port, if it is one.
    pub(crate) fn listen_with_rdma_binding(
        self,
        keepalive: &Keepalive,
    ) -> io::Result<(Listener, Option<RdmaBinding>)> {
        let Some(binding) = self.binding else {
            return Ok((Self { binding: None, ..self }.start(keepalive)?, None));
        };
        let binding = RdmaBinding { claim: binding.claim.listen()?, ..binding };
        match (Self { fd: self.fd, binding: None }).start(keepalive) {
            // Another process that shares the TCP port was first.
            Err(error) if binding.may_move(&error) => {
                Ok((binding.listen_at_candidate(keepalive)?, Some(binding)))
            }
            listener => Ok((listener?, Some(binding))),
        }
    }

    fn start(self, keepalive: &Keepalive) -> io::Result<Listener> {
        set_options(&self.fd, keepalive)?;
        // Connections inherit it: once they are closed, they do not keep the next process from listening here.
        sockopt::set_socket_reuseaddr(&self.fd, true)?;
        // Connections inherit this, too, until `configure_accepted`: if the connection of a stranger is closed, nothing is left of it in the kernel.
        sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?;
        rustix::net::listen(&self.fd, BACKLOG)?;
        Ok(Listener { fd: self.fd })
    }
}

impl RdmaBinding {
    pub(crate) fn port(&self) -> RdmaPort {
        self.port
    }

    /// Whether a TCP port is the one with this port's own number, which could be left to others.
    pub(crate) fn can_leave(&self, port: u16) -> bool {
        port == self.port.number && self.policy != PortPolicy::Tcp
    }

    /// Binds a TCP port for it.
    fn bind(self) -> io::Result<Bound> {
        if self.policy == PortPolicy::Apart {
            self.check_right()?;
            return self.aside();
        }
        match Bound::new(self.at, self.options) {
            Ok(bound) => Ok(Bound { binding: Some(self), ..bound }),
            Err(error) if self.may_move(&error) => self.aside(),
            Err(error) => Err(error),
        }
    }

    fn aside(self) -> io::Result<Bound> {
        Ok(Bound { fd: self.candidate()?, binding: Some(self) })
    }

    /// Whether a candidate is to be tried because of an error at the TCP port of the same number.
    fn may_move(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrInUse && self.policy != PortPolicy::Tcp
    }

    /// A socket at the first free candidate.
    fn candidate(&self) -> io::Result<Fd> {
        let options = BindOptions { share: false, ..self.options };
        for candidate in self.port.candidates() {
            match Bound::new(with_port(self.at, candidate), options) {
                Ok(bound) => {
                    tracing::info!(port = candidate, "{} uses another TCP port", self.port);
                    return Ok(bound.fd);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        let candidates: Vec<_> = self.port.candidates().map(|port| port.to_string()).collect();
        let taken = candidates.join(", ");
        tracing::warn!(
            "failed to listen at {}: its candidates, TCP ports {taken}, are all in use",
            self.port
        );
        Err(Errno::ADDRINUSE.into())
    }

    /// Listens at a candidate.
    pub(crate) fn listen_at_candidate(&self, keepalive: &Keepalive) -> io::Result<Listener> {
        Bound { fd: self.candidate()?, binding: None }.start(keepalive)
    }

    /// Checks whether the process may have a port of this number. The rule for UDP is the same, and uses no TCP port.
    fn check_right(&self) -> io::Result<()> {
        match rustix::net::bind(&socket(self.at, SocketType::DGRAM)?, &self.at) {
            Ok(()) | Err(Errno::ADDRINUSE) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn with_port(mut at: SocketAddr, port: u16) -> SocketAddr {
    at.set_port(port);
    at
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub link: TcpLink,
    /// The remote address.
    pub peer: SocketAddr,
    /// The remote address is one of this host.
    pub same_host: bool,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
}

impl Listener {
    /// Listens at `at`; port 0 lets the kernel choose. Connections inherit the options. An IPv6 address does not take the IPv4
    /// port, or IPv4 peers would have two kinds of address.
    pub fn new(at: SocketAddr, keepalive: &Keepalive) -> io::Result<Self> {
        Bound::take(at, true, BindOptions::default())?.listen(keepalive)
    }

    /// Listens at an address with a reserved port.
    pub fn at_reserved_port(
        reservation: &Reservation,
        at: SocketAddr,
        keepalive: &Keepalive,
    ) -> io::Result<Self> {
        // The kernel checks for conflicts again when a socket begins to listen.
        reservation.share(|| {
            let fd = socket(at, SocketType::STREAM)?;
            sockopt::set_socket_reuseport(&fd, true)?;
            Bound::bind(fd, at, true, BindOptions::default())?.listen(keepalive)
        })
    }

    /// Takes the next connection, if one waits. An error such as "too many open files" leaves it waiting. If it is closed before
    /// `configure_accepted`, its peer sees a reset.
    pub fn accept(&self) -> io::Result<Option<Accepted>> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match Fd::open_with(|| rustix::net::acceptfrom_with(&self.fd, flags)) {
                Ok((fd, Some(peer))) => {
                    let peer = SocketAddr::try_from(peer)?;
                    let same_host = is_same_host(peer).unwrap_or(false);
                    return Ok(Some(Accepted { link: TcpLink::new(fd), peer, same_host }));
                }
                // It was closed while it waited. Each round takes one off a bounded queue.
                Ok((_, None)) | Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stops listening, and frees the address at once, with or without SO_REUSEADDR.
    pub(crate) fn close_now(&self) -> io::Result<()> {
        self.stop();
        Ok(self.fd.close_now()?)
    }

    /// Stops listening at once, even if the socket is still in use. Other sockets may listen at the address.
    pub fn stop(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
    }

    /// Returns the address at which it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Maximum number of descriptors of the process (RLIMIT_NOFILE).
pub(crate) fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn socket(addr: SocketAddr, kind: SocketType) -> io::Result<Fd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Denied::check("socket", Fd::open(|| rustix::net::socket_with(family, kind, flags, None)))
}

fn set_options(fd: &Fd, keepalive: &Keepalive) -> io::Result<()> {
    // Whole FPDUs are sent; waiting for more would only delay them.
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, keepalive.idle)?;
    sockopt::set_tcp_keepintvl(fd, keepalive.interval)?;
    sockopt::set_tcp_keepcnt(fd, keepalive.probes)?;
    let user_timeout = u32::try_from(keepalive.user_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, user_timeout)?;
    Ok(())
}

/// Gives an accepted connection its options, once its peer has spoken MPA.
pub(crate) fn configure_accepted(link: &TcpLink, same_host: bool) {
    let _ = sockopt::set_socket_linger(link, None);
    if same_host {
        speed_up(link);
    }
}

/// Between two ends on one host nothing is lost and nothing queues, so pacing (bbr, where it is the default) only costs:
/// reno moves up to 1.8 times as much. To other hosts, and where reno is refused, the system's choice stands.
fn speed_up(fd: impl AsFd) {
    let _ = sockopt::set_tcp_congestion(fd, "reno");
}

fn speed_up_same_host(fd: &Fd, peer: SocketAddr) {
    if is_same_host(peer).unwrap_or(false) {
        speed_up(fd);
    }
}

/// Whether an address is loopback or one of this host, to which a socket can be bound. A link-local address is one of this host only at the
/// interface that it names.
pub(crate) fn is_same_host(mut at: SocketAddr) -> io::Result<bool> {
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
