//! An entry of the send queue: a request that was posted and has not completed.

use super::{Completion, Data, Opcode, Operation, Status, WorkRequest};
use crate::error::{PostError, QpError};
use ironwarp_wire::{AtomicOp, Place};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: WorkRequest,
    /// The number of its message within the request class. It is delivered when this many were acknowledged.
    pub(super) number: u64,
    /// Its message sequence number, if it is on queue 0 or 1.
    pub(super) msn: u32,
    /// The link has taken all of it.
    pub(super) sent: bool,
    /// A Read was answered, or a local operation was executed.
    pub(super) done: bool,
    /// It will never be started. The next element of [`Refusals::ends`] says how it ends.
    pub(super) refused: bool,
}

/// A Read or Atomic Request that was not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingRead {
    pub(crate) kind: ReadKind,
    /// The sequence number of the work request. `None` for a Read of the adapter itself, which requests no data.
    pub(crate) entry: Option<u64>,
    /// Number of messages that the response acknowledges, because they were delivered before it (RFC 5040 §5.5).
    pub(crate) number: u64,
    /// The sink named in the request, if any.
    pub(crate) sink: Place,
    pub(crate) len: u32,
    /// Number of bytes received.
    pub(crate) received: u32,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadKind {
    Read,
    /// Read V2: the request does not name the sink (requirement X4).
    ReadV2,
    /// With this identifier, which the response returns (RFC 7306 §5.2).
    Atomic(u32),
}

/// Requests that were refused, and those flushed because of that. Allocated when first needed.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Why posted requests are flushed. `None` after the consumer has moved the queue pair back.
    pub(super) refusing: Option<Arc<QpError>>,
    /// How the refused requests that are not complete yet will end, in order.
    pub(super) ends: VecDeque<(Status, Arc<QpError>)>,
}

impl Entry {
    pub(super) fn new(request: WorkRequest) -> Self {
        Self { request, number: 0, msn: 0, sent: false, done: false, refused: false }
    }
}

/// Checks a request without looking up memory.
pub(super) fn check_request(request: &WorkRequest, max_sges: usize) -> Result<(), PostError> {
    if let Data::Memory(sges) = &request.data
        && sges.as_slice().len() > max_sges
    {
        return Err(PostError::TooManySges { have: sges.as_slice().len(), limit: max_sges });
    }
    let len = request.data.len();
    if len > u64::from(MAX_MESSAGE) {
        return Err(PostError::MessageTooLong { len, limit: MAX_MESSAGE });
    }
    let inline = matches!(request.data, Data::Inline(_));
    match request.operation {
        Operation::Read(_) if inline && len > 0 => Err(PostError::InlineRead),
        Operation::Atomic { .. } if inline || len != ATOMIC_LEN => Err(PostError::AtomicData { len }),
        _ => Ok(()),
    }
}

/// The maximum length of a message: 2 GiB, as with hardware.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Length of the result of an atomic operation.
const ATOMIC_LEN: u64 = 8;

const fn opcode_of(request: &WorkRequest) -> Opcode {
    match request.operation {
        Operation::Send { .. } => Opcode::Send,
        Operation::Write(_) => Opcode::Write,
        Operation::Read(_) => Opcode::Read,
        Operation::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => Opcode::CompareSwap,
        Operation::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => Opcode::FetchAdd,
        Operation::Bind { .. } | Operation::BindAs { .. } => Opcode::Bind,
        Operation::Register { .. } => Opcode::Register,
        Operation::Invalidate(_) => Opcode::Invalidate,
    }
}

pub(super) fn failed_completion(
    request: &WorkRequest,
    qp: u32,
    (status, cause): &(Status, Arc<QpError>),
) -> Completion {
    Completion::failed(request.id, opcode_of(request), qp, *status, Some(Arc::clone(cause)))
}

pub(super) fn success_completion(request: &WorkRequest, qp: u32) -> Completion {
    let byte_len = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
    Completion::succeeded(request.id, opcode_of(request), qp, byte_len)
}
