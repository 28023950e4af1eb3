//! Why an access, a registration or its end was refused: each refusal is data, with one line of text, and an access by a
//! peer has the cause that its Terminate carries.

use super::{Domain, EntryInfo, Rights, TranslationError};
use crate::host::Span;
use ironwarp_wire::{Cause, Place, Protection, Tag, TaggedBuffer};
use std::fmt;

/// The check that failed. The first nine are those of requirements M8 and M9, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// a: the tag names an entry that is valid.
    Valid,
    /// b: the entry is of a kind that can be used so.
    Kind,
    /// c: it is in the domain of who asks.
    Domain,
    /// c, for what is bound to one stream: it is this one.
    Stream,
    /// d: the instance of the tag is the entry's (requirement M4).
    Instance,
    /// The end of the range is a 64-bit number.
    Wrap,
    /// e: the range is inside the entry's.
    Range,
    /// f: the entry has the rights.
    Right,
    /// g: windows may be bound to it.
    Bind,
    /// The queue pair lets its peer do this at all.
    QueuePair,
    /// One-touch memory serves no other message (requirement M10).
    Touched,
    /// What is to be filled is not valid yet.
    Idle,
    /// What is to be invalidated is a window, or was registered by a send-queue request.
    Invalidate,
    /// What is to be invalidated has no windows bound to it.
    Windows,
    /// Its registration is done (requirement X6). This end's own requests wait for that.
    Pending,
}

/// The check alone, without whose memory it was.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valid => "the tag names no valid memory",
            Self::Kind => "memory of this kind cannot be used like this",
            Self::Domain => "it is of another protection domain",
            Self::Stream => "it is another queue pair's",
            Self::Instance => "the tag is out of date",
            Self::Wrap => "the range goes beyond 2^64",
            Self::Range => "the range is not all inside of it",
            Self::Right => "it was not registered with the right that is needed",
            Self::Bind => "windows may not be bound to it",
            Self::QueuePair => "the queue pair does not allow such a request",
            Self::Touched => "it serves one message, and that has come",
            Self::Idle => "it is valid already",
            Self::Invalidate => "it cannot be invalidated",
            Self::Windows => "windows are bound to it",
            Self::Pending => "its registration is pending",
        })
    }
}

/// A check failed. No memory was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Which check.
    pub check: Check,
    /// The tag that was named.
    pub tag: Tag,
    /// The first byte that was asked for.
    pub offset: u64,
    /// How many bytes were asked for.
    pub len: u64,
    /// The rights that were needed.
    pub need: Rights,
    /// The domain of who asked.
    pub domain: Domain,
    /// The queue pair that asked, if one did.
    pub qp: Option<u32>,
    /// What the tag's index names, if anything.
    pub entry: Option<EntryInfo>,
}

impl Denied {
    /// The cause that answers a tagged message, a Write or a Read Response (RFC 5041 §7.2). DDP has no code for a missing right;
    /// RDMAP's is the one that hardware uses.
    pub(crate) const fn write_cause(&self) -> Cause {
        match self.check {
            Check::Domain | Check::Stream => Cause::TaggedBuffer(TaggedBuffer::Stream),
            Check::Wrap => Cause::TaggedBuffer(TaggedBuffer::Wrap),
            Check::Range => Cause::TaggedBuffer(TaggedBuffer::Bounds),
            Check::Right | Check::Bind | Check::QueuePair => Cause::Protection(Protection::Access),
            _ => Cause::TaggedBuffer(TaggedBuffer::Tag),
        }
    }

    /// The cause that answers a Read Request or an Atomic Request (RFC 5040 §4.8, figure 9).
    pub(crate) const fn read_cause(&self) -> Cause {
        Cause::Protection(match self.check {
            Check::Domain | Check::Stream => Protection::Stream,
            Check::Wrap => Protection::Wrap,
            Check::Range => Protection::Bounds,
            Check::Right | Check::Bind | Check::QueuePair => Protection::Access,
            _ => Protection::Tag,
        })
    }

