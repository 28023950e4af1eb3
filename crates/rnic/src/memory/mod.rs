//! The translation and protection table (requirement M2). For each tag, the table records the memory that the
//! tag names, and which streams may access that memory in which ways.
//!
//! A work request or a remote message names memory by tag and offset. Before a byte moves,
//! [`Table::admit_local`] or [`Table::admit_remote`] checks the access and translates it into [`Spans`] of the
//! program's memory, which the stream then passes to the link. Both also return a [`Guard`], which keeps the tag
//! from being revoked. Revoking a tag (deregistration, invalidation, a new binding) waits until all guards are
//! dropped: when the call returns, no access through the tag is in progress and none can begin. A thread that
//! revokes a tag must not hold a guard itself, because it would wait for itself.
//!
//! ```text
//!  tag ──24 bits──► entry: range, domain, rights ──► translation ──► spans      access → entry → translation
//!      └─8 bits──►  instance, must be equal          (may be shared)
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | the checks of an access, in their order | `access.rs` |
//! | guard and translation of an access that passed its checks | `admit.rs` |
//! | registration and deregistration | `table.rs` |
//! | windows: bind, unbind | `window.rs` |
//! | re-registration | `reregister.rs` |
//! | buffers of iSCSI commands | `command.rs` |
//! | registrations in progress, and the queues that wait for them | `deferred.rs`, `pending.rs` |
//! | one-touch memory, and its decision table | `touch.rs` |
//! | guards, and how revocation waits for guards | `entry.rs` |
//! | storage of entries, the choice of the next index, and retired indices | `slab.rs` |
//! | the next tag of a window or region whose index is to be retired | `succession.rs` |
//! | why tags cannot be guessed | `cipher.rs` |
//! | moving to another function | `moving.rs` inside a process, `image.rs` beyond it |
//! | translation of offsets to addresses | `translation.rs`, page tables in `pages.rs` |

mod access;
mod admit;
mod cipher;
mod command;
mod deferred;
mod denied;
mod entry;
mod guards;
mod image;
mod limits;
mod moving;
mod page_size;
mod pages;
mod pending;
mod reregister;
mod slab;
mod spans;
mod succession;
mod table;
mod touch;
mod translation;
mod translation_error;
mod window;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use cipher::TagCipher;
pub use command::{Direction, Transfer};
pub use denied::{Check, Denied, DeregisterError, RegisterError, ReregisterError};
pub use entry::{CachedGuard, Guard};
pub(crate) use guards::Guards;
pub use image::{KeyMask, StillPending, TableError, TableImage};
pub use limits::Limits;
pub use moving::RegionNotMovable;
pub use page_size::PageSize;
pub use pending::RegistrationWaiter;
pub use reregister::{Bytes, Reregistration};
pub use slab::Usage;
pub use spans::Spans;
pub use table::Table;
pub use touch::{Position, Touch, Verdict, decide};
pub use translation::{NotCarried, Translation};
pub use translation_error::TranslationError;
pub use window::{Binding, Scope};

use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A protection domain: memory registered in one domain cannot be reached from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Domain(pub u32);

/// Identifies the stream that makes an access: a queue pair and its protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The domain of the queue pair.
    pub domain: Domain,
    /// The number of the queue pair.
    pub qp: u32,
}

bitflags::bitflags! {
    /// The kinds of access that memory allows (requirement M3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct Rights: u8 {
        /// Local work requests may read the memory, as the source of a Send or a Write.
        const LOCAL_READ = 1;
        /// Local work requests may write the memory, as the sink of a Receive or a Read.
        const LOCAL_WRITE = 1 << 1;
        /// Peers may read the memory.
        const REMOTE_READ = 1 << 2;
        /// Peers may write the memory.
        const REMOTE_WRITE = 1 << 3;
        /// Peers may execute atomic operations on the memory.
        const REMOTE_ATOMIC = 1 << 4;
        /// Windows may be bound to the memory.
        const BIND = 1 << 5;
    }
}

impl Rights {
    /// All rights that a peer can have.
    pub const REMOTE: Self = Self::REMOTE_READ.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        bitflags::parser::to_writer_strict(self, f)
    }
}

/// The kind of memory that an entry of the table names (requirement M3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Registered memory.
    #[default]
    Region,
    /// A memory window: part of a region, accessible to peers only.
    Window,
    /// The buffers of an iSCSI command, accessible only to the target that the command was sent to (requirement M13).
    IscsiCommand,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region => "region",
            Self::Window => "window",
            Self::IscsiCommand => "iSCSI command",
        })
    }
}

/// The parameters of a registration: the memory, its rights and its translation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// The offset by which accesses name the first byte: usually the address of that byte, or zero for a
    /// zero-based region.
    pub start: u64,
    /// Length in bytes. The region covers the first `len` bytes of the translation.
    pub len: u64,
    /// The kinds of access that the region allows.
    pub rights: Rights,
    /// Whether the region serves a single remote message and is invalidated when that message has ended
    /// (requirement M10). The peer is not notified. No window may be bound to a one-touch region, because the
    /// window would outlive the region.
    pub one_touch: bool,
    /// Translation of offsets to addresses. Several registrations may share one translation (requirement M5).
    pub translation: Arc<Translation>,
}

impl Memory {
    /// Describes contiguous bytes whose offsets are their addresses.
    pub fn direct(addr: u64, len: u64, rights: Rights) -> Result<Self, TranslationError> {
        let translation = Arc::new(Translation::direct(addr, len)?);
        Ok(Self { start: addr, len, rights, one_touch: false, translation })
    }
}

/// A description of one entry of the table, for queries and error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryInfo {
    /// The tag with the current instance of the entry.
    pub tag: Tag,
    /// Whether the entry is a region or a window.
    pub kind: Kind,
    /// Whether the memory can be accessed now. An entry for send-queue registrations becomes valid when a
    /// registration is executed, and a window when it is bound.
    pub valid: bool,
    /// The protection domain of the entry.
    pub domain: Domain,
    /// The only queue pair whose peer may access a window of [`Scope::Stream`]. `None` for all other entries.
    pub qp: Option<u32>,
    /// The offset of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The kinds of access that the entry allows.
    pub rights: Rights,
    /// Whether the memory serves a single remote message.
    pub one_touch: bool,
    /// Whether a message has claimed the memory. Always false unless the memory is one-touch.
    pub touched: bool,
}

/// Number of low bits of a tag that hold the instance; the others hold the index (requirement M4).
const INSTANCE_BITS: u32 = 8;

/// Returns the tag that follows `tag` on the same entry: the same index with the next instance.
///
/// A binding gives its window this tag, and a send-queue registration of an entry that was valid before must name
/// this tag, unless the index has no instances left (requirement M4): [`Table::reserve_next_tag`] tells.
pub const fn next_tag(tag: Tag) -> Tag {
    let [high @ .., instance] = tag.0.to_be_bytes();
    let [a, b, c] = high;
    Tag(u32::from_be_bytes([a, b, c, instance.wrapping_add(1)]))
}

/// Returns the tag with this index and instance.
const fn tag_of(index: u32, instance: u8) -> Tag {
    Tag(index << INSTANCE_BITS | instance as u32)
}

/// Returns the index of the entry that the tag names.
const fn index_of(tag: Tag) -> u32 {
    tag.0 >> INSTANCE_BITS
}

/// Returns the instance of the tag: its low eight bits.
const fn instance_of(tag: Tag) -> u8 {
    let [.., instance] = tag.0.to_be_bytes();
    instance
}
