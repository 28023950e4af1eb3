//! Completion queues. Polling makes progress on the program's thread.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::async_event::Subject;
use crate::channel::Channel;
use crate::completion;
use crate::context::Context;
use crate::cq_ex::{Current, Polling};
use crate::errno::{Errno, code, destroyed, object};
use crate::object::{CObject, Uses, begin_destroy, find, publish, trusted};
use crate::report;
use crate::sync::lock;
use ironwarp_engine::CompletionQueue;
use ironwarp_rnic::queue::{Arm, Status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The largest queue that is made.
pub(crate) const MOST: c_int = 1 << 22;

/// A completion queue. Each is an extended one, so that a pointer to either form is good.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    c: UnsafeCell<ibv_cq_ex>,
    inner: Arc<CompletionQueue>,
    channel: Mutex<Option<Arc<Channel>>>,
    /// Events that were delivered and not acknowledged.
    pending: Mutex<u64>,
    acknowledged: Condvar,
    /// The completion that the extended calls look at.
    pub(crate) current: UnsafeCell<Current>,
    pub(crate) polling: Polling,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first. What is written in it after it was published, the callers of the extended interface
// write, who take turns; the same holds for `current`.
unsafe impl CObject for Cq {
    type C = ibv_cq_ex;
}
// SAFETY: as above.
unsafe impl Sync for Cq {}
// SAFETY: as above.
unsafe impl Send for Cq {}

/// What a queue is made with.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) cqe: c_int,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: c_int,
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        wanted: &Wanted,
        mut uses: Uses,
        extended: impl FnOnce(&mut ibv_cq_ex, &mut Polling),
    ) -> Result<Arc<Self>, Errno> {
        let (lanes, vector) = (context.engine().steering().lanes(), usize::try_from(wanted.vector).ok());
        let Some(vector) = vector.filter(|vector| (1..=MOST).contains(&wanted.cqe) && *vector < lanes) else {
            return Err(Errno::INVALID.because(format_args!(
                "cqe {} must be from 1 to {MOST}, comp_vector {} less than num_comp_vectors",
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
        // A lane for each vector (requirement N5).
        let inner = match vector {
            0 => context.engine().create_cq_by_default(capacity)?,
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
        let mut polling = Polling::default();
        extended(&mut c, &mut polling);
        let cq = Self {
            c: UnsafeCell::new(c),
            inner,
            channel: Mutex::new(channel.clone()),
            pending: Mutex::default(),
            acknowledged: Condvar::new(),
            current: UnsafeCell::default(),
            polling,
            context: Arc::clone(context),
        };
        let cq = publish(cq, uses);
        context.events().add(Subject::Cq(id), cq.c());
        if let Some(channel) = channel {
            channel.add(&cq);
        }
        Ok(cq)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn inner(&self) -> &Arc<CompletionQueue> {
        &self.inner
    }

    pub(crate) fn event_delivered(&self) {
        *lock(&self.pending) += 1;
    }

    pub(crate) fn events_acknowledged(&self, events: u32) {
        let mut pending = lock(&self.pending);
        *pending = pending.saturating_sub(events.into());
        self.acknowledged.notify_all();
    }

    /// A queue whose events are not all acknowledged is not destroyed before they are.
    fn wait_for_acknowledgements(&self) {
        let mut pending = lock(&self.pending);
        while *pending > 0 {
            pending = self.acknowledged.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let wanted = Wanted { cqe, cq_context, channel, vector };
    object!(
        find::<Context>(context)
            .and_then(|context| Cq::new(&context, &wanted, Uses::default(), |_, _| ()))
            .map(|cq| cq.c().cast()),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    code!(find::<Cq>(cq.cast()).and_then(|cq| {
        if !(1..=MOST).contains(&cqe) {
            return Err(Errno::INVALID.because(format_args!("cqe {cqe} must be from 1 to {MOST}")));
        }
        cq.inner.cq().resize(cqe.unsigned_abs() as usize).map_err(|error| Errno::INVALID.because(error))?;
        // SAFETY: resizing and reading this field at once is the caller's mistake.
        unsafe { (*cq.c.get()).cqe = cqe };
        Ok(())
    }))
}

/// Moderation is all that can be changed. As the manual has it, a count or a period of zero is no limit.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    code!(find::<Cq>(cq.cast()).and_then(|cq| {
        // SAFETY: NULL, or the caller's structure, as ibv_modify_cq(3) has it.
        let Some(ibv_modify_cq_attr { attr_mask, moderate }) = (unsafe { attr.as_ref() }) else {
            return Err(Errno::INVALID.because("there are no attributes"));
        };
        if *attr_mask != IBV_CQ_ATTR_MODERATE {
            return Err(Errno::INVALID.because(format_args!(
                "attr_mask {attr_mask:#x}: IBV_CQ_ATTR_MODERATE is all that there is"
            )));
        }
        let period = Duration::from_micros(moderate.cq_period.into());
        let count = match moderate.cq_count {
            0 if !period.is_zero() => usize::MAX,
            count => count.into(),
        };
        Ok(cq.context.engine().moderate_cq(&cq.inner, count, period)?)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroyed!(destroy(cq.cast()))
}

pub(crate) fn destroy(c: *mut ibv_cq_ex) -> Result<(), Errno> {
    let cq = begin_destroy::<Cq>(c)?;
    let channel = lock(&cq.channel).take();
    if let Some(channel) = channel {
        channel.remove(&cq);
    }
    cq.wait_for_acknowledgements();
    cq.context.events().remove(Subject::Cq(cq.inner.cq().id()), c);
    cq.finish();
    Ok(())
}

/// The data path: up to `most` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, mut to: *mut ibv_wc) -> c_int {
    let Ok(most) = usize::try_from(most) else { return -1 };
    // SAFETY: inline code of the headers has read the context of this queue to get here.
    let cq: &Cq = unsafe { trusted(cq.cast()) };
    if cq.context.is_inherited() {
        return -1;
    }
    let mut failed = Vec::new();
    let polled = cq.inner.poll(most, |completion| {
        // SAFETY: the caller has room for `most`, and no more come.
        unsafe {
            to.write(completion::to_c(&completion));
            to = to.add(1);
        }
        if completion.status != Status::Success {
            failed.push(completion);
        }
    });
    // Not before: the queue was locked.
    failed.iter().for_each(report::failed);
    // An overrun is told by an asynchronous event; what was there before it has been polled.
    polled.map_or(-1, |polled| c_int::try_from(polled).unwrap_or(c_int::MAX))
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: inline code of the headers has read the context of this queue to get here.
    let cq: &Cq = unsafe { trusted(cq.cast()) };
    if cq.context.is_inherited() {
        return Errno::INHERITED.0;
    }
    let arm = if solicited_only == 0 { Arm::Next } else { Arm::Solicited };
    let _there = cq.inner.arm(arm);
    0
}
