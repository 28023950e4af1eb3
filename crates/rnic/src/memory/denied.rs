//! Errors of accesses, registrations and deregistrations. Each holds the values involved and prints as one
//! line. A [`Denied`] remote access also determines the cause of the Terminate.

use super::{Domain, EntryInfo, Rights, TranslationError};
use crate::host::Span;
use crate::quota::QuotaExceeded;
use ironwarp_wire::{Cause, Protection, RemoteAddr, Tag, TaggedBuffer};
use std::fmt;

/// The check that an access failed. Each variant is described by the condition that must hold. The first nine are
/// the checks of requirements M8 and M9, in their order; the letters are those of the requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// a: the tag names a valid entry.
    Valid,
    /// b: an entry of this kind (region or window) can be used for this operation.
    Kind,
    /// c: the entry is in the same protection domain as the stream.
    Domain,
    /// c: if the entry is bound to one stream, the access is made by that stream.
    Stream,
    /// d: the tag has the current instance of the entry (requirement M4).
    Instance,
    /// The end of the range does not exceed 64 bits.
    Wrap,
    /// e: the range of the access is within the range of the entry.
    Range,
    /// f: the entry has the required rights.
    Right,
    /// g: windows may be bound to the region.
    Bind,
    /// The queue pair allows its peer to do this operation.
    QueuePair,
    /// One-touch memory has not been claimed by another message (requirement M10).
    Touched,
    /// The entry that a send-queue registration fills is neither valid nor pending.
    Idle,
    /// The entry to invalidate is a window, or was registered by a send-queue request.
    Invalidate,
    /// The region to invalidate has no windows bound to it.
    Windows,
    /// The registration of the entry has ended (requirement X6). A local request that fails this check is retried
    /// when the registration ends.
    Pending,
    /// The index of the window has an instance left, or the table has another index (requirement M4).
    InstancesUsed,
}

/// Describes the failed check alone, without the memory it failed for.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valid => "the tag is not valid",
            Self::Kind => "memory of this kind cannot be used for this operation",
            Self::Domain => "the memory belongs to another protection domain",
            Self::Stream => "the memory belongs to another queue pair",
            Self::Instance => "the tag is stale",
            Self::Wrap => "the range exceeds 2^64",
            Self::Range => "the range exceeds the registered memory",
            Self::Right => "the memory was registered without the required right",
            Self::Bind => "the region does not allow windows to be bound to it",
            Self::QueuePair => "the queue pair does not allow this operation",
            Self::Touched => "the one-touch memory has already served a message",
            Self::Idle => "the memory is already valid",
            Self::Invalidate => "the memory cannot be invalidated",
            Self::Windows => "windows are still bound to the region",
            Self::Pending => "the registration is still in progress",
            Self::InstancesUsed => "all tags of the adapter are used up: open the adapter again",
        })
    }
}

/// The error of an access that failed a check. No memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// The check that failed.
    pub check: Check,
    /// The tag of the access.
    pub tag: Tag,
    /// The offset of the access.
    pub offset: u64,
    /// The length of the access in bytes.
    pub len: u64,
    /// The rights that the access required.
    pub need: Rights,
    /// The protection domain that made the access.
    pub domain: Domain,
    /// The queue pair that made the access, if any.
    pub qp: Option<u32>,
    /// The entry that the index of the tag names, if any.
    pub entry: Option<EntryInfo>,
}

impl Denied {
    /// Returns the Terminate cause for a tagged message: a Write or a Read Response (RFC 5041 §7.2). For a missing
    /// right, this is the RDMAP cause, as with hardware, because DDP has none.
    pub(crate) const fn write_cause(&self) -> Cause {
        match self.check {
            Check::Domain | Check::Stream => Cause::TaggedBuffer(TaggedBuffer::Stream),
            Check::Wrap => Cause::TaggedBuffer(TaggedBuffer::Wrap),
            Check::Range => Cause::TaggedBuffer(TaggedBuffer::Bounds),
            Check::Right | Check::Bind | Check::QueuePair => Cause::Protection(Protection::Access),
            _ => Cause::TaggedBuffer(TaggedBuffer::Tag),
        }
    }

    /// Returns the Terminate cause for a Read Request or an Atomic Request (RFC 5040 §4.8, figure 9).
    pub(crate) const fn read_cause(&self) -> Cause {
        Cause::Protection(match self.check {
            Check::Domain | Check::Stream => Protection::Stream,
            Check::Wrap => Protection::Wrap,
            Check::Range => Protection::Bounds,
            Check::Right | Check::Bind | Check::QueuePair => Protection::Access,
            _ => Protection::Tag,
        })
    }

