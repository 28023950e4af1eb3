//! Entry points for completion channels.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::channel::{self, Channel, Taken};
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, destroy_code, minus_one, object};
use crate::support::object::{CObject, find, put};
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object!(find::<Context>(context).and_then(Channel::new).map(|channel| channel.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    destroy_code!(channel::destroy(channel))
}

/// Waits for a completion event. The program may cancel the thread while it waits, so nothing with a destructor is
/// alive then: the reference to the channel is dropped before, and the channel is looked up again afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let found = loop {
        let mut list = match without_cancellation(|| find::<Channel>(channel).map(|channel| channel.take())) {
            Err(_) => return minus_one!(Err(Errno::INVALID)),
            Ok(Taken::Nothing) => return minus_one!(Err(Errno::AGAIN)),
            Ok(Taken::Retry) => continue,
            Ok(Taken::Wait(list)) => list,
            Ok(Taken::Event(cq)) => break cq,
        };
        if let Err(errno) = list.wait() {
            without_cancellation(channel::end_wait);
            return minus_one!(Err(errno));
        }
        // Without an event, another thread took it, or destroyed the channel, which the next round reports.
        let next = || match find::<Channel>(channel) {
            Ok(channel) => channel.end_wait_and_take(),
            Err(_) => {
                channel::end_wait();
                None
            }
        };
        if let Some(cq) = without_cancellation(next) {
            break cq;
        }
    };
    let c = found.cq();
    // SAFETY: both pointers are NULL or valid by the caller's contract, and `found` keeps the queue alive.
    unsafe {
        put(cq, c);
        put(cq_context, (*c).cq_context);
    }
    0
}

/// Counts completion events as acknowledged, so that the queue can be destroyed. Ignores an invalid pointer, because
/// the call cannot return an error.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // Every `Cq` has the extended form, which begins with `ibv_cq`.
    if let Ok(cq) = find::<Cq>(cq.cast()) {
        cq.acknowledge_events(events);
    }
}
