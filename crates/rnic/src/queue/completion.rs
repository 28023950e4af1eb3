//! Completions: what a consumer learns of a work request that is done (a CQE). Before this: the stream; after: `cq.rs`.

use crate::error::Fault;
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// The end of one work request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The identifier the consumer gave the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What the request was.
    pub opcode: Opcode,
    /// Bytes that were received or read; nothing meaningful unless it succeeded.
    pub byte_len: u32,
    /// The number of the queue pair.
    pub qp: u32,
    /// A receive: the sender asked that its message wake the consumer (requirement N8).
    pub solicited: bool,
    /// A receive: the message invalidated this tag of ours (Send with Invalidate).
    pub invalidated: Option<Tag>,
    /// A receive: the data that came in the message itself.
    pub immediate: Option<u32>,
    /// A receive of a datagram: who sent it. The first 40 bytes of the buffer are its GRH.
    pub sender: Option<Sender>,
    /// When it came, by the clock of its queue; zero if that has none.
    #[doc(hidden)]
    pub time: u64,
    /// Why it failed: which check, whose fault. Shared by all requests that one fault ended.
    pub cause: Option<Arc<Fault>>,
}

// Polling copies it, and a completion queue holds very many: one cache line.
const _: () = assert!(size_of::<Completion>() <= 64);

/// A request that failed, from its completion.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{:?} request {} failed: {}{}", .0.opcode, WrId(.0.wr_id), .0.status, why(.0))]
pub struct RequestError(pub Completion);

fn why(completion: &Completion) -> String {
    completion.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// An identifier as its program would write it: a counter, or an address.
#[derive(Clone, Copy, Debug)]
pub struct WrId(pub u64);

impl fmt::Display for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 <= u32::MAX.into() { write!(f, "{}", self.0) } else { write!(f, "{:#x}", self.0) }
    }
}

impl Completion {
    /// The completion, if its request succeeded; otherwise what went wrong, in words and as data.
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

    /// A request that succeeded.
    #[doc(hidden)]
    pub const fn succeeded(wr_id: u64, opcode: Opcode, qp: u32, byte_len: u32) -> Self {
        let (status, cause) = (Status::Success, None);
        let (solicited, invalidated, immediate, sender) = (false, None, None, None);
        let time = 0;
        Self { wr_id, status, opcode, byte_len, qp, solicited, invalidated, immediate, sender, time, cause }
    }

    /// A request that failed.
    #[doc(hidden)]
    pub fn failed(wr_id: u64, opcode: Opcode, qp: u32, status: Status, cause: Option<Arc<Fault>>) -> Self {
        Self { status, cause, ..Self::succeeded(wr_id, opcode, qp, 0) }
    }

    /// Whether it wakes a consumer that waits for solicited completions only. Errors do as well (requirement N8).
    #[doc(hidden)]
    pub fn wakes(&self) -> bool {
        self.solicited || self.status != Status::Success
    }
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The number of its queue pair.
    pub qp: u32,
    /// The service level that it chose.
    pub service_level: u8,
}

/// What a completed request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Bind of a window.
    Bind,
    /// Registration by work request, or through a control queue.
    Register,
    /// Invalidation of a tag of ours.
    Invalidate,
    /// A receive that a Send used up.
    Receive,
    /// A receive that a Write with Immediate used up: the data are where the Write put them.
    ReceiveWrite,
    /// Deregistration through a control queue (requirement X6), and what else goes through one.
    Deregister,
    /// Creation of a queue pair.
    CreateQueuePair,
    /// Destruction of a queue pair.
    DestroyQueuePair,
    /// Creation of a completion queue.
    CreateCompletionQueue,
    /// Destruction of a completion queue.
    DestroyCompletionQueue,
}

/// How a request ended. In the order of the verbs' `ibv_wc_status`, with its meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// All is well.
    Success,
    /// A receive was too short for its message, or a request longer than a message may be.
    LocalLength,
    /// The queue pair could not do the request: an inconsistency within it.
    LocalQpOperation,
    /// A scatter/gather element names memory that is not registered, or not for this (requirement M8).
    LocalProtection,
    /// It was not started, or not finished, when the queue pair went to the error state.
    Flushed,
    /// The window could not be bound: its region forbids it, or lacks the rights.
    WindowBind,
    /// The peer answered with something that does not belong to the request.
    BadResponse,
    /// A message could not be placed into memory of ours that the peer named.
    LocalAccess,
    /// The peer does not accept such a message.
    RemoteInvalidRequest,
    /// The peer refused access to its memory (requirement M9).
    RemoteAccess,
    /// The peer could not do the request.
    RemoteOperation,
    /// The connection was lost before the peer answered.
    RetryExceeded,
    /// The peer posted no receive in time.
    RnrRetryExceeded,
    /// The device failed, and can complete nothing any more.
    Fatal,
    /// None of the above.
    General,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error: the message does not fit",
            Self::LocalQpOperation => "local QP operation error: the queue pair cannot do this request",
            Self::LocalProtection => "local protection error: a buffer is not registered for this",
            Self::Flushed => "flushed: the queue pair failed or was closed before the request was done",
            Self::WindowBind => "memory window bind error",
            Self::BadResponse => "bad response from the peer",
            Self::LocalAccess => "local access error: the peer's message could not be placed here",
            Self::RemoteInvalidRequest => "remote invalid request: the peer does not accept such a message",
            Self::RemoteAccess => "remote access error: the peer refused access to its memory",
            Self::RemoteOperation => "remote operation error: the peer could not do the request",
            Self::RetryExceeded => "transport retries exceeded: the connection was lost",
            Self::RnrRetryExceeded => {
                "receiver-not-ready retries exceeded: the peer posted no receive in time"
            }
            Self::Fatal => "fatal error of the device",
            Self::General => "general error",
        })
    }
}
