//! Synchronous ids, whose calls wait for the event that they lead to.
#![expect(unsafe_code, reason = "structures of C")]

use super::delivered::acknowledge;
use super::event::next_event;
use super::id::Id;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::Errno;
use crate::support::object::{CObject, find};
use std::sync::Arc;

/// Waits for the next event of an id. Returns `None` if the id is not synchronous. The thread may be
/// cancelled here: nothing with a destructor is alive while it waits, and the id is looked up again
/// afterwards.
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

/// Waits for the event that a call leads to, if the id is synchronous. The thread may be cancelled here.
pub(super) fn complete(c: *mut rdma_cm_id) -> Result<(), Errno> {
    let Some((id, event)) = wait_event(c)? else { return Ok(()) };
    // SAFETY: the program's structure, which no other call uses meanwhile. The event was just taken.
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
