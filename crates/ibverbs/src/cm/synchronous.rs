//! Waits for the events of synchronous ids: each call on such an id waits for the event that reports its
//! result.
#![expect(unsafe_code, reason = "structures of C")]

use super::delivered::acknowledge;
use super::event::next_event;
use super::id::Id;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::Errno;
use crate::support::object::{CObject, find};
use std::sync::Arc;

/// Waits for the next event of a synchronous id, and returns it with the id. Returns `None` at once if the id is
/// not synchronous. The thread may be cancelled while it waits: nothing with a destructor is alive then, and the
/// id is looked up again afterwards.
pub(super) fn wait_event(c: *mut rdma_cm_id) -> Result<Option<(Arc<Id>, *mut rdma_cm_event)>, Errno> {
    let channel = without_cancellation(|| {
        find::<Id>(c).map(|id| {
            id.is_synchronous().then(|| {
                id.acknowledge_last_event();
                id.channel()
            })
        })
    })?;
    let Some(channel) = channel else { return Ok(None) };
    let event = next_event(channel)?;
    match without_cancellation(|| find::<Id>(c)) {
        Ok(id) => Ok(Some((id, event))),
        Err(errno) => {
            let _ = acknowledge(event);
            Err(errno)
        }
    }
}

/// Waits for the event that reports the result of a call, if the id is synchronous, and converts it to the
/// result. The id keeps the event for the program until the next call. The thread may be cancelled while it
/// waits.
pub(super) fn wait_if_synchronous(c: *mut rdma_cm_id) -> Result<(), Errno> {
    let Some((id, event)) = wait_event(c)? else { return Ok(()) };
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`). The event is valid until
    // it is acknowledged, which only a later call on this id does.
    let (kind, status) = unsafe {
        (*id.c()).event = event;
        ((*event).event, (*event).status)
    };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}
