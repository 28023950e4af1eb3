//! Entry points for asynchronous events.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::async_event::Subject;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{find, put};
use crate::support::wake::wait;
use std::ffi::c_int;

/// Waits for an event. The program may cancel the thread while it waits, so nothing with a destructor is alive then:
/// the reference to the context is dropped before, and the context is looked up again afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    if event.is_null() {
        return minus_one!(Err(Errno::null("event")));
    }
    loop {
        let fd = without_cancellation(|| {
            find::<Context>(context).map(|context| context.events().watch_port().fd())
        });
        let Ok(fd) = fd else { return minus_one!(Err(Errno::INVALID)) };
        if let Err(errno) = wait(fd) {
            return minus_one!(Err(errno));
        }
        // Without an event, another thread took it, or closed the device, which the next round reports.
        if let Some(next) = without_cancellation(|| find::<Context>(context).ok()?.events().next()) {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(event, next) };
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    if event.is_null() {
        return;
    }
    // SAFETY: `event` is not NULL, and valid by the caller's contract.
    let event = unsafe { *event };
    match event.event_type {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: the member that is valid for this type of event.
            let qp = unsafe { event.element.qp };
            if let Ok(qp) = find::<Qp>(qp) {
                qp.context().events().acknowledge(Subject::Qp(qp.number()));
            }
        }
        IBV_EVENT_CQ_ERR => {
            // SAFETY: the member that is valid for this type of event.
            let cq = unsafe { event.element.cq };
            if let Ok(cq) = find::<Cq>(cq.cast()) {
                cq.context().events().acknowledge(Subject::Cq(cq.inner().cq().id()));
            }
        }
        IBV_EVENT_SRQ_LIMIT_REACHED | IBV_EVENT_SRQ_ERR => {
            // SAFETY: the member that is valid for this type of event.
            let srq = unsafe { event.element.srq };
            if let Ok(srq) = find::<Srq>(srq) {
                srq.context().events().acknowledge(Subject::Srq(srq.inner().id()));
            }
        }
        _ => {} // events of the port and the device need no acknowledgement
    }
}
