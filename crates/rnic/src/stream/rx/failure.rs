//! Where the payload of a segment goes, and why a segment ends the stream.

use crate::error::{Protocol, QpError};
use crate::memory::Denied;
use crate::queue::Status;
use ironwarp_wire::private::Unreadable;
use ironwarp_wire::{Cause, Operation, Violation};

/// Where the payload of a segment goes.
#[derive(Debug)]
pub(super) enum Target {
    /// The payload is empty, or is discarded.
    Discard,
    /// The memory that the header names.
    Memory,
    /// The park: the segment waits for a receive.
    Park(Vec<u8>),
}

/// Why the stream failed.
#[derive(Debug)]
pub(super) struct RxFailure {
    pub(super) error: QpError,
    /// The cause to send in the Terminate, if one is sent.
    pub(super) cause: Option<Cause>,
    /// The status with which the receive in use completes, if it fails.
    pub(super) receive: Option<Status>,
}

impl RxFailure {
    pub(super) fn violation(violation: Violation) -> Self {
        Self { cause: Some(violation.cause()), error: QpError::Violation(violation), receive: None }
    }

    pub(super) fn remote(denied: Denied, cause: Cause) -> Self {
        Self { error: QpError::Remote(denied), cause: Some(cause), receive: None }
    }

    pub(super) fn other_release(why: Unreadable) -> Self {
        let cause = Some(Cause::Operation(Operation::StreamCatastrophic));
        Self { error: QpError::OtherRelease(why), cause, receive: None }
    }

    /// A local buffer cannot be used.
    pub(super) fn local(error: QpError) -> Self {
        Self { error, cause: Some(Cause::LocalCatastrophic), receive: Some(Status::LocalProtection) }
    }

    /// The status of the Read, if the segment was a response to it.
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

pub(super) type Checked<T = ()> = Result<T, RxFailure>;
