//! The state of an id. The threads of lanes also use it, to report what happened to its connection, even
//! after the program has destroyed the id.

use super::address;
use super::addrinfo::AddrInfoList;
use super::queue::EventQueue;
use crate::abi::{ibv_ah_attr, rdma_cm_event_type, rdma_port_space};
use crate::support::errno::Errno;
use ironwarp_engine::sys::tcp::Bound;
use ironwarp_engine::{ConnectOptions, Incoming, Listening, QueuePair};
use ironwarp_rnic::sync::{self, lock};
use ironwarp_wire::private::CmHeader;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// State of an id shared by all threads.
#[derive(Debug)]
pub(super) struct Shared {
    /// Address of the C structure.
    c: OnceLock<usize>,
    state: Mutex<State>,
    acks: Mutex<Acks>,
    acknowledged: Condvar,
}

/// Number of events that were delivered and not acknowledged.
#[derive(Debug, Default)]
struct Acks {
    pending: usize,
}

/// Progress of an id. The adapter must not be called while this is locked, because it may call back.
#[derive(Debug)]
pub(super) struct State {
    /// The queue of its events.
    pub(super) queue: Arc<EventQueue<Event>>,
    pub(super) port_space: rdma_port_space,
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) bound: Option<Bound>,
    pub(super) listening: Option<Arc<Listening>>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// The request of a peer, until the program accepts or rejects it.
    pub(super) request: Option<Request>,
    /// The connection that is being established.
    pub(super) attempt: Option<Attempt>,
    /// The established connection.
    pub(super) link: Option<Link>,
    /// What the peer said about its queue pair.
    pub(super) peer: Option<CmHeader>,
    /// Number of Reads and atomics in flight, in both directions.
    pub(super) depths: Depths,
    /// The connection ended before it was reported as established.
    pub(super) ended_early: bool,
    /// The result of `rdma_resolve_addrinfo`, until the program takes it.
    pub(super) found: Option<AddrInfoList>,
}

/// Progress of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    Connecting,
    /// The program has to accept or reject a peer.
    Requested,
    Accepting,
    /// The peer accepted, and the program has to call `rdma_establish`.
    Responded,
    Connected,
    Disconnected,
    /// The connection was not established, and will not be.
    Failed,
    Destroyed,
}

/// The request of a peer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) incoming: Incoming,
    pub(super) header: Option<CmHeader>,
}

/// A connection that is being established.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) pair: Arc<QueuePair>,
    pub(super) to: SocketAddr,
    pub(super) options: ConnectOptions,
    /// When to stop redialling a peer that does not listen.
    pub(super) until: Instant,
    pub(super) pause: Duration,
    pub(super) purpose: Purpose,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It carries the messages of the id's queue pair.
    Managed,
    /// It says which queue pairs belong together. The program connects its own queue pair.
    SideChannel,
    /// It says which queue pairs belong together. The id's queue pair is connected to that of the peer by
    /// number.
    ManagedBySideChannel,
    /// It asks for the number of a UD queue pair.
    Lookup,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) pair: Arc<QueuePair>,
    pub(super) purpose: Purpose,
}

/// Number of Reads and atomics that this end may have in flight, and must be able to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) initiator: u8,
    pub(super) responder: u8,
}

/// The options of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Traffic class in the attributes of the route. That of the TCP connection is up to the system.
    pub(super) traffic_class: u8,
    /// Whether other ids that set it may use the same port.
    pub(super) share_port: bool,
    /// Whether an IPv6 address excludes IPv4. `None` if the program did not set it.
    pub(super) one_family: Option<bool>,
    /// Acknowledgement timeout in the encoding of verbs.
    pub(super) ack_timeout: Option<u8>,
}

/// An event that the program has not taken yet.
#[derive(Debug)]
pub(super) struct Event {
    /// The id of the event. For the request of a peer, the listening id.
    pub(super) about: Arc<Shared>,
    pub(super) kind: rdma_cm_event_type,
    pub(super) status: c_int,
    pub(super) param: Param,
    pub(super) private_data: Box<[u8]>,
    pub(super) request: Option<Request>,
}

/// The parameters of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param {
    None,
    Connection(Connection),
    Datagram(Datagram),
    /// The argument of an event that the program wrote.
    Argument(u64),
}

