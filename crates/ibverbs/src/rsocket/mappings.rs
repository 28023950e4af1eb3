//! Memory of one end that the other writes to directly (`riomap`, `riowrite`). A program maps its memory at an
//! offset, and the peer's program writes to it by that offset.

use super::wire::Hello;
use ironwarp_wire::{RemoteAddr, Tag};

/// The mappings of a connection.
#[derive(Debug)]
pub(super) struct Mappings {
    /// Memory of the peer that this end may write to.
    remote: Vec<RemoteMapping>,
    /// Maximum length of `remote`.
    max_remote: usize,
    /// Memory that the program of this end has mapped.
    pub(super) local: Vec<LocalMapping>,
    /// Maximum number of mappings that the peer records. Zero until the connection is established.
    max_local: usize,
}

/// Memory of the peer that this end may write to.
#[derive(Clone, Copy, Debug)]
struct RemoteMapping {
    /// Offset that the program of this end uses for the first byte.
    offset: u64,
    len: u64,
    tag: Tag,
}

/// Memory that the program of this end has mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalMapping {
    pub(super) addr: u64,
    pub(super) len: usize,
    /// Tag by which the peer writes to the memory. `None` if it was mapped with PROT_NONE: then the peer has no
    /// access.
    pub(super) tag: Option<Tag>,
}

impl Mappings {
    pub(super) fn new(max_remote: u32) -> Self {
        Self { remote: Vec::new(), max_remote: max_remote as usize, local: Vec::new(), max_local: 0 }
    }

    /// Sets the limit of the peer, when the connection is established.
    pub(super) fn set_peer(&mut self, peer: &Hello) {
        self.max_local = peer.mappings as usize;
    }

    /// Records a mapping of the peer. Returns false if it is invalid: there are too many, or its range overflows.
    pub(super) fn add_remote(&mut self, offset: u64, len: u64, tag: Tag) -> bool {
        let valid = self.remote.len() < self.max_remote && offset.checked_add(len).is_some();
        if valid {
            self.remote.push(RemoteMapping { offset, len, tag });
        }
        valid
    }

    /// Removes a mapping of the peer. Returns false if there is none with this tag.
    pub(super) fn remove_remote(&mut self, tag: Tag) -> bool {
        let index = self.remote.iter().position(|mapping| mapping.tag == tag);
        index.map(|index| self.remote.remove(index)).is_some()
    }

    /// Finds the address in the peer's memory that is mapped at an offset, and the number of bytes that are mapped
    /// from there on.
    pub(super) fn find_remote(&self, offset: u64) -> Option<(RemoteAddr, u64)> {
        let contains =
            |mapping: &&RemoteMapping| (mapping.offset..mapping.offset + mapping.len).contains(&offset);
        let mapping = self.remote.iter().find(contains)?;
        let within = offset - mapping.offset;
        Some((RemoteAddr { tag: mapping.tag, offset: within }, mapping.len - within))
    }

    /// Whether the peer may write to memory of the program.
    pub(super) fn is_any_writable(&self) -> bool {
        self.local.iter().any(|mapping| mapping.tag.is_some())
    }

    /// Whether the peer records another mapping of the program.
    pub(super) fn may_add_writable(&self) -> bool {
        self.local.iter().filter(|mapping| mapping.tag.is_some()).count() < self.max_local
    }
}
