//! Completion queues. Polling makes progress on the program's thread.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::async_event::Subject;
use crate::objects::channel::{Channel, EventTarget};
use crate::objects::context::Context;
use crate::objects::limits::MAX_CQE;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, begin_destroy, find, publish};
use crate::support::turn::Turn;
use ironwarp_engine::CompletionQueue;
use ironwarp_rnic::sync::{self, lock};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex};

/// A completion queue. Every queue has the extended form, so that a pointer to either form is valid.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    c: CCell<ibv_cq_ex>,
    inner: Arc<CompletionQueue>,
    channel: Mutex<Option<Arc<Channel>>>,
    /// Events that were delivered and not acknowledged.
    pending: Mutex<u64>,
    acknowledged: Condvar,
    /// The completion that the extended calls read.
    pub(crate) current: CCell<Current>,
    /// Threads that use the extended calls take turns.
    pub(crate) turn: Turn,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first. After publication only callers of the extended interface write to it
// and to `current`, and they take turns.
unsafe impl CObject for Cq {
    type C = ibv_cq_ex;
}

/// The completion that is being read, between a start and an end.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) wc: ibv_wc,
    /// Nanoseconds of the monotonic clock.
    pub(crate) time: u64,
}

impl Default for Current {
    fn default() -> Self {
        Self { wc: ibv_wc::zeroed(), time: 0 }
    }
}

/// What to create a queue with.
#[derive(Debug)]
pub(crate) struct CqAttributes {
    pub(crate) cqe: c_int,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: c_int,
    /// Puts the functions of the extended interface into the C structure.
    pub(crate) extend: Option<fn(&mut ibv_cq_ex)>,
    /// The program promised to poll from one thread at a time.
    pub(crate) single_threaded: bool,
}

impl CqAttributes {
    /// A plain queue with this many entries.
    pub(crate) fn new(cqe: c_int) -> Self {
        let (cq_context, channel) = (ptr::null_mut(), ptr::null_mut());
        Self { cqe, cq_context, channel, vector: 0, extend: None, single_threaded: false }
    }
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        wanted: &CqAttributes,
        mut uses: Uses,
    ) -> Result<Arc<Self>, Errno> {
        let (lanes, vector) = (context.engine().steering().lanes(), usize::try_from(wanted.vector).ok());
        let Some(vector) = vector.filter(|vector| (1..=MAX_CQE).contains(&wanted.cqe) && *vector < lanes)
        else {
            return Err(Errno::INVALID.because(format_args!(
                "cqe {} must be between 1 and {MAX_CQE}, and comp_vector {} less than num_comp_vectors",
                wanted.cqe, wanted.vector
            )));
        };
        let channel = match wanted.channel.is_null() {
            true => None,
            false => Some(find::<Channel>(wanted.channel)?),
        };
        if let Some(channel) = &channel {
            uses = uses.and(&**channel)?;
        }
        let capacity = wanted.cqe.unsigned_abs() as usize;
        // One lane for each vector (requirement N5).
        let inner = match vector {
            0 => context.engine().create_cq_with_default_vector(capacity)?,
            lane => context.engine().create_cq_on(capacity, lane)?,
        };
        let id = inner.cq().id();
        let mut c = ibv_cq_ex::zeroed();
        c.context = context.c();
        c.channel = wanted.channel;
        c.cq_context = wanted.cq_context;
        c.handle = id;
        c.cqe = wanted.cqe;
        c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        c.cond = libc::PTHREAD_COND_INITIALIZER;
        if let Some(extend) = wanted.extend {
            extend(&mut c);
        }
        let cq = Self {
            c: CCell::new(c),
            inner,
            channel: Mutex::new(channel.clone()),
            pending: Mutex::default(),
            acknowledged: Condvar::new(),
            current: CCell::default(),
            turn: Turn::new(wanted.single_threaded),
            context: Arc::clone(context),
        };
        let cq = publish(cq, uses);
        context.events().add(Subject::Cq(id), cq.c());
        if let Some(channel) = channel {
            let target = Arc::downgrade(&cq);
            channel.add(&cq.inner, target);
        }
        Ok(cq)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn inner(&self) -> &Arc<CompletionQueue> {
        &self.inner
    }

    pub(crate) fn events_acknowledged(&self, events: u32) {
        let mut pending = lock(&self.pending);
        *pending = pending.saturating_sub(events.into());
        self.acknowledged.notify_all();
    }

    /// Waits until all delivered events are acknowledged, as destroying a queue must.
    fn wait_for_acknowledgements(&self) {
        let mut pending = lock(&self.pending);
        while *pending > 0 {
            pending = sync::wait(&self.acknowledged, pending);
        }
    }
}

impl EventTarget for Cq {
    fn cq(&self) -> *mut ibv_cq {
        self.c().cast()
    }

    fn event_delivered(&self) {
        *lock(&self.pending) += 1;
    }
}

/// Destroys a completion queue.
pub(crate) fn destroy(c: *mut ibv_cq_ex) -> Result<(), Errno> {
    let cq = begin_destroy::<Cq>(c)?;
    let channel = lock(&cq.channel).take();
    if let Some(channel) = channel {
        channel.remove(&cq.inner);
    }
    cq.wait_for_acknowledgements();
    cq.context.events().remove(Subject::Cq(cq.inner.cq().id()), c);
    cq.finish();
    Ok(())
}
