//! The reasons for which no more frames are added to a batch.

use crate::error::QpError;
use crate::memory::{Check, Denied};
use crate::queue::{BlamedRequest, Status};
use ironwarp_wire::{Tag, Terminate};

/// Why no frame was added.
pub(super) enum Stop {
    /// There is nothing to send, or nothing that may be sent now.
    Idle,
    /// The batch has to be sent first.
    Full,
    /// A request or response failed, which ends the stream, or has to wait for a
    /// [registration](Self::pending_registration).
    Failed(Box<TxFailure>),
}

/// A failure while a frame was built.
pub(super) struct TxFailure {
    /// Why the stream ends.
    pub(super) error: QpError,
    /// The Terminate to send.
    pub(super) terminate: Terminate,
    /// The work request that failed; `None` if the failure is not that of a work request.
    pub(super) blamed: Option<BlamedRequest>,
}

impl Stop {
    /// Creates the failure of the work request `seq`, which names memory that it may not use.
    pub(super) fn denied_locally(error: QpError, seq: u64) -> Self {
        Self::failed_request(error, BlamedRequest { seq, status: Status::LocalProtection })
    }

    /// Creates the failure of a work request that cannot be executed, or [not yet](Self::pending_registration).
    #[cold]
    pub(super) fn failed_request(error: QpError, blamed: BlamedRequest) -> Self {
        let terminate = Terminate::LOCAL_CATASTROPHE;
        Self::Failed(Box::new(TxFailure { error, terminate, blamed: Some(blamed) }))
    }

    /// Returns the tag of the memory for whose registration the work request waits (requirement X6). `None` if it waits
    /// for no registration.
    pub(super) fn pending_registration(&self) -> Option<Tag> {
        match self {
            Self::Failed(failure) => match failure.error {
                QpError::Local(Denied { check: Check::Pending, tag, .. }) => Some(tag),
                _ => None,
            },
            Self::Idle | Self::Full => None,
        }
    }
}
