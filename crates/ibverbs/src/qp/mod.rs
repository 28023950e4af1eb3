//! Queue pairs: made, asked, destroyed. `state.rs` has the way through their states, `../post.rs` the data path.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

mod create;
mod open;
mod required;
mod state;

pub(crate) use create::{create_extended, create_qp_ex};
pub(crate) use open::open_qp;

use crate::abi::*;
use crate::async_event::Subject;
use crate::cm::Watch;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::{Errno, code, destroyed};
use crate::object::{CObject, begin_destroy, find, put};
use crate::pd::Pd;
use crate::persona;
use crate::qp_ex::{Builder, Building};
use crate::report;
use crate::sync::lock;
use ironwarp_engine::{DatagramQueuePair, QueuePair};
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::XrcDomain;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How many requests a queue holds at most.
pub(crate) const MOST_REQUESTS: u32 = 1 << 16;
/// How many scatter/gather elements a request has at most.
pub(crate) const MOST_SGES: u32 = 32;
/// How many bytes a request carries itself, even if the program asked for fewer: some post what they did not ask for.
pub(crate) const LEAST_INLINE: u32 = 256;
/// And at most.
pub(crate) const MOST_INLINE: u32 = 4096;

/// A queue pair. Each is an extended one, so that a pointer to either form is good.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    kind: Kind,
    init: ibv_qp_init_attr,
    /// The domain whose queues its messages name.
    xrc: Option<Arc<XrcDomain>>,
    attr: Arc<Mutex<ibv_qp_attr>>,
    /// What requests have been made of by the extended calls, since the last start.
    pub(crate) builder: UnsafeCell<Builder>,
    pub(crate) building: Building,
    /// How many objects there are for it: it can be opened once more.
    handles: Arc<AtomicUsize>,
    /// Where its connection manager hears of it, if it has one.
    watch: Option<Arc<Watch>>,
    /// Its C structure leads there.
    _pd: Option<Arc<Pd>>,
    context: Arc<Context>,
}

/// What carries its messages.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A connection: RC, UC, XRC.
    Stream(Arc<QueuePair>),
    /// Datagrams: UD.
    Datagram(Arc<DatagramQueuePair>),
}

// SAFETY: the C structure comes first. What is written in it after it was published is the state, by whoever modifies or
// queries the queue pair, and the extended part, by callers who take turns; the same holds for `builder`.
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

    /// The connection of one that has one.
    pub(crate) fn stream(&self) -> Option<&Arc<QueuePair>> {
        match &self.kind {
            Kind::Stream(pair) => Some(pair),
            Kind::Datagram(_) => None,
        }
    }

    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_deref()
    }

    pub(crate) fn number(&self) -> u32 {
        match &self.kind {
            Kind::Stream(pair) => pair.id(),
            Kind::Datagram(pair) => pair.id(),
        }
    }

    /// What it was created with.
    pub(crate) fn init(&self) -> &ibv_qp_init_attr {
        &self.init
    }

    pub(crate) fn is_xrc(&self) -> bool {
        matches!(self.init.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV)
    }

    fn attr(&self) -> MutexGuard<'_, ibv_qp_attr> {
        lock(&self.attr)
    }

    /// Keeps what a connection manager did to it, for queries.
    pub(crate) fn note(&self, change: impl FnOnce(&mut ibv_qp_attr)) {
        change(&mut self.attr());
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> State {
        match &self.kind {
            Kind::Stream(pair) => pair.qp().state(),
            Kind::Datagram(pair) => pair.qp().state(),
        }
    }

    /// The same, as the verbs number it, in the C structure as well.
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
        // SAFETY: a word that C only reads, as a hint.
        unsafe { (&raw mut (*self.c.get()).qp_base.state).write(state) };
        state
    }

    /// Closes its connection, at the end of the process; true: it has one.
    pub(crate) fn close(&self) -> bool {
        let Kind::Stream(pair) = &self.kind else { return false };
        let linked = pair.qp().is_linked();
        pair.retire();
        linked
    }

    pub(crate) fn wait_closed(&self, timeout: Duration) {
        if let Kind::Stream(pair) = &self.kind {
            let _ = pair.wait_closed(timeout);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code!(find::<Qp>(qp).map(|qp| {
        let mut found = *qp.attr();
        found.qp_state = qp.note_state();
        // An iWARP adapter has no reset state: a new queue pair is idle, which is what INIT stands for. It says so when it
        // is asked; in the C structure there is RESET, as the real library has it.
        if found.qp_state == IBV_QPS_RESET && persona::is_iwarp() {
            found.qp_state = IBV_QPS_INIT;
        }
        found.cur_qp_state = found.qp_state;
        found.cap = qp.init.cap;
        // SAFETY: NULL or the caller's.
        unsafe {
            put(attr, found);
            put(init, qp.init);
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    destroyed!(destroy(qp))
}

pub(crate) fn destroy(c: *mut ibv_qp) -> Result<(), Errno> {
    let qp = begin_destroy::<Qp>(c)?;
    let last = qp.handles.fetch_sub(1, Ordering::AcqRel) == 1;
    match &qp.kind {
        Kind::Stream(pair) if last => {
            report::forget(pair.id());
            pair.retire();
        }
        _ => {} // somebody else has it, or it is gone at once, when it is dropped
    }
    qp.context.events().remove(Subject::Qp(qp.number()), c);
    qp.finish();
    Ok(())
}

/// The same object, in its extended form.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    find::<Qp>(qp).map_or(std::ptr::null_mut(), |qp| qp.c().cast())
}

/// The completion queues and the domain of a new queue pair.
fn parts(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<(Arc<Pd>, [Arc<Cq>; 2]), Errno> {
    let pd = find::<Pd>(pd)?;
    let (send, receive) = match init.qp_type {
        // Each has one side only, whose queue serves for both.
        IBV_QPT_XRC_SEND => (init.send_cq, init.send_cq),
        _ => (init.send_cq, init.recv_cq),
    };
    let (send, receive) = (find::<Cq>(send.cast())?, find::<Cq>(receive.cast())?);
    let context = pd.context();
    if !Arc::ptr_eq(context, send.context()) || !Arc::ptr_eq(context, receive.context()) {
        return Err(Errno::INVALID.because("domain and completion queues are of different contexts"));
    }
    Ok((pd, [send, receive]))
}
