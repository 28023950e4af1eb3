//! A connectionless queue pair and its sockets. They are in the poll set of the receive queue's completion queue, like those of
//! connections, so polling makes progress, and a lane does while no thread polls.

use super::cq::CompletionQueue;
use crate::capture::Capture;
use crate::config::PortRange;
use crate::gid::{GidEntry, GidTable};
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

/// A connectionless queue pair. Dropping it ends it at once: outstanding requests are dropped, and completions that were not polled are
/// taken back, as the verbs require.
#[derive(Debug)]
pub struct DatagramQueuePair {
    qp: Arc<DatagramQp>,
    mailbox: Arc<Mailbox>,
    set: Arc<PollSet>,
    /// The tokens of its sockets in the set.
    tokens: Vec<u64>,
    /// The sets behind these are served as long as they exist.
    _cqs: [Arc<CompletionQueue>; 2],
}

/// The sockets, as the device sees them.
#[derive(Debug)]
struct Mailbox {
    udp: UdpPort,
    lane: Arc<LaneHandle>,
    capture: Option<Arc<Capture>>,
    /// Weak, because the queue pair holds this.
    qp: OnceLock<Weak<DatagramQp>>,
}

/// One of the sockets, as its poll set sees it.
#[derive(Debug)]
struct Inbox {
    mailbox: Arc<Mailbox>,
    qp: Arc<DatagramQp>,
    socket: usize,
}

/// Binds sockets for a connectionless queue pair at these addresses of the host, or at every GID that it has now if none are given.
pub(crate) fn bind(addresses: Option<&[IpAddr]>, ports: PortRange) -> io::Result<UdpPort> {
    let known = GidTable::of_process().entries()?;
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

/// The address of a GID, with the interface if it needs one.
fn local_address(gid: Gid, known: &[GidEntry]) -> Option<LocalAddress> {
    let interface = || known.iter().find(|entry| entry.gid == gid).map_or(0, |entry| entry.interface_index);
    Some(LocalAddress { ip: gid.ip()?, scope: if gid.is_link_local() { interface() } else { 0 } })
}

/// The addresses by which a connectionless queue pair is steered: it has no peer, but a port of its own.
fn addresses(udp: &UdpPort) -> (SocketAddr, SocketAddr) {
    let ip = udp.sockets().first().and_then(|socket| socket.gid().ip());
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    ((nobody, 0).into(), (ip.unwrap_or(nobody), udp.port()).into())
}

impl DatagramQueuePair {
    /// Creates a queue pair at these sockets. Its number contains their port.
    pub(crate) fn new(
        device: &Arc<Device>,
        capture: Option<Arc<Capture>>,
        attributes: &DatagramQueuePairAttributes,
        udp: UdpPort,
    ) -> io::Result<Arc<Self>> {
        let (send_cq, receive_cq) = (&attributes.send_cq, &attributes.receive_cq);
        let number = qpn_of_port(udp.port());
        let (nobody, local) = addresses(&udp);
        let set = receive_cq.set_for(send_cq, nobody, local)?;
        let mailbox = Arc::new(Mailbox { udp, lane: Arc::clone(set.lane()), capture, qp: OnceLock::new() });
        let link: Arc<dyn DatagramLink> = Arc::<Mailbox>::clone(&mailbox);
        let qp = DatagramQp::new(number, device, attributes.clone().map_cqs(|cq| Arc::clone(cq.cq())), link);
        let _ = mailbox.qp.set(Arc::downgrade(&qp));
        let cqs = [Arc::clone(send_cq), Arc::clone(receive_cq)];
        let mut pair = Self { qp, mailbox, set, tokens: Vec::new(), _cqs: cqs };
        for socket in 0..pair.mailbox.udp.sockets().len() {
            pair.add_socket(socket)?;
        }
        Ok(Arc::new(pair))
    }

    fn add_socket(&mut self, socket: usize) -> io::Result<()> {
        let (mailbox, qp) = (Arc::clone(&self.mailbox), Arc::clone(&self.qp));
        let inbox: Arc<dyn Member> = Arc::new(Inbox { mailbox, qp, socket });
        let token = self.set.lane().new_token();
        // Before it is added: if that fails, it is removed when this is dropped.
        self.tokens.push(token);
        let only = self.set.only_member();
        self.set.insert(token, &inbox)?;
        self.set.queue_owed_ack_of(only);
        // Its first event may have come before it was in the set.
        inbox.serve(Ready { readable: true, writable: true, ended: false }, ServedBy::Program);
        Ok(())
    }

    /// Returns its number.
    pub fn id(&self) -> u32 {
        self.qp.id()
    }

    /// Returns the device's queue pair behind it.
    pub fn qp(&self) -> &Arc<DatagramQp> {
        &self.qp
    }

    /// Returns the GIDs at which it can be reached.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.mailbox.udp.sockets().iter().map(UdpSocket::gid)
    }

    /// Returns the local GID that the host's routes choose for datagrams to a remote GID.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        self.mailbox.udp.source_for(to)
    }
}

impl Drop for DatagramQueuePair {
    fn drop(&mut self) {
        for token in &self.tokens {
            self.set.remove(*token);
        }
        // Every state may become this one.
        let _ = self.qp.modify(State::Reset);
    }
}

impl DatagramLink for Mailbox {
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

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mailbox.udp.sockets()[self.socket].as_fd()
    }
}

impl Member for Inbox {
    fn serve(&self, ready: Ready, _by: ServedBy) -> Option<&Arc<Qp>> {
        if ready.readable {
            self.mailbox.udp.set_readable(self.socket);
        }
        self.qp.drive(ready);
        None
    }

    fn disconnect(self: Arc<Self>) -> bool {
        false
    }

    fn abort(&self) {
        // Refused after a reset, when there is nothing to flush.
        let _ = self.qp.modify(State::Error);
    }
}
