//! Why a session ends, and why it does not take a frame.

use super::channel::Channel;
use crate::message::{Function, Malformed, Status};
use crate::pool::PoolError;
use std::time::Duration;

/// The reason why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The host has detached.
    #[error("the host has detached")]
    Detached,
    /// The host has attached again.
    #[error("the host has attached again: a newer session replaces this one")]
    Replaced,
    /// The driver has ended it.
    #[error("shut down")]
    Shutdown,
    /// A connection was lost.
    #[error("connection lost")]
    Disconnected,
    /// The unit has refused the Attach.
    #[error("failed to attach: {0}")]
    Refused(Status),
    /// The proof of the unit is wrong.
    #[error("the unit does not know the key of this host: check the address of the unit and the key")]
    WrongUnit,
    /// The peer did not answer in time.
    #[error("no {awaited} within {limit:?}")]
    Unanswered {
        /// What was expected.
        awaited: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The peer does not read its control channel.
    #[error("{messages} control messages are outstanding: the peer does not read them")]
    ControlBlocked {
        /// Number of messages.
        messages: usize,
    },
    /// The peer has violated the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
}

/// A violation of the protocol by the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The bytes are not a message.
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    /// The message breaks a rule for pools.
    #[error("{function}: {error}")]
    Pool {
        /// Function of the message; SendData and BufferRDMAIndicate stand for frames.
        function: Function,
        /// What was wrong.
        error: PoolError,
    },
    /// The message is not for this channel, mode or state.
    #[error("unexpected {function} on the {channel:?} channel")]
    Unexpected {
        /// Function of the message.
        function: Function,
        /// The channel.
        channel: Channel,
    },
    /// A reply answers no request.
    #[error("{function} with context {context:#x}, which answers no request")]
    UnexpectedReply {
        /// Function of the message.
        function: Function,
        /// Its context.
        context: u64,
    },
    /// The reply is for another operation.
    #[error("reply to operation {found}, expected {expected}")]
    WrongReply {
        /// Operation in the reply.
        found: u16,
        /// Operation of the request.
        expected: u16,
    },
    /// Immediate data arrived in Send mode, or before the session was open.
    #[error("unexpected immediate data {value:#010x}")]
    Immediate {
        /// Its value.
        value: u32,
    },
    /// A frame inside a message is too long for this mode.
    #[error("SendData with a frame of {len} bytes: expected 1 to {max}")]
    InlineLength {
        /// Length of the frame.
        len: usize,
        /// Longest frame.
        max: usize,
    },
}

/// The reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// Frames cannot be sent yet, or not any more.
    #[error("session not open")]
    NotOpen,
    /// The peer has no room. The unit has counted the frame as dropped. The host keeps it until
    /// [`Action::Resume`](super::Action::Resume).
    #[error("no room at the peer")]
    Full,
    /// The frame is empty or exceeds every element of the peer. It was counted as dropped.
    #[error("invalid frame length {len}: the peer takes 1 to {max} bytes")]
    Length {
        /// Length of the frame.
        len: u32,
        /// Longest frame that the peer takes.
        max: u32,
    },
}