/// Parameters of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    pub(super) depths: Depths,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: bool,
    pub(super) qpn: u32,
}

/// Parameters of a UD queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) address: ibv_ah_attr,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

impl Event {
    pub(super) fn new(
        about: &Arc<Shared>,
        kind: rdma_cm_event_type,
        param: Param,
        private_data: &[u8],
    ) -> Self {
        let (about, private_data) = (Arc::clone(about), private_data.into());
        Self { about, kind, status: 0, param, private_data, request: None }
    }
}

impl Shared {
    pub(super) fn new(queue: Arc<EventQueue<Event>>, port_space: rdma_port_space) -> Arc<Self> {
        Arc::new(Self {
            c: OnceLock::new(),
            state: Mutex::new(State {
                queue,
                port_space,
                phase: Phase::Idle,
                options: Options::default(),
                bound: None,
                listening: None,
                local: None,
                remote: None,
                request: None,
                attempt: None,
                link: None,
                peer: None,
                depths: Depths::default(),
                ended_early: false,
                found: None,
            }),
            acks: Mutex::default(),
            acknowledged: Condvar::new(),
        })
    }

    pub(super) fn set_c(&self, c: usize) {
        let _ = self.c.set(c);
    }

    pub(super) fn c(&self) -> usize {
        self.c.get().copied().unwrap_or_default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Leaves a TCP port to the program if the RDMA port of this id is there. Returns whether it was.
    pub(super) fn move_aside(&self, port: u16) -> std::io::Result<bool> {
        let listening = {
            let mut state = self.lock();
            if state.local.is_none_or(|local| local.port() != port) {
                return Ok(false);
            }
            if let Some(bound) = &mut state.bound {
                return bound.move_aside();
            }
            state.listening.clone()
        };
        listening.map_or(Ok(false), |listening| listening.move_aside())
    }

    // --- Events ---

    /// Queues an event without parameters.
    pub(super) fn push(self: &Arc<Self>, kind: rdma_cm_event_type, status: i32) {
        self.push_event(Event { status, ..Event::new(self, kind, Param::None, &[]) });
    }

    pub(super) fn push_event(&self, event: Event) {
        let state = self.lock();
        if state.phase != Phase::Destroyed {
            // With the lock held, so that the id cannot move to another queue in between.
            state.queue.push(event);
        }
    }

    pub(super) fn delivered(&self) {
        self.acks().pending += 1;
    }

    pub(super) fn acknowledge(&self) {
        let mut acks = self.acks();
        acks.pending = acks.pending.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    /// Waits until all delivered events are acknowledged.
    pub(super) fn wait_for_acknowledgements(&self) {
        let mut acks = self.acks();
        while acks.pending > 0 {
            acks = sync::wait(&self.acknowledged, acks);
        }
    }

    fn acks(&self) -> MutexGuard<'_, Acks> {
        lock(&self.acks)
    }
}

impl Depths {
    /// A depth as events of librdmacm contain it.
    pub(super) fn number(depth: u16) -> u8 {
        u8::try_from(depth).unwrap_or(u8::MAX)
    }

    pub(super) fn at_most(self, max: u8) -> Self {
        Self { initiator: self.initiator.min(max), responder: self.responder.min(max) }
    }

    /// Number of the peer's Reads to hold: at least one, with which a peer other than Ironwarp asks for
    /// acknowledgements.
    pub(super) fn ird(self) -> Option<u16> {
        Some(u16::from(self.responder.max(1)))
    }

    pub(super) fn ord(self) -> Option<u16> {
        Some(u16::from(self.initiator.max(1)))
    }
}

impl State {
    /// Whether an event of this queue pair concerns the current connection.
    pub(super) fn is_about(&self, qp: u32) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.pair.id() == qp)
            || self.link.as_ref().is_some_and(|link| link.pair.id() == qp)
    }

    /// The address handle attributes for the path to the peer.
    pub(super) fn address_handle(&self) -> Result<ibv_ah_attr, Errno> {
        let (local, remote) = (self.local.ok_or(Errno::INVALID)?, self.remote.ok_or(Errno::INVALID)?);
        address::handle(local.ip(), remote.ip(), self.options.traffic_class)
    }
}
