//! Establishes TCP connections: connect, bind, listen, accept, and the socket options of every connection. The result
//! is a [`TcpLink`], over which the two ends exchange MPA startup frames before it carries a stream.

use super::claim::Claim;
use super::denied::Denied;
use super::fork::Fd;
use super::reserve::Reservation;
use super::socket::{TcpLink, defer_port_choice, set_option};
use super::traffic_class::set_traffic_class;
use crate::config::PortPolicy;
use ironwarp_wire::private::{PortSpace, RdmaPort};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Returns whether an address belongs to this host, in this network namespace: only then can a socket be bound to it.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Maximum number of connections that wait to be accepted; the system may set a lower limit (net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// Maximum number of ports that the kernel may choose for an ephemeral RDMA port before binding fails. A chosen port is
/// given up only if its number is in use as an RDMA port.
const MAX_EPHEMERAL_TRIES: usize = 64;

/// When the kernel gives up on a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a connection is silent before the kernel sends a keepalive probe. Whole seconds, at least one.
    pub idle: Duration,
    /// Interval between keepalive probes. Whole seconds, at least one.
    pub interval: Duration,
    /// Number of unanswered keepalive probes after which the connection is lost.
    pub probes: u32,
    /// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT). This timeout also ends the keepalive probes.
    pub user_timeout: Duration,
}

/// Starts connecting to `to`, from the local address `from` if it is given. The kernel chooses the local port if `from`
/// has port 0. All packets have this traffic class.
///
/// Once the socket is writable, [`TcpLink::is_connected`] returns the result.
pub fn connect(
    to: SocketAddr,
    from: Option<SocketAddr>,
    traffic_class: u8,
    keepalive: &Keepalive,
) -> io::Result<TcpLink> {
    let fd = socket(to, SocketType::STREAM)?;
    set_options(&fd, keepalive)?;
    if traffic_class != 0 {
        set_traffic_class(&fd, traffic_class)?;
    }
    avoid_pacing_on_same_host(&fd, to);
    if let Some(from) = from {
        if from.port() == 0 {
            defer_port_choice(&fd);
        } else {
            // Lets the bind succeed while closed connections (TIME_WAIT) still use the port.
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        rustix::net::bind(&fd, &from)?;
    }
    start_connecting(fd, &to)
}

/// Starts connecting a socket to itself, at the IP address of `at` and a port that the kernel chooses. The socket then
/// receives the bytes that it sends (RFC 9293 §3.5: a simultaneous open in which both ends are the same socket).
pub fn connect_to_itself(at: SocketAddr, keepalive: &Keepalive) -> io::Result<TcpLink> {
    let fd = socket(at, SocketType::STREAM)?;
    set_options(&fd, keepalive)?;
    avoid_pacing_on_same_host(&fd, at);
    let mut at = at;
    at.set_port(0);
    rustix::net::bind(&fd, &at)?;
    let itself = rustix::net::getsockname(&fd)?;
    start_connecting(fd, &itself)
}

/// Starts connecting a non-blocking socket to `to`.
fn start_connecting(fd: Fd, to: &impl SocketAddrArg) -> io::Result<TcpLink> {
    match rustix::net::connect(&fd, to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpLink::new(fd)),
        Err(error) => Err(error.into()),
    }
}

/// A socket that is bound to an address and does not listen yet.
#[derive(Debug)]
pub struct Bound {
    fd: Fd,
    /// The RDMA port that the socket serves; `None` if it was bound with [`Bound::new`].
    binding: Option<RdmaBinding>,
}

/// An RDMA port that this process uses. It stays the same when the listener moves to another TCP port.
#[derive(Debug)]
pub(crate) struct RdmaBinding {
    /// The local address, with the number of the RDMA port, which need not be the TCP port of the socket.
    at: SocketAddr,
    port: RdmaPort,
    options: BindOptions,
    policy: PortPolicy,
    /// Shows other processes that the RDMA port is in use.
    claim: Claim,
}

/// How an address is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Other sockets that also set this may be bound to the same address (SO_REUSEADDR).
    pub share: bool,
    /// A socket at the unspecified IPv6 address serves IPv4, too. IPv4 peers then have IPv4-mapped addresses.
    pub both_versions: bool,
}

