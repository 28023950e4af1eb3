//! Events that the program has taken and not acknowledged yet (`rdma_cm_event`).
#![expect(unsafe_code, reason = "holds a C structure")]

use super::state::Shared;
use crate::abi::rdma_cm_event;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, destroy_object, publish};
use std::sync::Arc;

/// An event that the program has taken.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Delivered {
    c: CCell<rdma_cm_event>,
    /// State of the id that counts this event as not acknowledged.
    about: Arc<Shared>,
    /// The private data that the C structure points to.
    _private_data: Box<[u8]>,
}

// SAFETY: the C structure is the first field of a `repr(C)` structure. It is not written after `publish`.
unsafe impl CObject for Delivered {
    type C = rdma_cm_event;
}

impl Delivered {
    /// Creates the event that the program gets. The C structure points to `private_data`, which lives until the
    /// event is acknowledged.
    pub(super) fn publish(
        c: rdma_cm_event,
        about: Arc<Shared>,
        private_data: Box<[u8]>,
    ) -> *mut rdma_cm_event {
        publish(Self { c: CCell::new(c), about, _private_data: private_data }, Uses::default()).c()
    }
}

/// Acknowledges an event, which frees it. EINVAL if the program has acknowledged it already.
pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    let event = destroy_object::<Delivered>(event)?;
    event.about.acknowledge();
    Ok(())
}
