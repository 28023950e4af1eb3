//! Why a login, a command or a session failed.

use crate::chap::ChapError;
use crate::scsi::{Capacity, ScsiError};
use crate::text::BadText;
use ironwarp::WaitError;
use ironwarp::completion::{Overrun, Status as CompletionStatus};
use ironwarp::memory::{OutOfMemory, RegisterError};
use ironwarp::queue::{CreateError, PostError, QpError};
use ironwarp_wire::iscsi::BadPdu;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Why a session or a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target cannot be reached.
    #[error("failed to connect to the target at {address}: {error}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The login failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The connection was lost. A write that was outstanding may or may not have been executed.
    #[error("the connection to the target was lost: {0}")]
    Lost(Arc<QpError>),
    /// The target has violated the protocol, or ends the session. A write that was outstanding may or may not have been
    /// executed.
    #[error("protocol violation by the target: {0}")]
    Protocol(&'static str),
    /// The session has ended before, for a reason that its commands have told.
    #[error("the session has ended: connect again")]
    Ended,
    /// The command was aborted because it took too long. A write may or may not have been executed.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// The target has not executed the command.
    #[error("the target failed the command: {0}")]
    Scsi(#[from] ScsiError),
    /// The blocks cannot be read or written.
    #[error(
        "invalid range: {len} bytes at block {lba} of a logical unit with {} blocks of {} bytes",
        capacity.blocks,
        capacity.block_size
    )]
    Blocks {
        /// The first block.
        lba: u64,
        /// Length of the memory.
        len: u64,
        /// The size of the logical unit.
        capacity: Capacity,
    },
    /// The memory of a command is too long.
    #[error("a command cannot transfer {0} bytes: the maximum is 4 GiB - 1")]
    TooLong(u64),
    /// The adapter has not executed a command, for example because its memory does not allow the access. The session goes on.
    #[error("the adapter refused the command: {}", .0.as_ref().map_or_else(|| .1.to_string(), ToString::to_string))]
    Adapter(Option<Arc<QpError>>, CompletionStatus),
    /// The adapter has stopped.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The completion queue has overflowed.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// A request cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The queue pair cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The kernel refused a resource.
    #[error(transparent)]
    Resource(#[from] io::Error),
}

impl Error {
    /// Returns the error of a command that the end of its connection with this error has ended.
    pub(crate) fn of_command(&self) -> Self {
        match self {
            Self::Lost(cause) => Self::Lost(Arc::clone(cause)),
            Self::Protocol(violation) => Self::Protocol(violation),
            _ => Self::Ended,
        }
    }
}

/// A login that failed. Close its connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// An option cannot be used.
    #[error("invalid option {option}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The socket failed.
    #[error("the connection failed during the login: {0}")]
    Io(#[from] io::Error),
    /// The target did not complete the login in time.
    #[error(
        "the target did not complete the login within {0:?}: check that it is an iSCSI target, or allow more time"
    )]
    Timeout(Duration),
    /// The target closed the connection.
    #[error("the target closed the connection during the login: its log may say why")]
    Closed,
    /// The target is elsewhere.
    #[error("the target has moved {}: log in at {address}", if *permanent { "permanently" } else { "temporarily" })]
    Redirected {
        /// The address and the portal group, as the target sent them: `host:port,tag`.
        address: String,
        /// Whether the next login can start at the new address.
        permanent: bool,
    },
    /// The target refused the login.
    #[error("the target refused the login: {0}")]
    Refused(Status),
    /// The target rejected a request as malformed.
    #[error("the target rejected a login request with reason {0:#04x} (RFC 7143 §11.17.1)")]
    Rejected(u8),
    /// The target sent a header that cannot be parsed.
    #[error("malformed PDU during the login: {0}: check that this is an iSCSI target")]
    Pdu(#[from] BadPdu),
    /// The target sent keys that cannot be parsed.
    #[error("malformed keys in a login response: {0}")]
    Text(#[from] BadText),
    /// The target violated the protocol.
    #[error("the target violated the login protocol: {0}")]
    Protocol(&'static str),
    /// The target answered an offer with a value that it does not allow.
    #[error("the target answered {key}={offered} with {value:?}: {advice}")]
    Answer {
        /// The key.
        key: &'static str,
        /// What was offered.
        offered: String,
        /// The answer, cut if it is long.
        value: String,
        /// What to do.
        advice: &'static str,
    },
    /// The target did not answer an offer.
    #[error("the target did not answer key {0}")]
    Unanswered(&'static str),
    /// The target sent a key that this initiator has not offered in this step of the login, or has negotiated already.
    #[error("the target sent key {0}, which was not offered or is negotiated already")]
    NotOffered(String),
    /// The target cannot be authenticated.
    #[error(transparent)]
    Chap(#[from] ChapError),
}

/// The status with which a target refuses a login (RFC 7143 §11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// 2 for an error of the initiator, 3 for an error of the target, which can be temporary.
    pub class: u8,
    /// The error.
    pub detail: u8,
}

impl Status {
    /// The initiator could not be authenticated.
    pub const AUTHENTICATION_FAILURE: Self = Self { class: 2, detail: 1 };
    /// The initiator may not use the target.
    pub const AUTHORIZATION_FAILURE: Self = Self { class: 2, detail: 2 };
    /// There is no target of this name.
    pub const NOT_FOUND: Self = Self { class: 2, detail: 3 };
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, detail } = *self;
        f.write_str(match (class, detail) {
            (2, 0) => "initiator error: the target's log may say which",
            (2, 1) => {
                "authentication failed: check the CHAP name and secret, and whether the target uses CHAP"
            }
            (2, 2) => "no access to this target: allow this initiator's name and address at the target",
            (2, 3) => "no target of this name at this address: check the target name",
            (2, 4) => "the target has been removed: use another target",
            (2, 5) => "iSCSI version not supported: this initiator has version 0 only",
            (2, 6) => "too many connections in this session: close one",
            (2, 7) => "a parameter is missing: the target's log may say which",
            (2, 8) => "the session cannot include this connection: start another session",
            (2, 9) => "session type not supported: the target has no normal sessions for this initiator",
            (2, 10) => "the session does not exist: start another session",
            (2, 11) => "a request is invalid during the login",
            (2, _) => "initiator error",
            (3, 0) => "hardware or software error at the target: see its log",
            (3, 1) => "the target is not operational: try again later",
            (3, 2) => "the target lacks resources: close other sessions, or try again later",
            (3, _) => "target error",
            _ => "unknown status class",
        })?;
        write!(f, " (status {class:#04x}{detail:02x})")
    }
}
