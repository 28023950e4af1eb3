//! Completion queues that are polled one completion at a time, through functions in the queue itself.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::errno::{Errno, object};
use ironwarp_rnic::queue::Completion;

/// The completion that is looked at.
#[derive(Debug, Default)]
pub(crate) struct Current(Option<Completion>);

pub(crate) unsafe extern "C" fn create_cq_ex(
    _: *mut ibv_context,
    _: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object(Err(Errno::UNSUPPORTED))
}