impl Bound {
    /// Binds a TCP socket to `at`, without an RDMA port. Port 0 lets the kernel choose.
    ///
    /// Unless the port is to be shared, the first attempt is made without SO_REUSEADDR: if it succeeds, no other socket
    /// can be bound to the port before this one listens.
    pub fn new(at: SocketAddr, options: BindOptions) -> io::Result<Self> {
        // With SO_REUSEADDR, the kernel might choose a port that others share.
        let share = options.share && at.port() != 0;
        match Self::open(at, share, options) {
            // If only closed connections (TIME_WAIT) use the port, binding succeeds with SO_REUSEADDR.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !share && at.port() != 0 => {
                Self::open(at, true, options)
            }
            opened => opened,
        }
    }

    /// Opens a TCP socket and binds it to `at`. `reuse_addr` overrides `options.share`.
    fn open(at: SocketAddr, reuse_addr: bool, options: BindOptions) -> io::Result<Self> {
        Self::bind(socket(at, SocketType::STREAM)?, at, reuse_addr, options)
    }

    /// Binds `fd` to `at`. `reuse_addr` overrides `options.share`.
    fn bind(fd: Fd, at: SocketAddr, reuse_addr: bool, options: BindOptions) -> io::Result<Self> {
        sockopt::set_socket_reuseaddr(&fd, reuse_addr)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, !options.both_versions)?;
        }
        rustix::net::bind(&fd, &at)?;
        Ok(Self { fd, binding: None })
    }

    /// Claims the RDMA port with the number of `at`, and binds a TCP port for it: the one of the same number or a
    /// candidate, depending on the policy. If `at` has port 0, the kernel chooses the number.
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
        // Ports that were given up stay bound until the loop ends, so that the kernel chooses another one each time.
        let mut rejected = Vec::new();
        loop {
            let bound = Self::open(at, false, options)?;
            match claim(bound.local_addr()?) {
                Ok(binding) if policy == PortPolicy::Apart => return binding.bind_candidate(),
                Ok(binding) => return Ok(Self { binding: Some(binding), ..bound }),
                Err(error) if rejected.len() == MAX_EPHEMERAL_TRIES => return Err(error),
                Err(_) => rejected.push(bound),
            }
        }
    }

    /// Returns the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// Returns the local address with the RDMA port, or with the TCP port if the socket serves no RDMA port.
    pub fn requested_addr(&self) -> io::Result<SocketAddr> {
        self.binding.as_ref().map_or_else(|| self.local_addr(), |binding| Ok(binding.at))
    }

    /// Frees the TCP port with the RDMA port's own number, and binds a candidate instead. Returns false, and does
    /// nothing, if the socket is at a candidate already, serves no RDMA port, or the policy has no candidates.
    pub fn move_aside(&mut self) -> io::Result<bool> {
        let local = self.local_addr()?;
        let Some(binding) = self.binding.as_ref().filter(|binding| binding.can_leave(local.port())) else {
            return Ok(false);
        };
        self.fd = binding.open_candidate()?;
        Ok(true)
    }

    /// Starts listening. If the socket serves an RDMA port, its number is not claimed any more afterwards:
    /// `listen_with_rdma_binding` keeps the claim.
    pub fn listen(self, keepalive: &Keepalive) -> io::Result<Listener> {
        self.listen_with_rdma_binding(keepalive).map(|(listener, _)| listener)
    }

    /// Starts listening. Also returns the RDMA port that the socket serves, if any. Dropping that value frees the RDMA
    /// port.
    pub(crate) fn listen_with_rdma_binding(
        self,
        keepalive: &Keepalive,
    ) -> io::Result<(Listener, Option<RdmaBinding>)> {
        let Some(binding) = self.binding else {
            return Ok((Self { binding: None, ..self }.start(keepalive)?, None));
        };
        let binding = RdmaBinding { claim: binding.claim.listen()?, ..binding };
        match (Self { fd: self.fd, binding: None }).start(keepalive) {
            // Another process that shares the TCP port has begun to listen there.
            Err(error) if binding.may_move(&error) => {
                Ok((binding.listen_at_candidate(keepalive)?, Some(binding)))
            }
            listener => Ok((listener?, Some(binding))),
        }
    }

    /// Sets the options that accepted connections inherit, and starts listening.
    fn start(self, keepalive: &Keepalive) -> io::Result<Listener> {
        set_options(&self.fd, keepalive)?;
        // With SO_REUSEADDR, closed connections (TIME_WAIT) do not keep the next process from listening at the port.
        sockopt::set_socket_reuseaddr(&self.fd, true)?;
        // With a linger time of zero, closing a stranger's connection leaves no TIME_WAIT state in the kernel.
        // `configure_accepted` restores the default once the peer has sent an MPA Request.
        sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?;
        rustix::net::listen(&self.fd, BACKLOG)?;
        Ok(Listener { fd: self.fd })
    }
}

