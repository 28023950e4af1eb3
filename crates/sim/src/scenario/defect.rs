//! Defects of requests that must fail, and the status that each end must report.

use super::verb::Verb;
use ironwarp_rnic::queue::Status;

/// The defect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// A local buffer is not registered.
    LocalTag,
    /// The remote tag is from another instance of the memory.
    RemoteTag,
    /// The remote range exceeds the memory.
    RemoteRange,
    /// The remote memory does not allow remote access.
    RemoteRight,
    /// The remote word is not aligned.
    Misaligned,
    /// The tag must not be invalidated by this stream.
    Invalidate,
    /// The message is longer than its receive.
    TooLong,
    /// XRC: the shared receive queue does not exist.
    NoQueue,
    /// No receive is posted, and the peer does not wait for one.
    NoReceive,
    /// The peer is not Ironwarp and does not support the message.
    ForeignPeer,
    /// The memory table rejects the operation.
    Refused,
    /// The one-touch memory of the peer was already used by another message.
    Touched,
    /// The remote tag is one that the peer had before, and has deregistered (requirement M4).
    OldTag,
}

impl Defect {
    /// Returns the status of the request.
    pub(super) const fn status(self) -> Status {
        match self {
            Self::LocalTag => Status::LocalProtection,
            Self::RemoteTag
            | Self::RemoteRange
            | Self::RemoteRight
            | Self::Invalidate
            | Self::Touched
            | Self::OldTag => Status::RemoteAccess,
            Self::Misaligned => Status::RemoteOperation,
            Self::TooLong | Self::NoQueue | Self::NoReceive => Status::RemoteInvalidRequest,
            Self::ForeignPeer => Status::LocalQpOperation,
            Self::Refused => Status::WindowBind,
        }
    }

    /// Returns the status of the receive that the request consumed, if the defect makes the receive fail.
    pub(super) const fn receive(self) -> Option<Status> {
        match self {
            Self::Invalidate => Some(Status::LocalAccess),
            Self::TooLong => Some(Status::LocalLength),
            _ => None,
        }
    }

    /// Returns whether the peer detects the defect.
    pub(super) const fn is_remote(self) -> bool {
        !matches!(self, Self::LocalTag | Self::ForeignPeer | Self::Refused)
    }

    /// Returns the defects that a verb can have.
    pub(super) const fn of(verb: Verb) -> &'static [Self] {
        match verb {
            Verb::Send => &[Self::LocalTag, Self::TooLong, Self::NoQueue],
            Verb::SendImmediate => &[Self::LocalTag, Self::TooLong, Self::NoQueue, Self::ForeignPeer],
            Verb::RegisterSend => &[Self::LocalTag, Self::TooLong, Self::NoQueue, Self::Refused],
            Verb::SendInvalidate => &[Self::LocalTag, Self::TooLong, Self::Invalidate],
            Verb::Write | Verb::Read => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight]
            }
            Verb::WriteImmediate => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight, Self::NoQueue]
            }
            Verb::FetchAdd | Verb::CompareSwap => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight, Self::Misaligned]
            }
            _ => &[Self::Refused],
        }
    }
}
