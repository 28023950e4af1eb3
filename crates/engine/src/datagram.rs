//! A connectionless queue pair and its sockets. They live in the set of the receive queue's completion queue, as those of
//! connections do, so polling makes progress and a lane does while nobody polls.

use crate::capture::Capture;
use crate::cq::CompletionQueue;
use crate::engine::Engine;
use crate::gid::{GidEntry, GidTable};
use crate::lane::{Job, Lane};
use crate::set::Set;
use crate::sys::udp::{LocalAddress, UdpPort, UdpSocket};
use ironwarp_rnic::datagram::{Arrived, DatagramAttributes, DatagramLink, DatagramQp, Sent, number_of};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::{Ready, State};
use ironwarp_rnic::queue::SharedReceiveQueue;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};

/// What a connectionless queue pair is created with.
#[derive(Clone, Debug)]
pub struct DatagramQueuePairAttributes {
    /// Its protection domain.
    pub domain: Domain,
    /// Where its send queue's completions go.
    pub send_cq: Arc<CompletionQueue>,
    /// Where its receive queue's completions go.
    pub receive_cq: Arc<CompletionQueue>,
    /// How many work requests its send queue holds.
    pub send_depth: usize,
    /// How many receives its own queue holds.
    pub receive_depth: usize,
    /// The queue that its receives come from instead.
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// How many scatter/gather elements a request has at most.
    pub max_sges: usize,
    /// Its key.
    pub qkey: u32,
}

/// A connectionless queue pair. Dropped, it is gone at once: requests that are not done are forgotten, and completions that
/// were not polled are taken back, as the verbs have it.
#[derive(Debug)]
pub struct DatagramQueuePair {
    qp: Arc<DatagramQp>,
    mailbox: Arc<Mailbox>,
    set: Arc<Set>,
    /// What the set calls its sockets.
    tokens: Vec<u64>,
    /// The sets behind these are served as long as they live.
    _cqs: [Arc<CompletionQueue>; 2],
}

/// The sockets, as the device sees them.
#[derive(Debug)]
struct Mailbox {
    udp: UdpPort,
    lane: Arc<Lane>,
    capture: Option<Arc<Capture>>,
    /// Holds nothing alive: the queue pair holds it.
    qp: OnceLock<Weak<DatagramQp>>,
}

/// One of the sockets, as its set sees it.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    mailbox: Arc<Mailbox>,
    qp: Arc<DatagramQp>,
    socket: usize,
}

impl Engine {
    /// Sockets for a connectionless queue pair at these addresses of the host; at every GID that it has now, if none are given.
    /// The setting `ports` limits the port.
    pub fn datagram_port(&self, addresses: Option<&[IpAddr]>) -> io::Result<UdpPort> {
        let known = GidTable::of_process().entries()?;
        let address = |gid: Gid| local_address(gid, &known);
        let ports = self.config().ports;
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

    /// A connectionless queue pair at these sockets. Its number tells their port.
    pub fn create_datagram_qp(
        &self,
        attributes: &DatagramQueuePairAttributes,
        udp: UdpPort,
    ) -> io::Result<Arc<DatagramQueuePair>> {
        let (send_cq, receive_cq) = (&attributes.send_cq, &attributes.receive_cq);
        let number = number_of(udp.port());
        let set = self.set_for((receive_cq, send_cq), addresses(&udp))?;
        let mailbox = Arc::new(Mailbox {
            udp,
            lane: Arc::clone(set.lane()),
            capture: self.capture().cloned(),
            qp: OnceLock::new(),
        });
        let link: Arc<dyn DatagramLink> = Arc::<Mailbox>::clone(&mailbox);
        let qp = DatagramQp::new(number, self.device(), attributes.for_device(), link);
        let _ = mailbox.qp.set(Arc::downgrade(&qp));
        let mut pair = DatagramQueuePair {
            qp,
            mailbox,
            set,
            tokens: Vec::new(),
            _cqs: [Arc::clone(send_cq), Arc::clone(receive_cq)],
        };
        for socket in 0..pair.mailbox.udp.sockets().len() {
            let (mailbox, qp) = (Arc::clone(&pair.mailbox), Arc::clone(&pair.qp));
            let token = pair.set.lane().token();
            // Before it is added: if that fails, what was added is removed.
            pair.tokens.push(token);
            pair.set.add_inbox(token, Inbox { mailbox, qp, socket })?;
        }
        Ok(Arc::new(pair))
    }
}

/// The address of a GID, with the interface if it needs one.
fn local_address(gid: Gid, known: &[GidEntry]) -> Option<LocalAddress> {
    let interface = || known.iter().find(|entry| entry.gid == gid).map_or(0, |entry| entry.interface_index);
    Some(LocalAddress { ip: gid.ip()?, scope: if gid.is_link_local() { interface() } else { 0 } })
}

/// What a connectionless queue pair is steered by: it has no peer, but a port of its own.
fn addresses(udp: &UdpPort) -> (SocketAddr, SocketAddr) {
    let ip = udp.sockets().first().and_then(|socket| socket.gid().ip());
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    ((nobody, 0).into(), (ip.unwrap_or(nobody), udp.port()).into())
}

impl DatagramQueuePairAttributes {
    /// Sixteen requests in each queue, of up to four buffers; the key is zero.
    pub fn new(domain: Domain, cq: &Arc<CompletionQueue>) -> Self {
        Self {
            domain,
            send_cq: Arc::clone(cq),
            receive_cq: Arc::clone(cq),
            send_depth: 16,
            receive_depth: 16,
            shared: None,
            max_sges: 4,
            qkey: 0,
        }
    }

