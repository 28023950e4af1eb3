//! Why the construction of a batch stops.

use crate::error::QpError;
use crate::memory::{Check, Denied};
use crate::queue::{BlamedRequest, Status};
use ironwarp_wire::{Tag, Terminate};

/// Why no frame was added.
pub(super) enum Stop {
    /// Nothing to send, or nothing that may be sent now.
    Idle,
    /// The batch has to be sent first.
    Full,
    /// The stream has failed.
    Failed(Box<TxFailure>),
}

/// What went wrong while a frame was built.
pub(super) struct TxFailure {
    pub(super) error: QpError,
    /// The Terminate to send.
    pub(super) terminate: Terminate,
    /// The work request that failed; `None` if the failure is not that of a work request.
    pub(super) blamed: Option<BlamedRequest>,
}

impl Stop {
    /// A work request names memory that it may not use.
    pub(super) fn denied_locally(error: QpError, seq: u64) -> Self {
        Self::failed_request(error, BlamedRequest { seq, status: Status::LocalProtection })
    }

    /// A work request cannot be executed, or [not yet](Self::pending_registration).
    #[cold]
    pub(super) fn failed_request(error: QpError, blamed: BlamedRequest) -> Self {
        let terminate = Terminate::LOCAL_CATASTROPHE;
        Self::Failed(Box::new(TxFailure { error, terminate, blamed: Some(blamed) }))
    }

    /// If the next work request only waits for the registration of its memory (requirement X6), returns the
    /// tag of that memory.
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
