//! The entries of the send queue: requests that were posted and have not completed.

use super::{Completion, Data, Opcode, Operation, Status, WorkRequest};
use crate::error::{PostError, QpError};
use ironwarp_wire::{AtomicOp, RemoteAddr};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// A request that was posted and has not completed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) request: WorkRequest,
    /// The number of its last message within the request class, counted from one. The peer has delivered the message
    /// when it has acknowledged this many. Zero until the request is started.
    pub(super) number: u64,
    /// The DDP message sequence number of its message. Meaningless for a Write without immediate data, which has none.
    pub(super) msn: u32,
    /// The link has taken the last byte of its message.
    pub(super) sent: bool,
    /// The Read was answered, or the local operation was executed. Not used for Sends and Writes.
    pub(super) done: bool,
    /// The request will never be started. Its status is the next element of [`Refusals::ends`].
    pub(super) refused: bool,
}

/// A Read or Atomic Request that was not answered yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutstandingRead {
    pub(crate) kind: ReadKind,
    /// The sequence number of the work request. `None` for a probe: an empty Read of the adapter itself.
    pub(crate) entry: Option<u64>,
    /// Number of messages that the response acknowledges: this request, and all before it, which the peer has delivered
    /// first (RFC 5040 §5.5).
    pub(crate) number: u64,
    /// The sink named in the request. Default for Read V2 and Atomic Requests, which name none.
    pub(crate) sink: RemoteAddr,
    /// Number of bytes requested. Zero for Atomic Requests.
    pub(crate) len: u32,
    /// Number of bytes of the response that have arrived in complete segments.
    pub(crate) received: u32,
}

/// The kind of a request that the peer answers with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReadKind {
    Read,
    /// Read V2: the request does not name the sink (requirement X4).
    ReadV2,
    /// An atomic operation with this identifier, which the response repeats (RFC 7306 §5.2).
    Atomic(u32),
}

/// The requests that were refused or are flushed after a refused registration.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Refusals {
    /// Why newly posted requests are flushed. `None` after the consumer has moved the queue pair back to ready-to-send.
    pub(super) refusing: Option<Arc<QpError>>,
    /// The status and cause of each entry that is marked as refused, in order.
    pub(super) ends: VecDeque<(Status, Arc<QpError>)>,
}

impl Entry {
    /// Creates the entry of a request that is not started.
    pub(super) fn new(request: WorkRequest) -> Self {
        Self { request, number: 0, msn: 0, sent: false, done: false, refused: false }
    }
}

/// Checks whether a request may be posted: the number of its elements, its length, and its operation. Memory is checked
/// later. `registration` tells whether the queue pair allows registration by work request (requirement M17).
#[inline]
pub(crate) fn check_request(
    request: &WorkRequest,
    max_sges: usize,
    registration: bool,
) -> Result<(), PostError> {
    if let Data::Memory(sges) = &request.data
        && sges.as_slice().len() > max_sges
    {
        return Err(PostError::TooManySges { have: sges.as_slice().len(), limit: max_sges });
    }
    let len = request.data.len();
    if len > u64::from(MAX_MESSAGE) {
        return Err(PostError::MessageTooLong { len, limit: MAX_MESSAGE });
    }
    match request.operation {
        Operation::Send { .. } | Operation::Write(_) => Ok(()),
        _ => check_operation(request, registration),
    }
}

/// Checks whether a request other than a Send or Write may be posted.
fn check_operation(request: &WorkRequest, registration: bool) -> Result<(), PostError> {
    let (len, inline) = (request.data.len(), matches!(request.data, Data::Inline(_)));
    match request.operation {
        Operation::Read(_) if inline && len > 0 => Err(PostError::InlineRead),
        Operation::Atomic { .. } if inline || len != ATOMIC_LEN => Err(PostError::AtomicData { len }),
        Operation::Register { .. } | Operation::RegisterSend { .. } if !registration => {
            Err(PostError::RegistrationDisabled)
        }
        _ => Ok(()),
    }
}

/// The maximum length of a message: 2 GiB, as with hardware.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Length of the result of an atomic operation.
const ATOMIC_LEN: u64 = 8;

/// Returns the opcode for the completion of a request.
const fn opcode_of(request: &WorkRequest) -> Opcode {
    match request.operation {
        Operation::Send { .. } | Operation::RegisterSend { .. } => Opcode::Send,
        Operation::Write(_) => Opcode::Write,
        Operation::Read(_) => Opcode::Read,
        Operation::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => Opcode::CompareSwap,
        Operation::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => Opcode::FetchAdd,
        Operation::Bind { .. } | Operation::BindAs { .. } => Opcode::Bind,
        Operation::Register { .. } => Opcode::Register,
        Operation::Invalidate(_) => Opcode::Invalidate,
    }
}

/// Creates the completion of a request that failed with this status, for this reason.
pub(super) fn failed_completion(
    request: &WorkRequest,
    qp: u32,
    (status, cause): &(Status, Arc<QpError>),
) -> Completion {
    Completion::failed(request.id, opcode_of(request), qp, *status, Some(Arc::clone(cause)))
}

/// Creates the completion of a request that succeeded.
pub(super) fn success_completion(request: &WorkRequest, qp: u32) -> Completion {
    let byte_len = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
    Completion::succeeded(request.id, opcode_of(request), qp, byte_len)
}
