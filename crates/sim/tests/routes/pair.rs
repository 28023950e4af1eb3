//! Two queue pairs with a link that has two routes. The test decides how many bytes pass.

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, MpaMode, Role, Rtr};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::{Host as _, Span};
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{Attributes, Completes, Qp, Ready, Receives, StreamDriver};
use ironwarp_rnic::queue::{Cq, Data, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use ironwarp_sim::{Arena, tag_cipher};
use ironwarp_wire::RemoteAddr;
use ironwarp_wire::mpa::{Framing, RtrSet};
use ironwarp_wire::private::{Capabilities, OFFER_LEN};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub(crate) const BOTH: Ready = Ready { readable: true, writable: true, ended: false };
/// No limit.
pub(crate) const OPEN: usize = usize::MAX;
pub(crate) const SEND: Operation = Operation::Send { invalidate: None };

/// The bytes of one direction that were sent and not received, for each route.
type Queues = Arc<Mutex<[VecDeque<u8>; 2]>>;

/// One end of the link.
#[derive(Debug)]
pub(crate) struct TwoRoutes {
    arena: Arc<Arena>,
    inbox: Queues,
    outbox: Queues,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Whether the link has a route other than TCP.
    shares: bool,
    /// Number of bytes that may still be sent.
    room: usize,
    /// Maximum number of bytes that one call moves.
    step: usize,
    send: Route,
    recv: Route,
    /// Number of bytes that were sent by each route.
    sent: [usize; 2],
    /// The switches of the sending direction.
    switches: Vec<Route>,
    /// A short receive on TCP leaves nothing behind, and this end is told of further bytes.
    quiet_tcp: bool,
}

impl Link for TwoRoutes {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut state = self.state.lock().unwrap();
        let room = state.room.min(state.step);
        let mut bytes = Vec::new();
        for piece in pieces {
            let len = piece.len().min(room - bytes.len());
            match piece {
                Piece::Own(own) => bytes.extend_from_slice(&own[..len]),
                Piece::Host(span) => bytes.extend(self.arena.read(Span { len, ..*span })),
            }
        }
        if bytes.is_empty() {
            return Err(LinkError::WouldBlock);
        }
        state.room -= bytes.len();
        let route = state.send as usize;
        state.sent[route] += bytes.len();
        self.outbox.lock().unwrap()[route].extend(&bytes);
        Ok(bytes.len())
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let state = self.state.lock().unwrap();
        let mut queues = self.inbox.lock().unwrap();
        let queue = &mut queues[state.recv as usize];
        let mut left = queue.len().min(state.step);
        if left == 0 {
            return Err(LinkError::WouldBlock);
        }
        let mut take = |len: usize| {
            let len = len.min(left);
            left -= len;
            queue.drain(..len).collect::<Vec<u8>>()
        };
        let mut placed = 0;
        for span in host {
            let bytes = take(span.len);
            self.arena.scatter(&bytes, &[Span { len: bytes.len(), ..*span }]).unwrap();
            placed += bytes.len();
        }
        let bytes = take(own.len());
        own[..bytes.len()].copy_from_slice(&bytes);
        Ok(placed + bytes.len())
    }

    fn arrived(&self) -> usize {
        self.inbox.lock().unwrap().iter().map(VecDeque::len).sum()
    }

    fn is_empty_after_short_recv(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.quiet_tcp && state.recv == Route::Tcp
    }

    fn switch_send(&self, route: Route) {
        let mut state = self.state.lock().unwrap();
        assert_ne!(state.send, route);
        state.send = route;
        state.switches.push(route);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        let mut state = self.state.lock().unwrap();
        if !state.shares {
            return false;
        }
        let former = std::mem::replace(&mut state.recv, route);
        assert_ne!(former, route);
        let mut queues = self.inbox.lock().unwrap();
        unread.iter().rev().for_each(|byte| queues[former as usize].push_front(*byte));
        true
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

/// Records what the queue pair reports.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) capabilities: Mutex<Vec<Capabilities>>,
    pub(crate) offers: Mutex<Vec<[u8; OFFER_LEN]>>,
    /// The calls of `on_leaving`.
    pub(crate) leaving: Mutex<Vec<bool>>,
}

impl StreamDriver for Recorder {
    fn on_peer_not_ready(&self) {}
    fn schedule(&self) {}
    fn on_first_message(&self) {}
    fn on_stream_ended(&self, _: &Arc<QpError>) {}
    fn on_link_closed(&self) {}

    fn on_peer_capabilities(&self, peer: Capabilities) {
        self.capabilities.lock().unwrap().push(peer);
    }

    fn on_offer(&self, offer: [u8; OFFER_LEN]) {
        self.offers.lock().unwrap().push(offer);
    }

    fn on_leaving(&self, has_left: bool) {
        self.leaving.lock().unwrap().push(has_left);
    }
}

/// A program with one queue pair.
pub(crate) struct End {
    pub(crate) arena: Arc<Arena>,
    device: Arc<Device>,
    domain: Domain,
    cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) link: Arc<TwoRoutes>,
    pub(crate) driver: Arc<Recorder>,
}

/// Options that differ between tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) framing: Framing,
    /// Which ends use the private protocol.
    pub(crate) private: [bool; 2],
    /// Which ends announce shared memory.
    pub(crate) announces: [bool; 2],
    /// Whether the links have a second route.
    pub(crate) shares: bool,
    /// Whether an end is not called again after a short receive on TCP.
    pub(crate) quiet_tcp: bool,
}

impl Default for Options {
    fn default() -> Self {
        let framing = Framing { crc: true, markers: false };
        Self { framing, private: [true; 2], announces: [true; 2], shares: true, quiet_tcp: false }
    }
}

