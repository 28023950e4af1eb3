//! The results of checking a segment: where its payload goes, or why the segment ends the stream.

use crate::error::{Protocol, QpError};
use crate::memory::Denied;
use crate::queue::Status;
use ironwarp_wire::private::Unreadable;
use ironwarp_wire::{Cause, Operation, Violation};
use serde::{Deserialize, Serialize};

/// The RDMAP opcode of private messages (`docs/wire.md`).
const PRIVATE_OPCODE: u8 = 0xf;

/// Where the payload of a segment goes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Target {
    /// The payload is empty, or is discarded.
    Discard,
    /// Memory: of a receive, of the sink of a Read, or that the header names.
    Memory,
    /// The park, because the segment waits for a receive. Holds the payload that has arrived.
    Park(Vec<u8>),
}

/// Why a segment ends the stream.
#[derive(Debug)]
pub(super) struct RxFailure {
    /// The error of the queue pair.
    pub(super) error: QpError,
    /// The cause to send in the Terminate. `None` if no Terminate is sent.
    pub(super) cause: Option<Cause>,
    /// The status with which the receive in use completes. `None` if it is flushed.
    pub(super) receive: Option<Status>,
}

impl RxFailure {
    /// Creates the failure for bytes that cannot be parsed.
    pub(super) fn violation(violation: Violation) -> Self {
        Self { cause: Some(violation.cause()), error: QpError::Violation(violation), receive: None }
    }

    /// Creates the failure for a private message that a setting disables. It is the same as with the private protocol
    /// disabled, where no private message can be parsed.
    pub(super) fn private_message() -> Self {
        Self::violation(Violation::Opcode { opcode: PRIVATE_OPCODE, tagged: false })
    }

    /// Creates the failure for memory that the peer named and may not access.
    pub(super) fn remote(denied: Denied, cause: Cause) -> Self {
        Self { error: QpError::Remote(denied), cause: Some(cause), receive: None }
    }

    /// Creates the failure for a signal of another release of Ironwarp, which this one cannot read.
    pub(super) fn other_release(why: Unreadable) -> Self {
        let cause = Some(Cause::Operation(Operation::StreamCatastrophic));
        Self { error: QpError::OtherRelease(why), cause, receive: None }
    }

    /// Creates the failure for a buffer of a receive or of the sink of a Read that cannot be used.
    pub(super) fn local(error: QpError) -> Self {
        Self { error, cause: Some(Cause::LocalCatastrophic), receive: Some(Status::LocalProtection) }
    }

    /// Returns the status with which the Read completes, if the segment is a response.
    pub(super) const fn read_status(&self) -> Status {
        match self.error {
            QpError::Local(_) | QpError::Unmapped { .. } => Status::LocalProtection,
            _ => Status::BadResponse,
        }
    }
}

impl From<Protocol> for RxFailure {
    fn from(rule: Protocol) -> Self {
        let receive = matches!(rule, Protocol::TooLong { .. }).then_some(Status::LocalLength);
        Self { error: QpError::Protocol(rule), cause: Some(rule.cause()), receive }
    }
}

/// The result of a step of a segment.
pub(super) type Checked<T = ()> = Result<T, RxFailure>;
