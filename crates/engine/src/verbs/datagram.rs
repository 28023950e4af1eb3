//! A connectionless queue pair (UD) and its UDP sockets. Like the sockets of connections, they are in a poll set of the
//! receive completion queue: a thread that polls the queue serves them, and a lane does while no thread polls.

use super::cq::CompletionQueue;
use crate::capture::Capture;
use crate::config::PortRange;
use crate::gid::GidEntry;
use crate::logical::LogicalDevice;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::{Member, ServedBy};
use crate::reactor::poll_set::PollSet;
use crate::sys::udp::{LocalAddress, UdpPort, UdpSocket};
use ironwarp_rnic::datagram::{Arrived, DatagramAttributes, DatagramLink, DatagramQp, Sent, qpn_of_port};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::qp::{Qp, Ready, State};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};

/// The attributes of a connectionless queue pair.
pub type DatagramQueuePairAttributes = DatagramAttributes<Arc<CompletionQueue>>;

/// A connectionless queue pair. Dropping it closes its sockets at once, drops outstanding requests and removes unpolled
/// completions, as the verbs require.
#[derive(Debug)]
pub struct DatagramQueuePair {
    qp: Arc<DatagramQp>,
    link: Arc<UdpLink>,
    set: Arc<PollSet>,
    /// The tokens of its sockets in the set.
    tokens: Vec<u64>,
    /// Kept alive, because lanes and polls serve the sockets through the poll sets of these.
    _cqs: [Arc<CompletionQueue>; 2],
}

/// The sockets, as the link that the device sends and receives on.
#[derive(Debug)]
struct UdpLink {
    udp: UdpPort,
    device: Arc<LogicalDevice>,
    /// The lane of the poll set.
    lane: Arc<LaneHandle>,
    /// Records the datagrams; `None` if packets are not captured.
    capture: Option<Arc<Capture>>,
    /// Set right after creation. Weak, because the device's queue pair holds the link.
    qp: OnceLock<Weak<DatagramQp>>,
}

/// One of the sockets, as a member of its poll set.
#[derive(Debug)]
struct SocketMember {
    link: Arc<UdpLink>,
    qp: Arc<DatagramQp>,
    /// Index of the socket in the link's `udp`.
    socket: usize,
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

/// Returns the remote and local address by which steering selects the lane. The remote one is unspecified: there is no
/// single peer.
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
        let (send_cq, receive_cq) = (&attributes.send_cq, &attributes.receive_cq);
        let number = qpn_of_port(udp.port());
        let (peer, local) = steering_addresses(&udp);
        let set = receive_cq.find_or_create_set(send_cq, peer, local)?;
        let logical = Arc::clone(receive_cq.steering().logical());
        let lane = Arc::clone(set.lane());
        let link = Arc::new(UdpLink { udp, device: logical, lane, capture, qp: OnceLock::new() });
        let device_link: Arc<dyn DatagramLink> = Arc::<UdpLink>::clone(&link);
        let attributes = attributes.clone().map_cqs(|cq| Arc::clone(cq.cq()));
        let qp = DatagramQp::new(number, device, attributes, device_link);
        let _ = link.qp.set(Arc::downgrade(&qp)); // it is not set yet
        let cqs = [Arc::clone(send_cq), Arc::clone(receive_cq)];
        let mut pair = Self { qp, link, set, tokens: Vec::new(), _cqs: cqs };
        for socket in 0..pair.link.udp.sockets().len() {
            pair.add_socket(socket)?;
        }
        Ok(Arc::new(pair))
    }

    /// Adds a socket to the poll set.
    fn add_socket(&mut self, socket: usize) -> io::Result<()> {
        let (link, qp) = (Arc::clone(&self.link), Arc::clone(&self.qp));
        let member: Arc<dyn Member> = Arc::new(SocketMember { link, qp, socket });
        let token = self.set.lane().new_token();
        // Before `insert`: if it fails, the caller drops `self`, which removes the token from the set.
        self.tokens.push(token);
        let only = self.set.only_member();
        self.set.insert(token, &member)?;
        self.set.queue_ack_of_former_only_member(only);
        // After `insert`: a thread that takes the port down later finds the socket in the set.
        self.link.device.while_ports_are_stable(|| self.link.apply_port_state(socket));
        // The first event of the socket may have come before it was in the set.
        member.serve(Ready { readable: true, writable: true, ended: false }, ServedBy::Program);
        Ok(())
    }

    /// Returns the queue pair number.
    pub fn id(&self) -> u32 {
        self.qp.id()
    }

    /// Returns the device's queue pair.
    pub fn qp(&self) -> &Arc<DatagramQp> {
        &self.qp
    }

    /// Returns the GIDs at which the queue pair can be reached.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.link.udp.sockets().iter().map(UdpSocket::gid)
    }

    /// Returns the addresses and the UDP port at which the queue pair can be reached (requirement N10).
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.link.udp.local_addresses()
    }

    /// Returns the local GID that the host's routes choose for datagrams to a remote GID.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        self.link.udp.source_for(to)
    }
}

impl Drop for DatagramQueuePair {
    fn drop(&mut self) {
        for token in &self.tokens {
            self.set.remove(*token);
        }
        let _ = self.qp.modify(State::Reset); // allowed in every state
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

    fn send(&self, from: Gid, to: (Gid, u16), bytes: &[u8]) -> Sent {
        let sent = self.udp.at_gid(from).map_or(Sent::Lost, |socket| socket.send(to, bytes));
        if let (Some(capture), Sent::Taken) = (&self.capture, &sent) {
            capture.record_datagram((from, self.udp.port()), to, bytes);
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

    fn schedule(&self) {
        if let Some(qp) = self.qp.get().and_then(Weak::upgrade) {
            self.lane.call(move || qp.resume());
        }
    }
}

impl AsFd for SocketMember {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.udp.sockets()[self.socket].as_fd()
    }
}

impl Member for SocketMember {
    fn serve(&self, ready: Ready, _by: ServedBy) -> Option<&Arc<Qp>> {
        if ready.readable {
            self.link.udp.set_readable(self.socket);
        }
        self.qp.drive(ready);
        None
    }

    fn apply_port_state(self: Arc<Self>) {
        self.link.apply_port_state(self.socket);
    }

    /// Returns false: there is no peer to wait for.
    fn disconnect(self: Arc<Self>) -> bool {
        false
    }

    fn abort(&self) {
        let _ = self.qp.modify(State::Error); // refused after a reset, when there is nothing to flush
    }
}
