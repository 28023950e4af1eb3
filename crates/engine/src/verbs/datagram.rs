//! A connectionless queue pair (UD) and its UDP sockets. Like the sockets of connections, they are in a poll set of the
//! receive completion queue: a thread that polls the queue serves them, and a lane does while no thread polls.

use super::cq::CompletionQueue;
use crate::capture::Capture;
use crate::config::PortRange;
use crate::gid::GidEntry;
use crate::logical::LogicalDevice;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::{Member, Movable, Placement, ServedBy};
use crate::reactor::poll_set::PollSet;
use crate::sys::random::random;
use crate::sys::udp::{LocalAddress, UdpPort, UdpSocket};
use ironwarp_rnic::datagram::{
    Arrived, DatagramAttributes, DatagramLink, DatagramQp, SendTo, Sent, lose_datagrams, qpn_of_port,
};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::qp::{Completes, Qp, Ready, State};
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::quota::{Place, Resource};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Secret;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The attributes of a connectionless queue pair.
pub type DatagramQueuePairAttributes = DatagramAttributes<Arc<CompletionQueue>>;

/// A connectionless queue pair. Dropping it closes its sockets at once, drops outstanding requests and removes unpolled
/// completions, as the verbs require.
#[derive(Debug)]
pub struct DatagramQueuePair {
    sockets: Arc<Sockets>,
    /// Its place in the quota of its function.
    _place: Place,
}

/// The sockets of a queue pair, which are in one poll set, and move to another one together.
#[derive(Debug)]
struct Sockets {
    qp: Arc<DatagramQp>,
    link: Arc<UdpLink>,
    /// The tokens of the sockets in their poll set, in order.
    tokens: Vec<u64>,
    send_cq: Arc<CompletionQueue>,
    state: Mutex<SocketsState>,
}

/// The part of the sockets' state that changes together, under one lock.
#[derive(Debug)]
struct SocketsState {
    set: Arc<PollSet>,
    /// Whether the queue pair was dropped. Then no socket is in the set.
    closed: bool,
}

/// The sockets, as the link that the device sends and receives on.
#[derive(Debug)]
struct UdpLink {
    udp: UdpPort,
    device: Arc<LogicalDevice>,
    /// The lane of the poll set.
    lane: Mutex<Arc<LaneHandle>>,
    /// The completion queue of receives, whose placement applies to each datagram.
    receive_cq: Arc<CompletionQueue>,
    /// Records the datagrams; `None` if packets are not captured.
    capture: Option<Arc<Capture>>,
    /// The start of the clock.
    start: Instant,
    /// Set right after creation. Weak, because the device's queue pair holds the link.
    qp: OnceLock<Weak<DatagramQp>>,
}

/// One of the sockets, as a member of its poll set.
#[derive(Debug)]
struct SocketMember {
    /// All sockets of the queue pair. Dropping the queue pair takes them out of the set, which ends the cycle.
    sockets: Arc<Sockets>,
    /// Index of the socket in the link's `udp`.
    index: usize,
}

/// Binds UDP sockets for a connectionless queue pair, all with the same port: at these addresses of the device, or at
/// every GID that the device has now if `addresses` is `None`.
pub(crate) fn bind(
    device: &LogicalDevice,
    addresses: Option<&[IpAddr]>,
    ports: PortRange,
) -> io::Result<UdpPort> {
    let known: Vec<GidEntry> = device.entries()?.into_iter().map(|(_, entry)| entry).collect();
    addresses.into_iter().flatten().try_for_each(|ip| device.check_owns(*ip))?;
    let address = |gid: Gid| local_address(gid, &known);
    match addresses {
        Some(ips) => {
            let given: Vec<_> = ips.iter().filter_map(|ip| address(Gid::from(*ip))).collect();
            UdpPort::bind(&given, ports)
        }
        None => {
            let all: Vec<_> = known.iter().filter_map(|entry| address(entry.gid)).collect();
            UdpPort::bind_available(&all, ports)
        }
    }
}

/// Returns the IP address of a GID, with its interface if the address is link-local; `None` if the GID is not an IP
/// address.
fn local_address(gid: Gid, known: &[GidEntry]) -> Option<LocalAddress> {
    let interface = || known.iter().find(|entry| entry.gid == gid).map_or(0, |entry| entry.interface_index);
    Some(LocalAddress { ip: gid.ip()?, scope: if gid.is_link_local() { interface() } else { 0 } })
}

/// Returns the remote and local address by which steering selects the lane that serves the sockets. The remote one is
/// unspecified: there is no single peer. The events of received datagrams belong to the lanes that their own addresses
/// select ([`DatagramLink::lane`]).
fn steering_addresses(udp: &UdpPort) -> (SocketAddr, SocketAddr) {
    let ip = udp.sockets().first().and_then(|socket| socket.gid().ip());
    let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    ((unspecified, 0).into(), (ip.unwrap_or(unspecified), udp.port()).into())
}

