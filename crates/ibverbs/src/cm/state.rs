//! The state of an id: how far its connection is, and what belongs to it. Calls of the program and lanes share
//! it. Lanes report what happened to the connection, possibly after the program has destroyed the id.

use super::address;
use super::addrinfo::AddrInfoList;
use super::queue::EventQueue;
use crate::abi::{ibv_ah_attr, rdma_cm_event_type, rdma_port_space};
use crate::support::acknowledge::wait_until_acknowledged;
use crate::support::errno::Errno;
use ironwarp_engine::sys::tcp::Bound;
use ironwarp_engine::{ConnectOptions, Incoming, Listening, QueuePair};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::CmHeader;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The part of an id that lanes share with the program.
#[derive(Debug)]
pub(super) struct Shared {
    /// Address of the id's C structure. Set once, right after the structure was allocated.
    c: OnceLock<usize>,
    state: Mutex<State>,
    /// Number of events that the program has taken and not acknowledged yet.
    unacknowledged: Mutex<usize>,
    /// Notified when the program acknowledges an event.
    acknowledged: Condvar,
}

/// Progress of an id. The adapter must not be called while this is locked, because the adapter may call back
/// and lock it as well.
#[derive(Debug)]
pub(super) struct State {
    /// The event queue of the id's channel.
    pub(super) queue: Arc<EventQueue<Event>>,
    pub(super) port_space: rdma_port_space,
    pub(super) phase: Phase,
    pub(super) options: Options,
    /// The bound TCP port, from `rdma_bind_addr` until the id listens or connects.
    pub(super) bound: Option<Bound>,
    /// The listener, while the id listens.
    pub(super) listening: Option<Arc<Listening>>,
    /// Local address. `None` until the id is bound or its address is resolved.
    pub(super) local: Option<SocketAddr>,
    /// Address of the peer. `None` until the address is resolved, or if the id listens.
    pub(super) remote: Option<SocketAddr>,
    /// The request of a peer, until the program accepts or rejects it.
    pub(super) request: Option<Request>,
    /// On the active side: the connection, until the peer has answered.
    pub(super) attempt: Option<Attempt>,
    /// The connection, after the peer has accepted it, or this end has.
    pub(super) link: Option<Link>,
    /// The header that the peer sent in its private data. `None` if it sent none, or nothing yet.
    pub(super) peer: Option<CmHeader>,
    /// Number of Reads and atomics in flight, in both directions.
    pub(super) depths: Depths,
    /// Whether the connection ended before it was reported as established.
    pub(super) ended_early: bool,
    /// The result of `rdma_resolve_addrinfo`, until the program takes it.
    pub(super) addrinfo: Option<AddrInfoList>,
}

/// How far an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Just created.
    Idle,
    /// Has a port, by `rdma_bind_addr`.
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// `rdma_connect` was called, and the peer has not answered yet.
    Connecting,
    /// Created for the request of a peer, which the program has to accept or reject.
    Requested,
    /// `rdma_accept` was called, and the connection is not established yet.
    Accepting,
    /// The peer accepted, and the program has to call `rdma_establish`.
    Responded,
    Connected,
    Disconnected,
    /// The connection was not established, and will not be.
    Failed,
    /// The program has destroyed the id, and gets no more events.
    Destroyed,
}

/// The request of a peer.
#[derive(Debug)]
pub(super) struct Request {
    /// The handshake. Dropping it rejects the peer.
    pub(super) incoming: Incoming,
    /// The header in the private data of the peer. `None` if the peer sent a standard request.
    pub(super) header: Option<CmHeader>,
}

/// A connection that this end is dialling.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) pair: Arc<QueuePair>,
    /// Address of the peer.
    pub(super) to: SocketAddr,
    pub(super) options: ConnectOptions,
    /// When to stop redialling a peer that does not listen.
    pub(super) redial_until: Instant,
    /// Pause before the next redial.
    pub(super) redial_pause: Duration,
    pub(super) purpose: Purpose,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The connection carries the messages of the id's queue pair.
    Managed,
    /// The connection carries no messages, and says which two queue pairs belong together. The program connects
    /// its queue pair itself.
    SideChannel,
    /// The connection carries no messages, and says which two queue pairs belong together. This end connects
    /// the id's queue pair to the queue pair of the peer by number.
    ManagedBySideChannel,
    /// The connection requests the number of a UD queue pair.
    Lookup,
}

/// A connection that at least one end has accepted.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) pair: Arc<QueuePair>,
    pub(super) purpose: Purpose,
}

/// Number of Reads and atomics in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    /// Maximum number that this end may have in flight (ORD).
    pub(super) initiator: u8,
    /// Maximum number that the peer may have in flight (IRD).
    pub(super) responder: u8,
}