    /// The cause that answers a Send with Invalidate.
    pub(crate) const fn invalidate_cause() -> Cause {
        Cause::Protection(Protection::Invalidate)
    }
}

impl std::error::Error for Denied {}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, offset, len, .. } = *self;
        write!(f, "{}, {len} bytes: ", Place { tag, offset })?;
        match &self.entry {
            _ if self.check == Check::QueuePair => {
                write!(f, "it needs {}, which queue pair {} does not allow", self.need, self.qp.unwrap_or(0))
            }
            Some(entry) => self.explain(entry, f),
            None => f.write_str("the tag names no valid memory: it is wrong, or was deregistered"),
        }
    }
}

impl Denied {
    fn explain(&self, entry: &EntryInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntryInfo { kind, start, len, .. } = *entry;
        match self.check {
            Check::Valid => write!(f, "the {kind} is not valid"),
            Check::Kind => write!(f, "a {kind} cannot be used like this"),
            Check::Domain => {
                write!(f, "the {kind} is of protection domain {}, not {}", entry.domain.0, self.domain.0)
            }
            Check::Stream => write!(f, "the {kind} is another queue pair's, not {}'s", self.qp.unwrap_or(0)),
            Check::Instance => write!(f, "the tag is out of date, the {kind} now has {}", entry.tag),
            Check::Wrap => f.write_str("the range goes beyond 2^64"),
            Check::Range => write!(f, "the {kind} has {len} bytes from {start:#x} on"),
            Check::Right => write!(f, "it needs {}, the {kind} has {}", self.need, entry.rights),
            Check::Bind | Check::QueuePair => f.write_str("windows may not be bound to it"),
            Check::Touched => write!(f, "the {kind} serves one message, and that has come"),
            Check::Idle => write!(f, "the {kind} is valid already"),
            Check::Invalidate => write!(f, "this {kind} cannot be invalidated"),
            Check::Windows => f.write_str("windows are bound to it"),
            Check::Pending => write!(f, "the registration of the {kind} is pending"),
        }
    }
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The table has no room.
    #[error("all {entries} entries of the table are in use")]
    Full {
        /// How many there are.
        entries: usize,
    },
    /// It has no bytes.
    #[error("memory of no length cannot be registered")]
    Empty,
    /// It is longer than its translation.
    #[error("{len} bytes are to be registered, the translation has {translated}")]
    TooLong {
        /// How long it is.
        len: u64,
        /// How long the translation is.
        translated: u64,
    },
    /// Its offsets go beyond 2^64.
    #[error("{len} bytes from {start:#x} on go beyond 2^64")]
    Wrap {
        /// The first offset.
        start: u64,
        /// How long it is.
        len: u64,
    },
    /// What peers may write, the program must be able to write too.
    #[error("remote write and remote atomic rights need the local write right, these are {0}")]
    Rights(Rights),
    /// Windows would outlive one-touch memory.
    #[error("windows cannot be bound to one-touch memory")]
    OneTouch,
    /// Some of it is not mapped.
    #[error("{} bytes at {:#x} are not all mapped", .0.len, .0.addr)]
    Unmapped(Span),
    /// The addresses make no translation.
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// The tag that the registration refers to may not be used for it.
    #[error(transparent)]
    Denied(#[from] Denied),
}

/// Why a tag could not be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// There is no such tag; it may have been given back before.
    #[error("{0} names nothing that is registered")]
    Unknown(Tag),
    /// Windows are bound to the region.
    #[error("{windows} windows are bound to {tag}")]
    Busy {
        /// The region.
        tag: Tag,
        /// How many windows.
        windows: u32,
    },
}

/// Why a region was not registered anew. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReregisterError {
    /// There is no such region, or it is not valid.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Windows are bound to it.
    #[error("{windows} windows are bound to {tag}")]
    Busy {
        /// The region.
        tag: Tag,
        /// How many windows.
        windows: u32,
    },
    /// What it is to become cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}
