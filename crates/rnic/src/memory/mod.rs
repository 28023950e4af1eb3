//! The translation and protection table (requirement M2): which memory a tag names, and who may do what with it.
//!
//! A work request or a peer's message names memory by tag and offset. Before a byte moves, [`Table::local`] or
//! [`Table::remote`] checks the access and turns it into [`Spans`] of the program's memory, which the stream then hands
//! to the link. With the spans comes a [`Guard`]: as long as it is held, the memory stays the tag's. Taking a tag away
//! (deregistration, invalidation, a new binding) waits for the guards, so that it is final when it returns. Whoever does
//! that must hold no guard itself.
//!
//! ```text
//!  tag ──24 bits──► entry: range, domain, rights ──► translation ──► spans      access → entry → translation
//!      └─8 bits──►  instance, must be equal          (may be shared)
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | the checks of an access, in their order | `access.rs` |
//! | registration, and how it ends | `table.rs` |
//! | windows: bind, unbind | `window.rs` |
//! | a new registration for an old one | `reregister.rs` |
//! | a registration that is under way, and who waits for it | `pending.rs` |
//! | memory that serves one message, and the table of when it ends | `touch.rs` |
//! | guards, and how revocation waits for them | `entry.rs` |
//! | where entries live, and which index is used next | `slab.rs` |
//! | why tags cannot be guessed | `cipher.rs` |
//! | from offsets to addresses | `translation.rs` |

mod access;
mod cipher;
mod denied;
mod entry;
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
pub use entry::{Guard, Hold};
pub use pending::Stalled;
pub use reregister::{Bytes, Reregistration};
pub use spans::Spans;
pub use table::{Limits, Table};
pub use touch::{Position, Touch, Verdict, decide};
pub use translation::{PageSize, Translation, TranslationError};
pub use window::{Binding, Scope};

use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// A protection domain: what is registered in one cannot be reached from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// Who asks: a queue pair, and the domain it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The domain of the queue pair.
    pub domain: Domain,
    /// The number of the queue pair.
    pub qp: u32,
}

bitflags::bitflags! {
    /// What may be done with memory (requirement M3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// Local work requests may read it: Send, Write, the answer to a Read.
        const LOCAL_READ = 1;
        /// Local work requests may write it: Receive, the sink of a Read.
        const LOCAL_WRITE = 1 << 1;
        /// Peers may read it.
        const REMOTE_READ = 1 << 2;
        /// Peers may write it.
        const REMOTE_WRITE = 1 << 3;
        /// Peers may do atomic operations on it.
        const REMOTE_ATOMIC = 1 << 4;
        /// Windows may be bound to it.
        const BIND = 1 << 5;
    }
}

impl Rights {
    /// All that peers may be allowed.
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

/// What an entry names (requirement M3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory that was registered.
    #[default]
    Region,
    /// Part of a region, for peers only.
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

/// What is to be registered.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The offset of its first byte, as accesses will name it: its address as a rule, zero for a zero-based region.
    pub start: u64,
    /// How many bytes of the translation it takes, from the front.
    pub len: u64,
    /// What may be done with it.
    pub rights: Rights,
    /// Whether it serves one message of a peer's, and is invalid when that has ended (requirement M10). The peer is not
    /// told. Windows would outlive it, so none may be bound to it.
    pub one_touch: bool,
    /// Where its bytes are. Several registrations may share one (requirement M5).
    pub translation: Arc<Translation>,
}

impl Memory {
    /// A run of bytes, named by their addresses.
    pub fn direct(addr: u64, len: u64, rights: Rights) -> Result<Self, TranslationError> {
        let translation = Arc::new(Translation::direct(addr, len)?);
        Ok(Self { start: addr, len, rights, one_touch: false, translation })
    }
}

/// What the table knows of a tag, for queries and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// The tag with the instance that the entry has now.
    pub tag: Tag,
    /// What it names.
    pub kind: Kind,
    /// Whether it can be used now. An entry for a send-queue registration is not until that was executed, a window
    /// not until it is bound.
    pub valid: bool,
    /// Whose it is.
    pub domain: Domain,
    /// The only queue pair whose peer may use it, if it is a window bound to one.
    pub qp: Option<u32>,
    /// The offset of its first byte.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// What may be done with it.
    pub rights: Rights,
    /// Whether it serves one message only.
    pub one_touch: bool,
    /// Whether that has come.
    pub touched: bool,
}

/// The bits of a tag that are the instance; the others are the index (requirement M4).
const INSTANCE_BITS: u32 = 8;

/// The tag that the same entry has next: what a binding gives a window, and what a send-queue registration must name when
/// its entry was used before. Known in advance, so that later requests on the same queue can name it (requirement M6).
pub const fn following(tag: Tag) -> Tag {
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
