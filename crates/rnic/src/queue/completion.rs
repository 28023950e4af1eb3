//! Completions: the entries of a completion queue (CQEs), each of which reports how a work request ended.

use crate::error::QpError;
use crate::status::Status;
use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The completion of a work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Completion {
    /// The identifier the consumer gave the request.
    pub wr_id: u64,
    /// How the request ended.
    pub status: Status,
    /// What the request was.
    pub opcode: Opcode,
    /// Number of bytes received or read. Undefined unless the request succeeded.
    pub byte_len: u32,
    /// The number of the queue pair that the request belongs to.
    pub qp: u32,
    /// Receives only: the sender requested a solicited event (requirement N8).
    pub solicited: bool,
    /// Receives only: the local tag that the message invalidated (Send with Invalidate).
    pub invalidated: Option<Tag>,
    /// Receives only: the immediate data of the message. In iSCSI mode, also of the send queue: the number of the command
    /// that the completion belongs to.
    pub immediate: Option<u32>,
    /// Receives of datagrams only: the sender. The first 40 bytes of the buffer are the GRH.
    pub sender: Option<Sender>,
    /// When the completion was added, by the clock of its queue. Zero if the queue has no clock.
    #[doc(hidden)]
    pub time: u64,
    /// Why the request failed. Shared by all requests that one error ended.
    pub cause: Option<Arc<QpError>>,
}

// Polling copies completions, and completion queues hold many: one must fit a cache line.
const _: () = assert!(size_of::<Completion>() <= 64);

/// The error of a request that failed, with its completion.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{:?} request {} failed: {}{}", .0.opcode, WrId(.0.wr_id), .0.status, why(.0))]
pub struct RequestError(pub Completion);

/// Formats the cause of a failure for an error message. Empty if there is none.
fn why(completion: &Completion) -> String {
    completion.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// Prints the identifier of a work request as a program would write it: small ones, probably counters, in decimal, and
/// large ones, probably addresses, in hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct WrId(pub u64);

impl fmt::Display for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 <= u32::MAX.into() { write!(f, "{}", self.0) } else { write!(f, "{:#x}", self.0) }
    }
}

impl Completion {
    /// Returns the completion if its request succeeded, and an error otherwise.
    ///
    /// ```
    /// # use ironwarp_rnic::queue::{Completion, Opcode, RequestError};
    /// fn length(received: Completion) -> Result<u32, RequestError> {
    ///     Ok(received.success()?.byte_len)
    /// }
    /// # assert_eq!(length(Completion::succeeded(7, Opcode::Receive, 1, 64))?, 64);
    /// # Ok::<(), RequestError>(())
    /// ```
    pub fn success(self) -> Result<Self, RequestError> {
        if self.status == Status::Success { Ok(self) } else { Err(RequestError(self)) }
    }

    /// Creates the completion of a request that succeeded.
    #[doc(hidden)]
    pub const fn succeeded(wr_id: u64, opcode: Opcode, qp: u32, byte_len: u32) -> Self {
        let (status, cause) = (Status::Success, None);
        let (solicited, invalidated, immediate, sender) = (false, None, None, None);
        let time = 0;
        Self { wr_id, status, opcode, byte_len, qp, solicited, invalidated, immediate, sender, time, cause }
    }

    /// Creates the completion of a request that failed.
    #[doc(hidden)]
    pub fn failed(wr_id: u64, opcode: Opcode, qp: u32, status: Status, cause: Option<Arc<QpError>>) -> Self {
        Self { status, cause, ..Self::succeeded(wr_id, opcode, qp, 0) }
    }

    /// Whether the completion raises the event of a queue that is armed for solicited completions: it is solicited, or
    /// reports an error (requirement N8).
    #[doc(hidden)]
    pub fn raises_solicited_event(&self) -> bool {
        self.solicited || self.status != Status::Success
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sender {
    /// The number of the sender's queue pair.
    pub qp: u32,
    /// The service level of the datagram.
    pub service_level: u8,
}

impl Sender {
    /// Creates the sender with this queue pair number.
    #[doc(hidden)]
    pub const fn new(qp: u32, service_level: u8) -> Self {
        Self { qp, service_level }
    }
}

/// What a completed request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Opcode {
    /// Send, of any kind.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Binding of a window.
    Bind,
    /// Registration, by work request or through a control queue.
    Register,
    /// Invalidation of a local tag.
    Invalidate,
    /// A receive that was used by a Send.
    Receive,
    /// A receive that was used by a Write with Immediate. The Write has placed the data, not the receive.
    ReceiveWrite,
    /// Deregistration through a control queue (requirement X6). The operations below also go through one.
    Deregister,
    /// Creation of a queue pair.
    CreateQueuePair,
    /// Destruction of a queue pair.
    DestroyQueuePair,
    /// Creation of a completion queue.
    CreateCompletionQueue,
    /// Destruction of a completion queue.
    DestroyCompletionQueue,
    /// iSCSI mode: a command that failed before the target completed it. The opcodes below are of receives.
    Command,
    /// A receive that was used by a PDU of an iSCSI target.
    Pdu,
    /// A receive that was used by the PDU with which an iSCSI target completed a command.
    Response,
    /// A receive that was used by a PDU of an iSCSI target that failed a check (requirement M13). The cause tells which one.
    RefusedPdu,
}

/// When a Send or a Write completes (requirement P2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Completes {
    /// When the link has taken the last byte of the message, as iWARP defines.
    #[default]
    WhenSent,
    /// When the peer has acknowledged that the message is placed. If the peer cannot place the message, the request
    /// fails with the peer's error.
    WhenAcknowledged,
}
