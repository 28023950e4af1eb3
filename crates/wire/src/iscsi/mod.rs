//! Headers of iSCSI PDUs (RFC 7143 §11), for queue pairs in iSCSI mode (requirement M13).
//!
//! ```text
//!  header, 48 bytes │ additional headers │ header digest │ data │ padding │ data digest      layout::PduLayout
//!  opcode · flags · lengths · LUN · task tag · seven words                                   raw::RawHeader
//! ```
//!
//! [`InitiatorPdu`] has the PDUs that an initiator sends, [`TargetPdu`] those that a target sends. [`PduLayout`] tells from the
//! lengths in a header how many bytes follow it. Digests are [`Crc`](crate::mpa::Crc) values; both are optional.

mod initiator;
mod layout;
mod login_fields;
mod raw;
mod target;

pub use initiator::{
    Command, DataOut, InitiatorPdu, LoginRequest, LogoutRequest, NopOut, TaskRequest, TextRequest,
};
pub use layout::{Digests, PduLayout, padding};
pub use raw::{HEADER_LEN, set_exp_stat_sn};
pub use target::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, R2t, Reject, Residual, Response,
    SequenceNumbers, TargetPdu, TaskResponse, TextResponse,
};

/// The task tag that names no task (RFC 7143 §11.2.1.8).
pub const NO_TASK: u32 = u32::MAX;

/// A stage of the login (RFC 7143 §11.12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Security negotiation: the two ends authenticate each other.
    Security,
    /// Negotiation of operational parameters.
    Operational,
    /// The end of the login: commands can be sent.
    FullFeature,
}

impl Stage {
    const fn to_bits(self) -> u8 {
        match self {
            Self::Security => 0,
            Self::Operational => 1,
            Self::FullFeature => 3,
        }
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }
}

/// A function of a task management request (RFC 7143 §11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskFunction {
    /// Aborts one task.
    AbortTask = 1,
    /// Aborts all tasks of this session at a logical unit.
    AbortTaskSet = 2,
    /// Ends an auto-contingent allegiance condition.
    ClearAca = 3,
    /// Aborts all tasks at a logical unit, of any session.
    ClearTaskSet = 4,
    /// Resets a logical unit.
    LogicalUnitReset = 5,
    /// Resets the target.
    TargetWarmReset = 6,
    /// Resets the target and ends its sessions.
    TargetColdReset = 7,
    /// Moves a task to another connection.
    TaskReassign = 8,
}

impl TaskFunction {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & 0x7f {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            _ => return None,
        })
    }
}

/// A header that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPdu {
    /// The opcode is none that the sender may use (RFC 7143 §11.2.1.2).
    #[error("unknown iSCSI opcode {0:#04x}")]
    Opcode(u8),
    /// A field has a reserved value.
    #[error("reserved value {value:#x} in field {field} of an iSCSI PDU")]
    Reserved {
        /// The field, as RFC 7143 names it.
        field: &'static str,
        /// Its value.
        value: u8,
    },
}