impl RdmaBinding {
    /// Returns the RDMA port.
    pub(crate) fn port(&self) -> RdmaPort {
        self.port
    }

    /// Returns whether a listener at TCP port `tcp_port` can move to a candidate: the TCP port has the RDMA port's own
    /// number, and the policy has candidates.
    pub(crate) fn can_leave(&self, tcp_port: u16) -> bool {
        tcp_port == self.port.number && self.policy != PortPolicy::Tcp
    }

    /// Binds a TCP port for the RDMA port: the one of the same number, or the first free candidate.
    fn bind(self) -> io::Result<Bound> {
        if self.policy == PortPolicy::Apart {
            self.check_permission()?;
            return self.bind_candidate();
        }
        match Bound::new(self.at, self.options) {
            Ok(bound) => Ok(Bound { binding: Some(self), ..bound }),
            Err(error) if self.may_move(&error) => self.bind_candidate(),
            Err(error) => Err(error),
        }
    }

    /// Binds the first free candidate.
    fn bind_candidate(self) -> io::Result<Bound> {
        Ok(Bound { fd: self.open_candidate()?, binding: Some(self) })
    }

    /// Returns whether a candidate should be tried after this error at the TCP port of the same number.
    fn may_move(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrInUse && self.policy != PortPolicy::Tcp
    }

    /// Opens a socket that is bound to the first free candidate. Fails with EADDRINUSE if all candidates are in use.
    fn open_candidate(&self) -> io::Result<Fd> {
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

    /// Listens at the first free candidate.
    pub(crate) fn listen_at_candidate(&self, keepalive: &Keepalive) -> io::Result<Listener> {
        Bound { fd: self.open_candidate()?, binding: None }.start(keepalive)
    }

    /// Fails if the process may not bind a port of this number (below 1024), or the address is not one of this host.
    /// Binds a UDP socket for that: the kernel has the same rules for UDP and TCP, and the TCP port stays untouched.
    fn check_permission(&self) -> io::Result<()> {
        match rustix::net::bind(&socket(self.at, SocketType::DGRAM)?, &self.at) {
            Ok(()) | Err(Errno::ADDRINUSE) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the address with its port replaced.
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
    /// Whether the remote address is one of this host.
    pub same_host: bool,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
}

impl Listener {
    /// Listens at `at`; port 0 lets the kernel choose. A listener at `[::]` does not serve IPv4, so that an IPv4 peer
    /// always has an IPv4 address, never an IPv4-mapped one.
    pub fn new(at: SocketAddr, keepalive: &Keepalive) -> io::Result<Self> {
        Bound::open(at, true, BindOptions::default())?.listen(keepalive)
    }

    /// Listens at `at`, whose port is that of `reservation`.
    pub fn at_reserved_port(
        reservation: &Reservation,
        at: SocketAddr,
        keepalive: &Keepalive,
    ) -> io::Result<Self> {
        // `listen` is called inside the closure, because the kernel checks for conflicts again when a socket begins to
        // listen.
        reservation.share(|| {
            let fd = socket(at, SocketType::STREAM)?;
            sockopt::set_socket_reuseport(&fd, true)?;
            Bound::bind(fd, at, true, BindOptions::default())?.listen(keepalive)
        })
    }

    /// Listens at `at`, whose address the host may not have yet (requirement X2).
    pub(crate) fn before_address(at: SocketAddr, keepalive: &Keepalive) -> io::Result<OwnedFd> {
        let fd = socket(at, SocketType::STREAM)?;
        set_option(&fd, libc::IPPROTO_IP, libc::IP_FREEBIND, 1)?; // of IPv6 sockets, too
        let listener = Bound::bind(fd, at, true, BindOptions::default())?.listen(keepalive)?;
        listener.as_fd().try_clone_to_owned()
    }

    /// Wraps a listening socket that was handed over by another process (requirement X2). It keeps its options.
    pub(crate) fn handed_over(socket: OwnedFd) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&socket)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a listening socket",
            ));
        }
        let Ok(fd) = Fd::open(|| Ok::<_, std::convert::Infallible>(socket));
        Ok(Self { fd })
    }

    /// Accepts the next pending connection; `None` if there is none. After an error such as "too many open files" the
    /// connection stays pending. Closing an accepted connection before `configure_accepted` sends a reset.
    pub fn accept(&self) -> io::Result<Option<Accepted>> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match Fd::open_with(|| rustix::net::acceptfrom_with(&self.fd, flags)) {
                Ok((fd, Some(peer))) => {
                    let peer = SocketAddr::try_from(peer)?;
                    let same_host = is_same_host(peer).unwrap_or(false);
                    return Ok(Some(Accepted { link: TcpLink::new(fd), peer, same_host }));
                }
                // The peer has closed the pending connection. The loop ends: each round removes one from a queue of
                // bounded length.
                Ok((_, None)) | Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stops listening and closes the socket at once, although other threads may still hold a reference to it. Any
    /// other socket can then be bound to the address.
    pub(crate) fn close_now(&self) -> io::Result<()> {
        self.stop();
        Ok(self.fd.close_now()?)
    }

    /// Closes this copy of the socket at once. Another process goes on listening.
    pub(crate) fn surrender(&self) -> io::Result<()> {
        Ok(self.fd.close_now()?)
    }

    /// Stops listening at once, although the socket stays open. Only sockets with SO_REUSEADDR can be bound to the
    /// address until the socket is closed.
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

/// Returns the maximum number of descriptors of the process (RLIMIT_NOFILE).
pub(crate) fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Opens a non-blocking socket for the IP version of `addr`, not bound to any address. The error contains a [`Denied`]
/// if a sandbox forbids sockets.
fn socket(addr: SocketAddr, kind: SocketType) -> io::Result<Fd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Denied::check("socket", Fd::open(|| rustix::net::socket_with(family, kind, flags, None)))
}

