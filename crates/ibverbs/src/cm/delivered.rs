//! Events that the program has taken and not acknowledged yet.
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
    about: Arc<Shared>,
    /// The private data that the C structure points to.
    _private_data: Box<[u8]>,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Delivered {
    type C = rdma_cm_event;
}

impl Delivered {
    /// Hands an event to the program. The C structure points to `private_data`.
    pub(super) fn publish(
        c: rdma_cm_event,
        about: Arc<Shared>,
        private_data: Box<[u8]>,
    ) -> *mut rdma_cm_event {
        publish(Self { c: CCell::new(c), about, _private_data: private_data }, Uses::default()).c()
    }
}

/// Acknowledges and frees an event.
pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    let event = destroy_object::<Delivered>(event)?;
    event.about.acknowledge();
    Ok(())
}
