//! Completion queues of C programs.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::check;
use crate::objects::async_event::Subject;
use crate::objects::channel::{Channel, EventTarget};
use crate::objects::context::Context;
use crate::objects::limits::MAX_CQE;
use crate::support::acknowledge::wait_until_acknowledged;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, begin_destroy, find, publish};
use crate::support::turn::Turn;
use ironwarp_engine::CompletionQueue;
use ironwarp_rnic::sync::lock;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex};

/// A completion queue. Every queue has the extended form, so that a pointer to either form is valid.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    c: CCell<ibv_cq_ex>,
    inner: Arc<CompletionQueue>,
    /// The channel that delivers the events of this queue. `None` without one, and once the queue is being destroyed.
    channel: Mutex<Option<Arc<Channel>>>,
    pending: Mutex<PendingEvents>,
    /// Signalled when `pending` decreases and a thread waits for that.
    acknowledged: Condvar,
    /// The completion that the extended calls read. The thread that has the `turn` accesses it.
    pub(crate) current: CCell<Current>,
    /// The right to use the extended calls, from `start_poll` to `end_poll`.
    pub(crate) turn: Turn,
    context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Cq {
    type C = ibv_cq_ex;
}

/// The completion events that were delivered and not acknowledged.
#[derive(Debug, Default)]
struct PendingEvents {
    count: u64,
    /// Whether a thread waits for the acknowledgements. Without one, an acknowledgement makes no system call.
    awaited: bool,
}

/// The completion that the program reads by the extended calls, between `start_poll` and `end_poll`.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) wc: ibv_wc,
    /// When the request completed, in nanoseconds of the monotonic clock. Zero if the program did not ask for times.
    pub(crate) time: u64,
}

impl Default for Current {
    fn default() -> Self {
        Self { wc: ibv_wc::zeroed(), time: 0 }
    }
}

/// The attributes of a new completion queue.
#[derive(Debug)]
pub(crate) struct CqAttributes {
    /// Number of entries.
    pub(crate) cqe: c_int,
    pub(crate) cq_context: *mut c_void,
    /// The channel for completion events, or NULL.
    pub(crate) channel: *mut ibv_comp_channel,
    /// The completion vector, which is the number of a lane.
    pub(crate) vector: c_int,
    /// Writes the functions of the extended interface to the C structure.
    pub(crate) extend: Option<fn(&mut ibv_cq_ex)>,
    /// Whether the program promised to poll from one thread at a time.
    pub(crate) single_threaded: bool,
}

impl CqAttributes {
    /// Returns the attributes of a queue with `cqe` entries, without events and extended interface.
    pub(crate) fn new(cqe: c_int) -> Self {
        let (cq_context, channel) = (ptr::null_mut(), ptr::null_mut());
        Self { cqe, cq_context, channel, vector: 0, extend: None, single_threaded: false }
    }
}

impl Cq {
    /// Creates a queue. `uses` names the objects that the queue depends on, besides the channel.
    pub(crate) fn new(
        context: &Arc<Context>,
        attributes: &CqAttributes,
        mut uses: Uses,
    ) -> Result<Arc<Self>, Errno> {
        let (lanes, vector) = (context.engine().steering().lanes(), usize::try_from(attributes.vector).ok());
        let Some(vector) = vector.filter(|vector| (1..=MAX_CQE).contains(&attributes.cqe) && *vector < lanes)
        else {
            return Err(Errno::INVALID.because(format_args!(
                "cqe {} must be between 1 and {MAX_CQE}, and comp_vector {} less than num_comp_vectors",
                attributes.cqe, attributes.vector
            )));
        };
        let channel = match attributes.channel.is_null() {
            true => None,
            false => Some(find::<Channel>(attributes.channel)?),
        };
        if let Some(channel) = &channel {
            context.check_same_adapter(channel.context(), "completion channel")?;
            uses = uses.and(&**channel)?;
        }
        if let Some(checker) = check::active() {
            checker.creating_cq(attributes.cqe.unsigned_abs());
        }
        let capacity = attributes.cqe.unsigned_abs() as usize;
        // Each vector is a lane (requirement N5). Programs that do not care pass 0, so vector 0 only means lane 0 if
        // the program uses another vector as well.
        let inner = match vector {
            0 => context.engine().create_cq_with_default_vector(capacity)?,
            lane => context.engine().create_cq_on(capacity, lane)?,
        };
        let id = inner.cq().id();
        let mut c = ibv_cq_ex::zeroed();
        c.context = context.c();
        c.channel = attributes.channel;
        c.cq_context = attributes.cq_context;
        c.handle = id;
        c.cqe = attributes.cqe;
        c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        c.cond = libc::PTHREAD_COND_INITIALIZER;
        if let Some(extend) = attributes.extend {
            extend(&mut c);
        }
        let cq = Self {
            c: CCell::new(c),
            inner,
            channel: Mutex::new(channel.clone()),
            pending: Mutex::default(),
            acknowledged: Condvar::new(),
            current: CCell::default(),
            turn: Turn::new(attributes.single_threaded),
            context: Arc::clone(context),
        };
        let cq = publish(cq, uses);
        if let Some(checker) = check::active() {
            checker.cq_created(cq.c() as usize, id, capacity);
        }
        context.events().add(Subject::Cq(id), cq.c());
        if let Some(channel) = channel {
            let target = Arc::downgrade(&cq); // weak, because the queue holds the channel
            channel.add(&cq.inner, target);
        }
        Ok(cq)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the completion queue of the adapter.
    pub(crate) fn inner(&self) -> &Arc<CompletionQueue> {
        &self.inner
    }

    /// Counts `events` delivered completion events as acknowledged (`ibv_ack_cq_events`).
    pub(crate) fn acknowledge_events(&self, events: u32) {
        let mut pending = lock(&self.pending);
        pending.count = pending.count.saturating_sub(events.into());
        if pending.awaited {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until all delivered completion events are acknowledged, as ibv_destroy_cq(3) requires.
    fn wait_for_acknowledgements(&self) {
        let mut pending = lock(&self.pending);
        pending.awaited = true;
        let name = format!("completion queue {}", self.inner.cq().id());
        drop(wait_until_acknowledged(&self.acknowledged, pending, &name, |it| it.count));
    }
}

impl EventTarget for Cq {
    fn cq(&self) -> *mut ibv_cq {
        self.c().cast()
    }

    fn record_delivery(&self) {
        lock(&self.pending).count += 1;
    }
}

/// Destroys a completion queue, after waiting until its delivered events are acknowledged.
pub(crate) fn destroy(c: *mut ibv_cq_ex) -> Result<(), Errno> {
    let cq = begin_destroy::<Cq>(c)?;
    let channel = lock(&cq.channel).take();
    if let Some(channel) = channel {
        channel.remove(&cq.inner);
    }
    cq.wait_for_acknowledgements();
    cq.context.events().remove(Subject::Cq(cq.inner.cq().id()), c);
    if let Some(checker) = check::active() {
        checker.cq_destroyed(c as usize);
    }
    cq.finish();
    Ok(())
}