/// Takes over a connection that another part of the program has made. Fails if the descriptor is not a socket of a TCP
/// connection.
pub(crate) fn adopt(connection: OwnedFd, keepalive: &Keepalive) -> io::Result<TcpLink> {
    let link = TcpLink::handed_over(connection, false)?;
    set_options(&link, keepalive)?;
    if is_same_host(link.peer_addr()?).unwrap_or(false) {
        avoid_pacing(&link);
    }
    Ok(link)
}

/// Sets the options of every connection: keepalive, and no delay of small segments.
fn set_options(fd: impl AsFd + Copy, keepalive: &Keepalive) -> io::Result<()> {
    // Each send has whole FPDUs. Nagle's algorithm would only delay them.
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, keepalive.idle)?;
    sockopt::set_tcp_keepintvl(fd, keepalive.interval)?;
    sockopt::set_tcp_keepcnt(fd, keepalive.probes)?;
    let user_timeout = u32::try_from(keepalive.user_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, user_timeout)?;
    Ok(())
}

/// Sets the remaining options of an accepted connection, once its peer has sent an MPA Request: closing the connection
/// no longer sends a reset, and a peer on the same host is served without pacing.
pub(crate) fn configure_accepted(link: &TcpLink, same_host: bool) {
    let _ = sockopt::set_socket_linger(link, None);
    if same_host {
        avoid_pacing(link);
    }
}

/// Selects reno as congestion control, for a connection between two ends on one host. Nothing is lost or queued there,
/// so the pacing of bbr, where that is the default, only costs: reno moves up to 1.8 times as many bytes. Where reno is
/// refused, the default stays.
fn avoid_pacing(fd: impl AsFd) {
    let _ = sockopt::set_tcp_congestion(fd, "reno");
}

/// Calls [`avoid_pacing`] if `peer` is an address of this host.
fn avoid_pacing_on_same_host(fd: &Fd, peer: SocketAddr) {
    if is_same_host(peer).unwrap_or(false) {
        avoid_pacing(fd);
    }
}

/// Returns whether an address is loopback or another address of this host, that is, whether a socket can be bound to
/// it. A link-local address must belong to the interface that its scope names.
///
/// Decides two things: whether pacing is avoided, and whether the owner of the peer's socket is checked (`trust.rs`,
/// `sock_diag.rs`). Fails if no socket can be opened or bound for another reason. Callers that avoid pacing then assume
/// another host; those that check owners assume this host, or fail.
pub(crate) fn is_same_host(mut at: SocketAddr) -> io::Result<bool> {
    at.set_ip(at.ip().to_canonical());
    at.set_port(0);
    if at.ip().is_loopback() {
        return Ok(true);
    }
    let socket = socket(at, SocketType::DGRAM)?;
    match rustix::net::bind(&socket, &at) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRNOTAVAIL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
