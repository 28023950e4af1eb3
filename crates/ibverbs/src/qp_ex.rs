//! Requests that are built by functions in the queue pair itself, between a start and a completion.

use crate::abi::*;

/// What has been built so far.
#[derive(Debug, Default)]
pub(crate) struct Builder;

/// Whether a queue pair of this type can have these functions.
pub(crate) fn serves(_: ibv_qp_type, _: u64) -> bool {
    false
}

/// Puts the functions into a queue pair.
pub(crate) fn fill(_: &mut ibv_qp_ex, _: u64) {}