    /// Returns the Terminate cause for a Send with Invalidate.
    pub(crate) const fn invalidate_cause() -> Cause {
        Cause::Protection(Protection::Invalidate)
    }
}

impl std::error::Error for Denied {}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, offset, len, .. } = *self;
        write!(f, "{}, {len} bytes: ", RemoteAddr { tag, offset })?;
        match &self.entry {
            _ if self.check == Check::QueuePair => {
                write!(f, "requires {}, which queue pair {} does not allow", self.need, self.qp.unwrap_or(0))
            }
            Some(entry) => self.explain(entry, f),
            None => f.write_str("invalid tag: wrong, or already deregistered"),
        }
    }
}

impl Denied {
    /// Writes why the access to this entry was denied.
    fn explain(&self, entry: &EntryInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntryInfo { kind, start, len, .. } = *entry;
        match self.check {
            Check::Valid => write!(f, "the {kind} is not valid"),
            Check::Kind => write!(f, "a {kind} cannot be used for this operation"),
            Check::Domain => {
                write!(f, "the {kind} belongs to protection domain {}, not {}", entry.domain.0, self.domain.0)
            }
            Check::Stream => write!(f, "the {kind} does not belong to queue pair {}", self.qp.unwrap_or(0)),
            Check::Instance => write!(f, "stale tag: the {kind} now has {}", entry.tag),
            Check::Wrap => f.write_str("the range exceeds 2^64"),
            Check::Range => write!(f, "out of range: the {kind} has {len} bytes at {start:#x}"),
            Check::Right => write!(f, "requires {}, the {kind} has {}", self.need, entry.rights),
            Check::Bind | Check::QueuePair => {
                f.write_str("the region does not allow windows to be bound to it")
            }
            Check::Touched => write!(f, "the one-touch {kind} has already served a message"),
            Check::Idle => write!(f, "the {kind} is already valid"),
            Check::Invalidate => write!(f, "this {kind} cannot be invalidated"),
            Check::Windows => f.write_str("windows are still bound to the region"),
            Check::Pending => write!(f, "the registration of the {kind} is still in progress"),
            Check::InstancesUsed => {
                write!(f, "no new tag for the {kind}: all tags are used up; open the adapter again")
            }
        }
    }
}

/// An error registering memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The table has no room.
    #[error("all {entries} table entries are in use")]
    Full {
        /// Maximum number of entries.
        entries: usize,
    },
    /// All tags that the table can ever assign are used up (requirement M4). What is registered stays usable.
    #[error("all {indices} tag indices are used up: open the adapter again to register more memory")]
    UsedUp {
        /// Number of indices, each of which has 256 tags.
        indices: usize,
    },
    /// The function has reached its quota of regions and windows, or of registered bytes (requirement X1).
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The fault plan made the registration fail.
    #[error("injected fault no-register: the registration fails as if the table were full")]
    Injected,
    /// The length is zero.
    #[error("cannot register memory of length zero")]
    Empty,
    /// The memory is longer than its translation.
    #[error("cannot register {len} bytes: the translation covers only {translated}")]
    TooLong {
        /// The requested length.
        len: u64,
        /// The length of the translation.
        translated: u64,
    },
    /// The offsets exceed 2^64.
    #[error("{len} bytes at offset {start:#x} exceed 2^64")]
    Wrap {
        /// The first offset.
        start: u64,
        /// The requested length.
        len: u64,
    },
    /// Memory that peers may write must be writable locally, too.
    #[error("remote write and remote atomic access require local write access, got {0}")]
    Rights(Rights),
    /// One-touch memory may not allow windows, which would outlive it.
    #[error("windows cannot be bound to one-touch memory")]
    OneTouch,
    /// Some of the memory is not mapped.
    #[error("{} bytes at {:#x} are not all mapped", .0.len, .0.addr)]
    Unmapped(Span),
    /// The addresses do not form a valid translation.
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// The tag that the registration names cannot be used for a registration.
    #[error(transparent)]
    Denied(#[from] Denied),
}

/// An error deregistering memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// There is no such tag; it may already have been deregistered.
    #[error("tag {0} is not registered")]
    Unknown(Tag),
    /// Windows are bound to the region.
    #[error("{windows} windows are bound to {tag}")]
    Busy {
        /// The region.
        tag: Tag,
        /// The number of windows.
        windows: u32,
    },
}

/// An error re-registering a region, which is left unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReregisterError {
    /// There is no such region, or it is not valid.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Windows are bound to the region.
    #[error("{windows} windows are bound to {tag}")]
    Busy {
        /// The region.
        tag: Tag,
        /// The number of windows.
        windows: u32,
    },
    /// The new memory or rights cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}