/// The options of an id (`rdma_set_option`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Traffic class of this end's packets. The ids of a listener's connections inherit it.
    pub(super) traffic_class: u8,
    /// Whether other ids with this option may use the same port.
    pub(super) share_port: bool,
    /// Whether an IPv6 address excludes IPv4. `None` if the program did not set the option.
    pub(super) one_family: Option<bool>,
    /// Acknowledgement timeout in the encoding of verbs. `None` if the program did not set the option.
    pub(super) ack_timeout: Option<u8>,
}

/// An event that the program has not taken yet.
#[derive(Debug)]
pub(super) struct Event {
    /// State of the id that the event is about. For the request of a peer, that is the listening id.
    pub(super) about: Arc<Shared>,
    pub(super) kind: rdma_cm_event_type,
    /// Zero, a negative errno, or a reject reason of InfiniBand's connection manager.
    pub(super) status: c_int,
    pub(super) param: Param,
    pub(super) private_data: Box<[u8]>,
    /// The request of a peer, for which an id is created when the program takes the event. `None` for every
    /// event except RDMA_CM_EVENT_CONNECT_REQUEST.
    pub(super) request: Option<Request>,
}

/// The parameters of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param {
    None,
    Connection(Connection),
    Datagram(Datagram),
    /// The argument of an event that the program wrote with `rdma_write_cm_event`.
    Argument(u64),
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    pub(super) depths: Depths,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub(super) srq: bool,
    /// Number of the peer's queue pair, or zero if the peer did not send it.
    pub(super) qpn: u32,
}

/// Parameters of a UD queue pair (`rdma_ud_param`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) address: ibv_ah_attr,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

impl Event {
    /// Creates an event with status 0, which is not the request of a peer.
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
    /// Returns the local address, which selects the device. EINVAL if it is not known yet.
    pub(super) fn local_ip(&self) -> Result<IpAddr, Errno> {
        Ok(self.lock().local.ok_or(Errno::INVALID)?.ip())
    }

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
                addrinfo: None,
            }),
            unacknowledged: Mutex::default(),
            acknowledged: Condvar::new(),
        })
    }

    /// Sets the address of the C structure. Only the first call has an effect.
    pub(super) fn set_c(&self, c: usize) {
        let _ = self.c.set(c);
    }

    /// Address of the C structure, which the program may have destroyed.
    pub(super) fn c(&self) -> usize {
        self.c.get().copied().unwrap_or_default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Moves the RDMA port of this id away from the TCP port `port`, to a candidate port, so that the program
    /// can bind the TCP port itself. Returns false if this id does not use that TCP port.
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

    /// Queues an event, unless the program has destroyed the id.
    pub(super) fn push_event(&self, event: Event) {
        let state = self.lock();
        if state.phase != Phase::Destroyed {
            // Pushed under the lock, because `rdma_migrate_id` may replace the queue as soon as it is released.
            state.queue.push(event);
        }
    }

    /// Counts an event that the program has taken, and must acknowledge.
    pub(super) fn count_delivery(&self) {
        *lock(&self.unacknowledged) += 1;
    }

    /// Counts an event that the program has acknowledged.
    pub(super) fn acknowledge(&self) {
        let mut unacknowledged = lock(&self.unacknowledged);
        *unacknowledged = unacknowledged.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    /// Waits until the program has acknowledged all events that it has taken.
    pub(super) fn wait_for_acknowledgements(&self) {
        let unacknowledged = lock(&self.unacknowledged);
        drop(wait_until_acknowledged(&self.acknowledged, unacknowledged, "rdma_cm_id", |it| *it as u64));
    }
}

impl Depths {
    /// Converts a depth to the 8 bits that events of librdmacm have for it. Larger values become 255.
    pub(super) fn saturate(depth: u16) -> u8 {
        u8::try_from(depth).unwrap_or(u8::MAX)
    }

    /// Limits both depths to `max`.
    pub(super) fn at_most(self, max: u8) -> Self {
        Self { initiator: self.initiator.min(max), responder: self.responder.min(max) }
    }

    /// IRD to negotiate. At least one, because a standard peer may request acknowledgements with empty Reads.
    pub(super) fn ird(self) -> Option<u16> {
        Some(u16::from(self.responder.max(1)))
    }

    /// ORD to negotiate. At least one, because this end requests the acknowledgements of a standard peer with
    /// empty Reads.
    pub(super) fn ord(self) -> Option<u16> {
        Some(u16::from(self.initiator.max(1)))
    }
}

impl State {
    /// Whether the queue pair with this number is the one of the current connection. Events of an earlier
    /// connection are ignored.
    pub(super) fn is_current(&self, qp: u32) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.pair.id() == qp)
            || self.link.as_ref().is_some_and(|link| link.pair.id() == qp)
    }

    /// The address handle attributes for the path to the peer.
    pub(super) fn address_handle(&self) -> Result<ibv_ah_attr, Errno> {
        let (local, remote) = (self.local.ok_or(Errno::INVALID)?, self.remote.ok_or(Errno::INVALID)?);
        address::address_handle(local.ip(), remote.ip(), self.options.traffic_class)
    }
}
