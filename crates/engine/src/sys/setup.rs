//! How a connection comes to be: connect, or listen and accept, and the options that every connection gets. What comes
//! out is a [`TcpLink`], on which the two ends then agree (MPA startup) before it carries a stream.

use super::claim::Claim;
use super::denied::Denied;
use super::fork::Fd;
use super::reserve::Reservation;
use super::socket::{TcpLink, choose_port_late};
use ironwarp_rnic::config::PortPolicy;
use ironwarp_wire::private::{PortSpace, RdmaPort};
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
/// How many TCP ports are tried for an RDMA port of any number. One fails only if its number is taken as an RDMA port.
const TRIES: usize = 64;

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
    place: Option<Place>,
}

/// An RDMA port that is ours.
#[derive(Debug)]
pub(crate) struct Place {
    /// The address with the RDMA port, which need not be the TCP port of the socket.
    at: SocketAddr,
    port: RdmaPort,
    options: BindOptions,
    policy: PortPolicy,
    claim: Claim,
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
        Ok(Self { fd, place: None })
    }

    /// Takes an RDMA port; 0 lets the kernel choose. It is at the TCP port of the same number, or at a candidate, as the policy has it.
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
            io::Result::Ok(Place { at, port, options, policy, claim })
        };
        if at.port() != 0 {
            return claim(at)?.bind();
        }
        let mut taken = Vec::new(); // held until one is found, so that the kernel chooses another each time
        loop {
            let bound = Self::take(at, false, options)?;
            match claim(bound.local_addr()?) {
                Ok(place) if policy == PortPolicy::Apart => return place.aside(),
                Ok(place) => return Ok(Self { place: Some(place), ..bound }),
                Err(error) if taken.len() == TRIES => return Err(error),
                Err(_) => taken.push(bound),
            }
        }
    }

    /// The socket's address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// What was taken: the address with the RDMA port, if it is one.
    pub fn asked_addr(&self) -> io::Result<SocketAddr> {
        self.place.as_ref().map_or_else(|| self.local_addr(), |place| Ok(place.at))
    }

    /// Leaves the TCP port of an RDMA port's own number to others, if it has that: then it is at a candidate. Returns whether it had.
    pub fn move_aside(&mut self) -> io::Result<bool> {
        let local = self.local_addr()?;
        let Some(place) = self.place.as_ref().filter(|place| place.is_at(local.port())) else {
            return Ok(false);
        };
        self.fd = place.candidate()?;
        Ok(true)
    }

    /// Peers may connect from now on.
    pub fn listen(self, keepalive: &Keepalive) -> io::Result<Listener> {
        self.listen_in_place(keepalive).map(|(listener, _)| listener)
    }

    /// The same. The RDMA port, if it is one, is held by what is returned with the listener.
    pub(crate) fn listen_in_place(self, keepalive: &Keepalive) -> io::Result<(Listener, Option<Place>)> {
        let Some(place) = self.place else {
            return Ok((Self { place: None, ..self }.start(keepalive)?, None));
        };
        let place = Place { claim: place.claim.listen()?, ..place };
        match (Self { fd: self.fd, place: None }).start(keepalive) {
            // Somebody who shares the TCP port was first.
            Err(error) if place.may_move(&error) => Ok((place.listen_aside(keepalive)?, Some(place))),
            listener => Ok((listener?, Some(place))),
        }
    }

    fn start(self, keepalive: &Keepalive) -> io::Result<Listener> {
        set_options(&self.fd, keepalive)?;
        // Connections inherit it: when they are long closed, whoever listens here next is not kept from it.
        sockopt::set_socket_reuseaddr(&self.fd, true)?;
        // This, too, until `settle`: if a stranger's connection is closed, nothing is left of it in the kernel.
        sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?;
        rustix::net::listen(&self.fd, BACKLOG)?;
        Ok(Listener { fd: self.fd })
    }
}

impl Place {
    pub(crate) fn port(&self) -> RdmaPort {
        self.port
    }

    /// Whether a TCP port is the one with this port's own number, which could be left to others.
    pub(crate) fn is_at(&self, port: u16) -> bool {
        port == self.port.number && self.policy != PortPolicy::Tcp
    }

    /// Takes a TCP port for it.
    fn bind(self) -> io::Result<Bound> {
        if self.policy == PortPolicy::Apart {
            self.check_right()?;
            return self.aside();
        }
        match Bound::new(self.at, self.options) {
            Ok(bound) => Ok(Bound { place: Some(self), ..bound }),
            Err(error) if self.may_move(&error) => self.aside(),
            Err(error) => Err(error),
        }
    }

    fn aside(self) -> io::Result<Bound> {
        Ok(Bound { fd: self.candidate()?, place: Some(self) })
    }

    /// Whether a candidate is to be tried because of an error at the TCP port of the same number.
    fn may_move(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrInUse && self.policy != PortPolicy::Tcp
    }

    /// A socket at the first candidate that is free.
    fn candidate(&self) -> io::Result<Fd> {
        let options = BindOptions { share: false, ..self.options };
        for candidate in self.port.candidates() {
            match Bound::new(with_port(self.at, candidate), options) {
                Ok(bound) => {
                    tracing::info!(port = candidate, "{} is at another TCP port", self.port);
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
    pub(crate) fn listen_aside(&self, keepalive: &Keepalive) -> io::Result<Listener> {
        Bound { fd: self.candidate()?, place: None }.start(keepalive)
    }

    /// Whether the process may have a port of this number. UDP's rule is the same, and touches no TCP port.
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

    /// The same, and the address may be anybody's, with or without SO_REUSEADDR.
    pub(crate) fn close_now(&self) -> io::Result<()> {
        self.stop();
        Ok(self.fd.close_now()?)
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
    Denied::name("socket", Fd::open(|| rustix::net::socket_with(family, kind, flags, None)))
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