/// Returns an initiator and a responder, whose links have passed the capabilities.
pub(crate) fn pair(options: Options) -> [End; 2] {
    let directions: [Queues; 2] = Default::default();
    let ends = [0, 1].map(|number| {
        let here = usize::from(number);
        let arena = Arena::new(number);
        let config = DeviceConfig {
            private: options.private[here],
            shared_memory: options.announces[here],
            ..DeviceConfig::default()
        };
        let device = Device::new(config, arena.clone(), tag_cipher(number.into()));
        let domain = device.allocate_domain();
        let cq = Arc::new(Cq::new(1, 64));
        let attributes = Attributes {
            completes: Completes::WhenAcknowledged,
            receives: Receives::Own(8),
            ..Attributes::new(domain, &cq)
        };
        let qp = Qp::new(u32::from(number) + 1, &device, attributes);
        let state = State {
            shares: options.shares,
            room: OPEN,
            step: OPEN,
            send: Route::Tcp,
            recv: Route::Tcp,
            sent: [0; 2],
            switches: Vec::new(),
            quiet_tcp: options.quiet_tcp,
        };
        let (inbox, outbox) = (Arc::clone(&directions[here]), Arc::clone(&directions[1 - here]));
        let link = Arc::new(TwoRoutes { arena: arena.clone(), inbox, outbox, state: Mutex::new(state) });
        End { arena, device, domain, cq, qp, link, driver: Arc::default() }
    });
    for (number, end) in ends.iter().enumerate() {
        let rtr = Some(Rtr::Write);
        let role = if number == 0 { Role::Initiator { rtr } } else { Role::Responder { rtr: RtrSet::WRITE } };
        let agreed = Agreed::symmetric(role, MpaMode::PeerToPeer, options.framing, 8, 8);
        let link: Arc<dyn Link> = end.link.clone();
        end.qp.connect(&link, &agreed, Vec::new(), end.driver.clone()).unwrap();
    }
    settle(&ends);
    ends
}

impl End {
    /// Allows this many further bytes to be sent, and drives both halves.
    pub(crate) fn allow(&self, bytes: usize) {
        self.link.state.lock().unwrap().room = bytes;
        self.qp.drive(BOTH);
    }

    /// Limits the number of bytes that one call to the link moves.
    pub(crate) fn set_step(&self, step: usize) {
        self.link.state.lock().unwrap().step = step;
    }

    /// Returns the number of bytes sent by each route.
    pub(crate) fn sent(&self) -> [usize; 2] {
        self.link.state.lock().unwrap().sent
    }

    /// Returns the switches of the sending direction so far.
    pub(crate) fn switches(&self) -> Vec<Route> {
        self.link.state.lock().unwrap().switches.clone()
    }

    /// Inserts bytes on a route, as if the peer had sent them.
    pub(crate) fn inject(&self, route: Route, bytes: &[u8]) {
        self.link.inbox.lock().unwrap()[route as usize].extend(bytes);
    }

    /// Changes the bytes that are on their way to this end by a route.
    pub(crate) fn damage(&self, route: Route, change: impl FnOnce(&mut VecDeque<u8>)) {
        change(&mut self.link.inbox.lock().unwrap()[route as usize]);
    }

    /// Registers memory for all kinds of access, filled with bytes that depend on `pattern`.
    pub(crate) fn register(&self, len: usize, pattern: u8) -> Sge {
        let span = self.arena.alloc(len);
        self.arena.scatter(&bytes(len, pattern), &[span]).unwrap();
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE;
        let memory = Memory::direct(span.addr, len as u64, rights).unwrap();
        let tag = self.device.register(self.domain, memory).unwrap();
        Sge { tag, addr: span.addr, len: u32::try_from(len).unwrap() }
    }

    pub(crate) fn post(&self, id: u64, operation: Operation, data: Sge) {
        let request = WorkRequest::new(id, operation, Data::Memory([data].as_slice().into()));
        self.qp.post_send(vec![request]).unwrap();
    }

    pub(crate) fn post_receive(&self, id: u64, len: usize) -> Sge {
        let buffer = self.register(len, 0);
        self.qp.post_receive(ReceiveRequest { id, buffers: buffer.into() }).unwrap();
        buffer
    }

    /// Returns identifier and status of all completions.
    pub(crate) fn ended(&self) -> Vec<(u64, Status)> {
        let mut completions = Vec::new();
        self.cq.poll(64, |completion| completions.push((completion.wr_id, completion.status))).unwrap();
        completions
    }

    /// Checks that memory contains the bytes that depend on `pattern`.
    pub(crate) fn expect(&self, at: Sge, pattern: u8) {
        let found = self.arena.read(Span::new(at.addr, at.len as usize));
        assert!(found == bytes(found.len(), pattern), "pattern {pattern}");
    }
}

/// Returns bytes that depend on their position and on `pattern`.
pub(crate) fn bytes(len: usize, pattern: u8) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes().iter().fold(pattern, |sum, byte| sum ^ byte)).collect()
}

/// Lets everything pass until nothing moves any more.
pub(crate) fn settle(ends: &[End; 2]) {
    let mut before = None;
    loop {
        for end in ends {
            end.allow(OPEN);
            end.qp.acknowledge();
        }
        let now = ends.each_ref().map(|end| (end.sent(), end.link.arrived()));
        if before.replace(now) == Some(now) {
            break;
        }
    }
}

pub(crate) fn addr(sge: Sge) -> RemoteAddr {
    RemoteAddr { tag: sge.tag, offset: sge.addr }
}
