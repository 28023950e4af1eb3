//! Entry points for completion queues. A thread that polls also drives the connections of the queue.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::check;
use crate::objects::completion;
use crate::objects::context::Context;
use crate::objects::cq::{self, Cq, CqAttributes};
use crate::objects::limits::MAX_CQE;
use crate::support::errno::{Errno, code, destroy_code, object};
use crate::support::object::{CObject, Uses, find, find_unchecked};
use crate::support::report;
use ironwarp_rnic::queue::{Arm, Completion, Status};
use std::ffi::{c_int, c_void};
use std::time::Duration;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let attributes = CqAttributes { cq_context, channel, vector, ..CqAttributes::new(cqe) };
    object!(
        find::<Context>(context)
            .and_then(|context| Cq::new(&context, &attributes, Uses::default()))
            .map(|cq| cq.c().cast()),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    code!(find::<Cq>(cq.cast()).and_then(|cq| {
        if !(1..=MAX_CQE).contains(&cqe) {
            return Err(Errno::INVALID.because(format_args!("cqe {cqe} must be between 1 and {MAX_CQE}")));
        }
        cq.inner().cq().resize(cqe.unsigned_abs() as usize).map_err(|error| Errno::INVALID.because(error))?;
        // SAFETY: `cq` keeps the structure alive. The program must not read this field while it resizes the queue.
        unsafe { (*cq.c()).cqe = cqe };
        if let Some(checker) = check::active() {
            checker.cq_resized(cq.c() as usize, cqe.unsigned_abs() as usize);
        }
        Ok(())
    }))
}

/// Changes when the queue raises completion events: after `cq_count` completions or `cq_period` microseconds, whichever
/// comes first. A count or period of zero is ignored; with both zero, every completion raises an event
/// (ibv_modify_cq(3)). Verbs define no other attribute.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    code!(find::<Cq>(cq.cast()).and_then(|cq| {
        // SAFETY: NULL, or valid by the caller's contract (ibv_modify_cq(3)).
        let Some(ibv_modify_cq_attr { attr_mask, moderate }) = (unsafe { attr.as_ref() }) else {
            return Err(Errno::null("attr"));
        };
        if *attr_mask != IBV_CQ_ATTR_MODERATE {
            return Err(
                Errno::INVALID.because(format_args!("attr_mask {attr_mask:#x} must be IBV_CQ_ATTR_MODERATE"))
            );
        }
        let period = Duration::from_micros(moderate.cq_period.into());
        // A count of zero turns moderation off in the adapter. In verbs it does so only if the period is zero, too.
        let count = match moderate.cq_count {
            0 if !period.is_zero() => usize::MAX,
            count => count.into(),
        };
        Ok(cq.context().engine().moderate_cq(cq.inner(), count, period)?)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroy_code!(cq::destroy(cq.cast()))
}

/// Takes up to `max` completions and writes them to `to`. Returns their number, or -1 if the queue has overrun. This
/// is the data path, so the queue is not looked up in the table of live objects.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, max: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue, so the queue is alive.
    let cq: &Cq = unsafe { find_unchecked(cq.cast()) };
    // SAFETY: the caller has room for `max` completions.
    unsafe { poll_each(cq, max, to, |_, _| {}) }
}

/// Polls as [`poll_cq`] does, and calls `each` with every completion before the program gets it.
///
/// # Safety
/// `to` has room for `max` completions.
pub(super) unsafe fn poll_each(
    cq: &Cq,
    max: c_int,
    mut to: *mut ibv_wc,
    mut each: impl FnMut(&Completion, &ibv_wc),
) -> c_int {
    let Ok(max) = usize::try_from(max) else { return -1 };
    if cq.context().is_inherited() {
        return -1;
    }
    let mut failed = Vec::new();
    let polled = cq.inner().poll(max, |completion| {
        let wc = completion::to_c(&completion);
        each(&completion, &wc);
        // SAFETY: the caller has room for `max` completions, and the closure runs at most `max` times.
        unsafe {
            to.write(wc);
            to = to.add(1);
        }
        if completion.status != Status::Success {
            failed.push(completion);
        }
    });
    // Log after `poll` has unlocked the queue, because logging is slow.
    failed.iter().for_each(report::log_failed_request);
    // An error is an overrun, which also raises an asynchronous event. It is returned after all completions from
    // before the overrun have been polled.
    polled.map_or(-1, |polled| c_int::try_from(polled).unwrap_or(c_int::MAX))
}

/// Arms the queue, so that its next completion raises an event. This is the data path, like [`poll_cq`].
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue, so the queue is alive.
    arm(unsafe { find_unchecked(cq.cast()) }, solicited_only)
}

/// The same under `ironwarp run --check`, which looks the queue up in the table of live objects.
pub(crate) unsafe extern "C" fn req_notify_cq_checked(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    find::<Cq>(cq.cast()).map_or_else(|errno| errno.log("ibv_req_notify_cq").0, |cq| arm(&cq, solicited_only))
}

/// Arms a queue. Returns 0 or the errno.
fn arm(cq: &Cq, solicited_only: c_int) -> c_int {
    if cq.context().is_inherited() {
        return Errno::INHERITED.0;
    }
    let arm = if solicited_only == 0 { Arm::Next } else { Arm::Solicited };
    // The result says whether the queue holds completions already. In C the program polls again to find that out.
    let _ = cq.inner().arm(arm);
    0
}