impl DatagramQueuePair {
    /// Creates a queue pair for these sockets, whose port is part of the queue pair number, and adds them to a poll
    /// set.
    pub(crate) fn new(
        device: &Arc<Device>,
        capture: Option<Arc<Capture>>,
        attributes: &DatagramQueuePairAttributes,
        udp: UdpPort,
    ) -> io::Result<Arc<Self>> {
        let place = device.account().take(Resource::QueuePairs)?;
        let (send_cq, receive_cq) = (Arc::clone(&attributes.send_cq), Arc::clone(&attributes.receive_cq));
        let number = qpn_of_port(udp.port());
        let (peer, local) = steering_addresses(&udp);
        let set = receive_cq.find_or_create_set(&send_cq, peer, local)?;
        let logical = Arc::clone(receive_cq.steering().logical());
        let tokens = udp.sockets().iter().map(|_| set.lane().new_token()).collect();
        let lane = Mutex::new(Arc::clone(set.lane()));
        let link = Arc::new(UdpLink {
            udp,
            device: logical,
            lane,
            receive_cq,
            capture,
            start: Instant::now(),
            qp: OnceLock::new(),
        });
        let mut device_link: Arc<dyn DatagramLink> = Arc::<UdpLink>::clone(&link);
        if let Some(adversary) = device.adversary() {
            device_link = lose_datagrams(adversary, device_link);
        }
        let mut attributes = attributes.clone().map_cqs(|cq| Arc::clone(cq.cq()));
        if attributes.completes == Completes::WhenAcknowledged {
            attributes.secret = Secret(random()?);
        }
        let qp = DatagramQp::new(number, device, attributes, device_link);
        let _ = link.qp.set(Arc::downgrade(&qp)); // it is not set yet
        let state = Mutex::new(SocketsState { set, closed: false });
        let sockets = Arc::new(Sockets { qp, link, tokens, send_cq, state });
        // If this fails, dropping the queue pair takes those that were added out of the set.
        let pair = Arc::new(Self { sockets, _place: place });
        pair.sockets.join_set()?;
        Ok(pair)
    }

    /// Returns the queue pair number.
    pub fn id(&self) -> u32 {
        self.sockets.qp.id()
    }

    /// Returns the device's queue pair.
    pub fn qp(&self) -> &Arc<DatagramQp> {
        &self.sockets.qp
    }

    /// Returns the number of the lane that serves the sockets while no thread of the program does.
    pub fn lane(&self) -> usize {
        Movable::lane(&*self.sockets)
    }

    /// Returns the GIDs at which the queue pair can be reached.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.sockets.link.udp.sockets().iter().map(UdpSocket::gid)
    }

    /// Returns the addresses and the UDP port at which the queue pair can be reached (requirement N10).
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.link.udp.local_addresses()
    }

    /// Returns the local GID that the host's routes choose for datagrams to a remote GID.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        self.sockets.link.udp.source_for(to)
    }
}

impl Drop for DatagramQueuePair {
    fn drop(&mut self) {
        self.sockets.leave_set();
        let _ = self.sockets.qp.modify(State::Reset); // allowed in every state
    }
}

impl Sockets {
    /// Returns a socket as a member of the poll set.
    fn member(self: &Arc<Self>, index: usize) -> Arc<dyn Member> {
        Arc::new(SocketMember { sockets: Arc::clone(self), index })
    }

    /// Adds the sockets to their poll set, and serves them once.
    fn join_set(self: &Arc<Self>) -> io::Result<()> {
        let set = Arc::clone(&lock(&self.state).set);
        let only = set.only_member();
        self.insert(&set)?;
        set.queue_ack_of_former_only_member(only);
        for index in 0..self.tokens.len() {
            // After `insert`: a thread that takes the port down later finds the socket in the set.
            self.link.device.while_ports_are_stable(|| self.link.apply_port_state(index));
        }
        self.serve_all();
        // Class or processors of the handler may have changed before the sockets were in the set.
        let movable: Arc<dyn Movable> = Arc::<Self>::clone(self);
        self.link.receive_cq.steering().steer(&movable)
    }

    /// Adds all sockets to a poll set.
    fn insert(self: &Arc<Self>, set: &PollSet) -> io::Result<()> {
        (0..).zip(&self.tokens).try_for_each(|(index, token)| set.insert(*token, &self.member(index)))
    }

    /// Removes all sockets from a poll set.
    fn remove(&self, set: &PollSet) {
        for token in &self.tokens {
            set.remove(*token);
        }
    }

    /// Takes the sockets out of their poll set for good.
    fn leave_set(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.remove(&state.set);
    }

    /// Serves all sockets, because the first event of one may have come before it was in its set.
    fn serve_all(&self) {
        for index in 0..self.tokens.len() {
            self.link.udp.set_readable(index);
        }
        self.qp.drive(Ready { readable: true, writable: true, ended: false });
    }
}

impl Movable for Sockets {
    fn qpn(&self) -> u32 {
        self.qp.id()
    }

