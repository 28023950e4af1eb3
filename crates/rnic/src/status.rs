//! The status of a completion.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The status of a completion: how the request ended. The variants have the order and meaning of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Status {
    /// The request succeeded.
    Success,
    /// A receive was too short for its message, or a request exceeded the maximum message length.
    LocalLength,
    /// The queue pair detected an internal inconsistency.
    LocalQpOperation,
    /// A scatter/gather element names memory that is not registered, or that does not allow the access (requirement
    /// M8).
    LocalProtection,
    /// The request was not complete when the queue pair entered the error state.
    Flushed,
    /// The window could not be bound: the region does not allow windows, or lacks the rights.
    WindowBind,
    /// The peer sent a response that does not belong to the request.
    BadResponse,
    /// A message could not be placed into local memory that the peer named.
    LocalAccess,
    /// The peer does not accept this kind of message.
    RemoteInvalidRequest,
    /// The peer refused access to its memory (requirement M9).
    RemoteAccess,
    /// The peer could not execute the request.
    RemoteOperation,
    /// The connection was lost before the peer responded.
    RetryExceeded,
    /// The peer posted no receive in time.
    RnrRetryExceeded,
    /// The device failed.
    Fatal,
    /// Any other error.
    General,
}

impl Status {
    /// All statuses, in order.
    pub(crate) const ALL: [Self; 15] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalQpOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::WindowBind,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::Fatal,
        Self::General,
    ];
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
            Self::RetryExceeded => "transport retries exceeded: no acknowledgement from the peer",
            Self::RnrRetryExceeded => {
                "receiver-not-ready retries exceeded: the peer posted no receive in time"
            }
            Self::Fatal => "fatal error of the device",
            Self::General => "general error",
        })
    }
}