    fn for_device(&self) -> DatagramAttributes {
        DatagramAttributes {
            domain: self.domain,
            send_cq: Arc::clone(self.send_cq.cq()),
            receive_cq: Arc::clone(self.receive_cq.cq()),
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            shared: self.shared.clone(),
            max_sges: self.max_sges,
            qkey: self.qkey,
        }
    }
}

impl DatagramQueuePair {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.qp.id()
    }

    /// The device's queue pair behind it.
    pub fn qp(&self) -> &Arc<DatagramQp> {
        &self.qp
    }

    /// Where it is reached.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.mailbox.udp.sockets().iter().map(UdpSocket::gid)
    }

    /// The address of its own that the host's routes choose for datagrams to another.
    pub fn source_for(&self, to: Gid) -> io::Result<Gid> {
        self.mailbox.udp.source_for(to)
    }
}

impl Drop for DatagramQueuePair {
    fn drop(&mut self) {
        for token in &self.tokens {
            self.set.remove_inbox(*token);
        }
        // Every state may become this one.
        let _ = self.qp.modify(State::Reset);
    }
}

impl DatagramLink for Mailbox {
    fn has_path(&self, from: Gid, to: Gid) -> bool {
        self.udp.at_gid(from).is_some_and(|socket| socket.reaches(to))
    }

    fn send(&self, from: Gid, to: (Gid, u16), bytes: &[u8]) -> Sent {
        let sent = self.udp.at_gid(from).map_or(Sent::Lost, |socket| socket.send(to, bytes));
        if let (Some(capture), Sent::Taken) = (&self.capture, &sent) {
            capture.datagram((from, self.udp.port()), to, bytes);
        }
        sent
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let arrived = self.udp.recv(into)?;
        if let Some(capture) = &self.capture {
            capture.datagram(
                (arrived.from, arrived.port),
                (arrived.to, self.udp.port()),
                &into[..arrived.len],
            );
        }
        Some(arrived)
    }

    fn call_again(&self) {
        if let Some(qp) = self.qp.get().and_then(Weak::upgrade) {
            self.lane.submit(Job::DriveDatagrams(qp));
        }
    }
}

impl Inbox {
    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.mailbox.udp.sockets()[self.socket]
    }

    /// The socket has changed.
    pub(crate) fn drive(&self, ready: Ready) {
        if ready.readable {
            self.mailbox.udp.set_readable(self.socket);
        }
        self.qp.drive(ready);
    }

    /// The adapter has stopped: what was posted is flushed.
    pub(crate) fn stop(&self) {
        // Refused after a reset, when there is nothing to flush.
        let _ = self.qp.modify(State::Error);
    }
}
