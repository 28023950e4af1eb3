//! The translation and protection table (requirement M2): which memory a tag names, and who may access it
//! how.
//!
//! A work request or a remote message names memory by tag and offset. Before a byte moves, [`Table::admit_local`]
//! or [`Table::admit_remote`] checks the access and translates it into [`Spans`] of the program's memory, which the
//! stream then hands to the link. Along with the spans comes a [`Guard`]: the tag cannot be revoked while it
//! is held. Revoking a tag (deregistration, invalidation, a new binding) waits for the guards, so that it is
//! final when it returns. A thread that revokes a tag must not hold a guard itself.
//!
//! ```text
//!  tag ──24 bits──► entry: range, domain, rights ──► translation ──► spans      access → entry → translation
//!      └─8 bits──►  instance, must be equal          (may be shared)
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | the checks of an access, in their order | `access.rs` |
//! | guard and translation of an access that passed them | `admit.rs` |
//! | registration and deregistration | `table.rs` |
//! | windows: bind, unbind | `window.rs` |
//! | re-registration | `reregister.rs` |
//! | registrations in progress, and the requests that wait for them | `deferred.rs`, `pending.rs` |
//! | one-touch memory, and its decision table | `touch.rs` |
//! | guards, and how revocation waits for them | `entry.rs` |
//! | storage of entries, and the choice of the next index | `slab.rs` |
//! | why tags cannot be guessed | `cipher.rs` |
//! | translation of offsets to addresses | `translation.rs` |

mod access;
mod admit;
mod cipher;
mod deferred;
mod denied;
mod entry;
mod guards;
mod pending;
mod reregister;
mod slab;
mod spans;
mod table;
mod touch;
mod translation;
mod window;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use cipher::TagCipher;
pub use denied::{Check, Denied, DeregisterError, RegisterError, ReregisterError};
pub use entry::{CachedGuard, Guard};
pub(crate) use guards::Guards;
pub use pending::RegistrationWaiter;
pub use reregister::{Bytes, Reregistration};
pub use spans::Spans;
pub use table::{Limits, Table};
pub use touch::{Position, Touch, Verdict, decide};
pub use translation::{PageSize, Translation, TranslationError};
pub use window::{Binding, Scope};

use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// A protection domain: memory registered in one domain cannot be reached from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// The stream that makes an access: a queue pair and its protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The domain of the queue pair.
    pub domain: Domain,
    /// The number of the queue pair.
    pub qp: u32,
}

bitflags::bitflags! {
    /// The kinds of access that memory allows (requirement M3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// Local work requests may read it: as the source of a Send or a Write.
        const LOCAL_READ = 1;
        /// Local work requests may write it: as the sink of a Receive or a Read.
        const LOCAL_WRITE = 1 << 1;
        /// Peers may read it.
        const REMOTE_READ = 1 << 2;
        /// Peers may write it.
        const REMOTE_WRITE = 1 << 3;
        /// Peers may execute atomic operations on it.
        const REMOTE_ATOMIC = 1 << 4;
        /// Windows may be bound to it.
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

/// What an entry of the table names (requirement M3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Registered memory.
    #[default]
    Region,
    /// Part of a region, accessible to peers only.
    Window,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region => "region",
            Self::Window => "window",
        })
    }
}

/// Memory to be registered.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The offset by which accesses name its first byte: usually its address, or zero for a zero-based
    /// region.
    pub start: u64,
    /// Length in bytes: the region covers this much of the translation, from its beginning.
    pub len: u64,
    /// The kinds of access that it allows.
    pub rights: Rights,
    /// Whether it serves a single remote message and is invalidated when that message has ended (requirement
    /// M10). The peer is not told. No window may be bound to it, because the window would outlive it.
    pub one_touch: bool,
    /// Translation of offsets to addresses. Several registrations may share one (requirement M5).
    pub translation: Arc<Translation>,
}

impl Memory {
    /// Describes contiguous bytes whose offsets are their addresses.
    pub fn direct(addr: u64, len: u64, rights: Rights) -> Result<Self, TranslationError> {
        let translation = Arc::new(Translation::direct(addr, len)?);
        Ok(Self { start: addr, len, rights, one_touch: false, translation })
    }
}

/// What the table knows about a tag, for queries and error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// The tag with the current instance of the entry.
    pub tag: Tag,
    /// What it names.
    pub kind: Kind,
    /// Whether it can be accessed now. An entry for a send-queue registration cannot until the registration
    /// was executed, and a window cannot until it is bound.
    pub valid: bool,
    /// The protection domain that it belongs to.
    pub domain: Domain,
    /// The only queue pair whose peer may access it, if it is a window bound to one.
    pub qp: Option<u32>,
    /// The offset of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The kinds of access that it allows.
    pub rights: Rights,
    /// Whether it serves a single message.
    pub one_touch: bool,
    /// Whether a message has claimed it. Only for one-touch memory.
    pub touched: bool,
}

/// Number of low bits of a tag that hold the instance; the others hold the index (requirement M4).
const INSTANCE_BITS: u32 = 8;

/// Returns the next tag of the same entry: the one that a binding gives a window, and that a send-queue
/// registration must name if its entry was used before. Known in advance, so that later requests on the same
/// queue can name it (requirement M6).
pub const fn next_tag(tag: Tag) -> Tag {
    let [high @ .., instance] = tag.0.to_be_bytes();
    let [a, b, c] = high;
    Tag(u32::from_be_bytes([a, b, c, instance.wrapping_add(1)]))
}

const fn tag_of(index: u32, instance: u8) -> Tag {
    Tag(index << INSTANCE_BITS | instance as u32)
}

const fn index_of(tag: Tag) -> u32 {
    tag.0 >> INSTANCE_BITS
}

const fn instance_of(tag: Tag) -> u8 {
    let [.., instance] = tag.0.to_be_bytes();
    instance
}
