//! Queue pairs. `state.rs` has their states, `verbs/post.rs` the data path.
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
    init: ibv_qp_init_attr,
    /// The XRC domain whose shared receive queues its messages name.
    xrc: Option<Arc<XrcDomain>>,
    attr: Arc<Mutex<ibv_qp_attr>>,
    /// Requests that the extended calls have built since the last start.
    pub(crate) builder: CCell<Builder>,
    /// Threads that use the extended calls take turns.
    pub(crate) turn: Turn,
    /// Number of objects for this queue pair, which can be opened several times.
    handles: Arc<AtomicUsize>,
    /// Where its connection manager gets its events, if it has one.
    relay: Option<Arc<EventRelay>>,
    /// Kept alive because the C structure points to it.
    _pd: Option<Arc<Pd>>,
    context: Arc<Context>,
}

/// The transport of a queue pair.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A connection: RC, UC, XRC.
    Stream(Arc<QueuePair>),
    /// Datagrams: UD.
    Datagram(Arc<DatagramQueuePair>),
}

// SAFETY: the C structure comes first. After publication, the state in it is written by callers that modify
// or query the queue pair. The extended part and `builder` are written by callers that take turns.
unsafe impl CObject for Qp {
    type C = ibv_qp;
}
// SAFETY: as above.
unsafe impl Sync for Qp {}
// SAFETY: as above.
unsafe impl Send for Qp {}

impl Qp {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The connected queue pair of the adapter, unless this is a UD queue pair.
    pub(crate) fn stream(&self) -> Option<&Arc<QueuePair>> {
        match &self.kind {
            Kind::Stream(pair) => Some(pair),
            Kind::Datagram(_) => None,
        }
    }

    pub(crate) fn relay(&self) -> Option<&EventRelay> {
        self.relay.as_deref()
    }

    pub(crate) fn number(&self) -> u32 {
        match &self.kind {
            Kind::Stream(pair) => pair.id(),
            Kind::Datagram(pair) => pair.id(),
        }
    }

    /// The attributes that it was created with.
    pub(crate) fn init(&self) -> &ibv_qp_init_attr {
        &self.init
    }

    pub(crate) fn is_xrc(&self) -> bool {
        matches!(self.init.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV)
    }

    fn attr(&self) -> MutexGuard<'_, ibv_qp_attr> {
        lock(&self.attr)
    }

    /// Records attributes that a connection manager set, for queries.
    pub(crate) fn note(&self, change: impl FnOnce(&mut ibv_qp_attr)) {
        change(&mut self.attr());
    }

    /// The current state.
    pub(crate) fn state(&self) -> State {
        match &self.kind {
            Kind::Stream(pair) => pair.qp().state(),
            Kind::Datagram(pair) => pair.qp().state(),
        }
    }

    /// The current state in C. Also updates it in the C structure.
    fn note_state(&self) -> ibv_qp_state {
        let state = match self.state() {
            State::Reset => IBV_QPS_RESET,
            State::Init => IBV_QPS_INIT,
            State::ReadyToReceive => IBV_QPS_RTR,
            State::ReadyToSend => IBV_QPS_RTS,
            State::Drained => IBV_QPS_SQD,
            State::SendError => IBV_QPS_SQE,
            State::Error => IBV_QPS_ERR,
        };
        // SAFETY: a field that C only reads, as a hint.
        unsafe { (&raw mut (*self.c.get()).qp_base.state).write(state) };
        state
    }

    /// The attributes that `ibv_query_qp` returns.
    pub(crate) fn query(&self) -> ibv_qp_attr {
        let mut found = *self.attr();
        found.qp_state = self.note_state();
        // iWARP has no RESET state: a new queue pair is idle, which corresponds to INIT. A query says so,
        // while the C structure has RESET, as in the real library.
        if found.qp_state == IBV_QPS_RESET && persona::is_iwarp() {
            found.qp_state = IBV_QPS_INIT;
        }
        found.cur_qp_state = found.qp_state;
        found.cap = self.init.cap;
        found
    }

    /// Starts closing its connection. Returns whether it has one.
    fn close(&self) -> bool {
        let Kind::Stream(pair) = &self.kind else { return false };
        let linked = pair.qp().is_linked();
        pair.retire();
        linked
    }

    fn wait_closed(&self, deadline: Instant) {
        if let Kind::Stream(pair) = &self.kind {
            let _ = pair.wait_closed(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// Has the connections of all queue pairs closed at the end of the process.
fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| exit::add_hook(close_all));
}

fn close_all() -> Box<dyn FnOnce(Instant)> {
    // Other threads may still destroy them. They stay in memory while this holds them.
    let mut closing = all::<Qp>();
    closing.retain(|qp| qp.close());
    Box::new(move |deadline| closing.iter().for_each(|qp| qp.wait_closed(deadline)))
}

/// Destroys a queue pair.
pub(crate) fn destroy(c: *mut ibv_qp) -> Result<(), Errno> {
    let qp = begin_destroy::<Qp>(c)?;
    let last = qp.handles.fetch_sub(1, Ordering::AcqRel) == 1;
    match &qp.kind {
        Kind::Stream(pair) if last => {
            report::forget_pair(pair.id());
            pair.retire();
        }
        _ => {} // another object still uses it, or dropping it is enough
    }
    qp.context.events().remove(Subject::Qp(qp.number()), c);
    qp.finish();
    Ok(())
}