    fn lane(&self) -> usize {
        lock(&self.link.lane).number()
    }

    fn receives_on(&self, cq: &Arc<Cq>) -> bool {
        Arc::ptr_eq(self.link.receive_cq.cq(), cq)
    }

    fn placement(&self) -> Placement {
        self.link.receive_cq.placement()
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some(steering_addresses(&self.link.udp))
    }

    /// Returns zero: rebalancing does not move connectionless queue pairs.
    fn take_serve_count(&self) -> u64 {
        0
    }

    fn move_to(self: Arc<Self>, lane: usize) -> io::Result<bool> {
        let to = self.link.receive_cq.steering().lane(lane)?;
        let to = self.link.receive_cq.find_or_create_set_on(to, &self.send_cq)?;
        let only = to.only_member();
        {
            let mut state = lock(&self.state);
            if state.closed || Arc::ptr_eq(&state.set, &to) {
                return Ok(!state.closed);
            }
            self.remove(&state.set);
            if let Err(error) = self.insert(&to) {
                self.remove(&to);
                // Back to the old set. If that fails too, no lane can wait for the sockets.
                if self.insert(&state.set).is_err() {
                    let this = Arc::clone(&self);
                    to.lane().call(move || Movable::abort(&*this, QpError::Stopped));
                }
                return Err(error);
            }
            state.set = Arc::clone(&to);
            *lock(&self.link.lane) = Arc::clone(to.lane());
        }
        // As for a connection that is moved: the former only member acknowledges on the lane.
        if let Some(only) = only {
            to.lane().call(move || only.qp.acknowledge());
        }
        let this = Arc::downgrade(&self);
        to.lane().call(move || this.upgrade().iter().for_each(|sockets| sockets.serve_all()));
        Ok(true)
    }

    fn abort(&self, _error: QpError) {
        let _ = self.qp.modify(State::Error); // refused after a reset, when there is nothing to flush
    }
}

impl UdpLink {
    /// Blocks or unblocks a socket, if its port was taken down or up.
    fn apply_port_state(&self, socket: usize) {
        let socket = &self.udp.sockets()[socket];
        socket.set_blocked(socket.gid().ip().is_some_and(|ip| self.device.is_down_at(ip)));
    }
}

impl DatagramLink for UdpLink {
    fn has_path(&self, from: Gid, to: Gid) -> bool {
        self.udp.at_gid(from).is_some_and(|socket| socket.can_reach(to))
    }

    fn send(&self, from: Gid, to: SendTo, bytes: &[u8]) -> Sent {
        let sent = self.udp.at_gid(from).map_or(Sent::Lost, |socket| socket.send(to, bytes));
        if let (Some(capture), Sent::Taken) = (&self.capture, &sent) {
            capture.record_datagram((from, self.udp.port()), (to.gid, to.port), bytes);
        }
        sent
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let arrived = self.udp.recv(into)?;
        if let Some(capture) = &self.capture {
            capture.record_datagram(
                (arrived.from, arrived.port),
                (arrived.to, self.udp.port()),
                &into[..arrived.len],
            );
        }
        Some(arrived)
    }

    fn lane(&self, arrived: Option<&Arrived>) -> u16 {
        let by_hash = || {
            let (arrived, cq) = (arrived?, &self.receive_cq);
            let address = |gid: Gid, port| Some(SocketAddr::new(gid.ip()?, port));
            let (peer, local) = (address(arrived.from, arrived.port)?, address(arrived.to, self.udp.port())?);
            Some(cq.steering().lane_for(&cq.placement(), peer, local).ok()?.handle().event_lane())
        };
        by_hash().unwrap_or_else(|| lock(&self.lane).event_lane())
    }

    fn schedule(&self) {
        if let Some(qp) = self.qp.get().and_then(Weak::upgrade) {
            lock(&self.lane).call(move || qp.resume());
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn schedule_after(&self, after: Duration) {
        let Some(qp) = self.qp.get().cloned() else { return };
        lock(&self.lane).call_at(Instant::now() + after, move || {
            if let Some(qp) = qp.upgrade() {
                qp.resume();
            }
        });
    }
}

impl AsFd for SocketMember {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.link.udp.sockets()[self.index].as_fd()
    }
}

impl Member for SocketMember {
    fn serve(&self, ready: Ready, _by: ServedBy) -> Option<&Arc<Qp>> {
        if ready.readable {
            self.sockets.link.udp.set_readable(self.index);
        }
        self.sockets.qp.drive(ready);
        None
    }

    fn apply_port_state(self: Arc<Self>) {
        self.sockets.link.apply_port_state(self.index);
    }

    /// Returns false: there is no peer to wait for.
    fn disconnect(self: Arc<Self>) -> bool {
        false
    }

    fn abort(&self) {
        Movable::abort(&*self.sockets, QpError::Stopped);
    }

    fn movable(self: Arc<Self>) -> Option<Arc<dyn Movable>> {
        Some(Arc::<Sockets>::clone(&self.sockets))
    }
}
