//! What is behind an id: how far it has come, and with whom. Threads of lanes reach it too, to tell what happened to its
//! connection, and may do so when the id is long destroyed.

use super::addrinfo::Found;
use super::channel::Queue;
use super::event::{Event, Param};
use super::option::Options;
use crate::abi::{rdma_cm_event_type, rdma_port_space};
use crate::sync::lock;
use ironwarp_engine::sys::setup::Bound;
use ironwarp_engine::{ConnectOptions, Incoming, Listening, QueuePair};
use ironwarp_wire::private::Aside;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// An id, as all threads see it.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where C's structure is.
    c: OnceLock<usize>,
    state: Mutex<State>,
    acks: Mutex<Acks>,
    acknowledged: Condvar,
}

/// How many of its events were delivered, and not yet acknowledged.
#[derive(Debug, Default)]
struct Acks {
    pending: usize,
}

/// How far an id has come. No call of the adapter is made while this is locked: it may call back.
#[derive(Debug)]
pub(super) struct State {
    /// Where its events go.
    pub(super) queue: Arc<Queue>,
    pub(super) port_space: rdma_port_space,
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) bound: Option<Bound>,
    pub(super) listening: Option<Arc<Listening>>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// A peer that waits for the program's decision.
    pub(super) request: Option<Request>,
    /// The connection in the making.
    pub(super) attempt: Option<Attempt>,
    /// The connection, by the number of its queue pair in the adapter.
    pub(super) link: Option<Link>,
    /// What the peer said of its queue pair.
    pub(super) peer: Option<Aside>,
    /// How many Reads and atomics this end may have, and must hold.
    pub(super) depths: Depths,
    /// The connection was over before it was known to be there.
    pub(super) ended_early: bool,
    /// What `rdma_resolve_addrinfo` found, until the program asks for it.
    pub(super) found: Option<Found>,
}

/// How far an id has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    Connecting,
    /// A peer waits for the program's decision.
    Requested,
    Accepting,
    /// The peer accepted, and the program has to say that it is done as well.
    Responded,
    Connected,
    Disconnected,
    /// There was no connection, and there will be none.
    Failed,
    Destroyed,
}

/// A peer that wants to connect.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) incoming: Incoming,
    pub(super) header: Option<Aside>,
}

/// A connection that is being made.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) pair: Arc<QueuePair>,
    pub(super) to: SocketAddr,
    pub(super) options: ConnectOptions,
    /// Until then a peer that does not listen is dialled again.
    pub(super) until: Instant,
    pub(super) pause: Duration,
    pub(super) purpose: Purpose,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The id's queue pair talks over it.
    Managed,
    /// It only says which queue pairs belong together. The program connects its own.
    Aside,
    /// The same, and the id's own queue pair is connected to the peer's by its number.
    Beside,
    /// It asks for the number of a connectionless queue pair.
    Lookup,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) pair: Arc<QueuePair>,
    pub(super) purpose: Purpose,
}

/// How many Reads and atomics this end may have outstanding, and must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) initiator: u8,
    pub(super) responder: u8,
}

impl Shared {
    pub(super) fn new(queue: Arc<Queue>, port_space: rdma_port_space) -> Arc<Self> {
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

    /// Leaves a TCP port to the program, if its own RDMA port is there. Whether it was.
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

    /// An event without more to say.
    pub(super) fn push(self: &Arc<Self>, kind: rdma_cm_event_type, status: i32) {
        self.push_event(Event {
            about: Arc::clone(self),
            kind,
            status,
            param: Param::None,
            private_data: Box::default(),
            request: None,
        });
    }

    pub(super) fn push_event(&self, event: Event) {
        let state = self.lock();
        if state.phase != Phase::Destroyed {
            // Under the lock: it must not move to another queue between.
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

    /// Waits until every event that was delivered is acknowledged.
    pub(super) fn wait_for_acknowledgements(&self) {
        let mut acks = self.acks();
        while acks.pending > 0 {
            acks = self.acknowledged.wait(acks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn acks(&self) -> MutexGuard<'_, Acks> {
        lock(&self.acks)
    }
}

impl State {
    /// Whether an event of this queue pair in the adapter is about the connection of now.
    pub(super) fn is_about(&self, qp: u32) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.pair.id() == qp)
            || self.link.as_ref().is_some_and(|link| link.pair.id() == qp)
    }
}
