//! Queue pairs of C programs.
//!
//! | file | for |
//! |---|---|
//! | `create`, `open` | creating a queue pair, opening one of an XRC domain |
//! | `state`, `required` | `ibv_modify_qp`; the attributes that each transition requires |
//! | `builder` | requests that the extended calls build |
//! | `relay` | connection events for librdmacm |
//!
//! `verbs/post.rs` has the data path.
#![expect(unsafe_code, reason = "holds a C structure")]

mod builder;
mod create;
mod open;
mod relay;
mod required;
mod state;

pub(crate) use builder::Builder;
pub(crate) use create::{ExtendedCalls, QpAttributes};
pub(crate) use relay::EventRelay;

use crate::abi::*;
use crate::check;
use crate::objects::async_event::Subject;
use crate::objects::context::Context;
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, all, begin_destroy};
use crate::support::persona;
use crate::support::turn::Turn;
use crate::support::{exit, report};
use ironwarp_engine::{DatagramQueuePair, QueuePair};
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::XrcDomain;
use ironwarp_rnic::sync::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Instant;

/// A queue pair. Every queue pair has the extended form, so that a pointer to either form is valid.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    c: CCell<ibv_qp_ex>,
    kind: Kind,
    /// The attributes that the queue pair was created with, and the capacities that were granted.
    init: ibv_qp_init_attr,
    /// The XRC domain of an XRC receive queue pair, whose shared receive queues the peer's messages name.
    xrc: Option<Arc<XrcDomain>>,
    /// The attributes that were set since the creation, for `ibv_query_qp`. Shared by all objects for a queue pair.
    attr: Arc<Mutex<ibv_qp_attr>>,
    /// Requests that the extended calls have built since `wr_start`. The thread that has the `turn` accesses it.
    pub(crate) builder: CCell<Builder>,
    /// The right to use the extended calls, from `wr_start` to `wr_complete` or `wr_abort`.
    pub(crate) turn: Turn,
    /// Number of objects for this queue pair. More than one if an XRC receive queue pair was opened again.
    handles: Arc<AtomicUsize>,
    /// Forwards connection events to librdmacm. `None` for a queue pair that is connected manually.
    relay: Option<Arc<EventRelay>>,
    /// Kept alive because the C structure points to it. `None` for an XRC receive queue pair.
    _pd: Option<Arc<Pd>>,
    context: Arc<Context>,
}

/// The queue pair of the adapter, which depends on the transport.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A connection: RC, UC, XRC.
    Stream(Arc<QueuePair>),
    /// Datagrams: UD.
    Datagram(Arc<DatagramQueuePair>),
}

// SAFETY: `c` is the first field of a `repr(C)` structure, and `ibv_qp_ex` begins with `ibv_qp`.
unsafe impl CObject for Qp {
    type C = ibv_qp;
}
// SAFETY: `init` has pointers, which are only copied. After publication, the C structure is written only by
// `refresh_state` and by the thread that has the `turn`, and `builder` only by the latter.
unsafe impl Sync for Qp {}
// SAFETY: no field belongs to a thread. The pointers in `init` are only copied.
unsafe impl Send for Qp {}

impl Qp {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns the connected queue pair of the adapter, or `None` if this is a UD queue pair.
    pub(crate) fn stream(&self) -> Option<&Arc<QueuePair>> {
        match &self.kind {
            Kind::Stream(pair) => Some(pair),
            Kind::Datagram(_) => None,
        }
    }

    /// Returns the relay to the connection manager, unless the queue pair is connected manually.
    pub(crate) fn relay(&self) -> Option<&EventRelay> {
        self.relay.as_deref()
    }

    /// Returns the queue pair number.
    pub(crate) fn number(&self) -> u32 {
        match &self.kind {
            Kind::Stream(pair) => pair.id(),
            Kind::Datagram(pair) => pair.id(),
        }
    }

    /// Returns the attributes that the queue pair was created with, and the capacities that were granted.
    pub(crate) fn init(&self) -> &ibv_qp_init_attr {
        &self.init
    }

    /// Returns whether this is an XRC send or receive queue pair.
    pub(crate) fn is_xrc(&self) -> bool {
        matches!(self.init.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV)
    }

    /// Locks the attributes that were set since the creation.
    fn attr(&self) -> MutexGuard<'_, ibv_qp_attr> {
        lock(&self.attr)
    }

    /// Changes the attributes that `ibv_query_qp` returns, without effect on the queue pair. librdmacm records in this
    /// way the values that it negotiated.
    pub(crate) fn update_attr(&self, change: impl FnOnce(&mut ibv_qp_attr)) {
        change(&mut self.attr());
    }

    /// Returns the current state, which the adapter may have changed since the program last did.
    pub(crate) fn state(&self) -> State {
        match &self.kind {
            Kind::Stream(pair) => pair.qp().state(),
            Kind::Datagram(pair) => pair.qp().state(),
        }
    }

    /// Writes the current state to the C structure, and returns it in its C form.
    fn refresh_state(&self) -> ibv_qp_state {
        let state = match self.state() {
            State::Reset => IBV_QPS_RESET,
            State::Init => IBV_QPS_INIT,
            State::ReadyToReceive => IBV_QPS_RTR,
            State::ReadyToSend => IBV_QPS_RTS,
            State::Drained => IBV_QPS_SQD,
            State::SendError => IBV_QPS_SQE,
            State::Error => IBV_QPS_ERR,
        };
        // SAFETY: `c` is valid. C only reads this field, as a hint, and other threads write it only in this function.
        unsafe { (&raw mut (*self.c.get()).qp_base.state).write(state) };
        state
    }

    /// Returns the attributes for `ibv_query_qp`.
    pub(crate) fn query(&self) -> ibv_qp_attr {
        let mut found = *self.attr();
        found.qp_state = self.refresh_state();
        // iWARP has no RESET state: a new queue pair is idle, which corresponds to INIT. A query returns INIT, while
        // the C structure has RESET, because the real library writes RESET to every new queue pair.
        if found.qp_state == IBV_QPS_RESET && persona::is_iwarp() {
            found.qp_state = IBV_QPS_INIT;
        }
        found.cur_qp_state = found.qp_state;
        found.cap = self.init.cap;
        found
    }

    /// Starts to close the connection, at the exit of the process. Returns whether there is a connection to wait for.
    fn close(&self) -> bool {
        let Kind::Stream(pair) = &self.kind else { return false };
        let has_connection = pair.qp().is_linked();
        pair.retire();
        has_connection
    }

    /// Waits until the connection is closed, or until `deadline`.
    fn wait_closed(&self, deadline: Instant) {
        if let Kind::Stream(pair) = &self.kind {
            // Whether the connection is closed in time makes no difference: the process exits.
            let _ = pair.wait_closed(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// Registers the hook that closes the connections of all queue pairs when the process exits, once.
fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| exit::add_hook(close_all));
}

/// Starts to close the connections of all queue pairs, when the process exits. Returns a function that waits until they
/// are closed, or until a deadline.
fn close_all() -> Box<dyn FnOnce(Instant)> {
    // Other threads may still destroy queue pairs. The references of this list keep them in memory.
    let mut closing = all::<Qp>();
    closing.retain(|qp| qp.close()); // keeps those with a connection to wait for
    Box::new(move |deadline| closing.iter().for_each(|qp| qp.wait_closed(deadline)))
}

/// Destroys one of the objects for a queue pair, of which only an XRC receive queue pair has several. With the last
/// one, the queue pair is destroyed and its connection starts to close. Waits until the program has acknowledged the
/// asynchronous events of the object.
pub(crate) fn destroy(c: *mut ibv_qp) -> Result<(), Errno> {
    let qp = begin_destroy::<Qp>(c)?;
    let is_last = qp.handles.fetch_sub(1, Ordering::AcqRel) == 1;
    if is_last && let Some(checker) = check::active() {
        checker.pair_destroyed(qp.context.adapter_key(), qp.number());
    }
    // A UD queue pair has no connection to close: it is destroyed when it is dropped.
    if let Kind::Stream(pair) = &qp.kind
        && is_last
    {
        report::forget_pair(pair.id());
        pair.retire();
    }
    qp.context.events().remove(Subject::Qp(qp.number()), c);
    qp.finish();
    Ok(())
}
