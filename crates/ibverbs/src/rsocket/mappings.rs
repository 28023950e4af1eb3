//! Memory that the peer writes to directly. The program maps it at an offset, by which the peer addresses it.

use super::wire::Hello;
use ironwarp_wire::{Place, Tag};

/// The mappings of a connection.
#[derive(Debug)]
pub(super) struct Mappings {
    /// The mappings of the peer, and the maximum number that this end records.
    remote: Vec<Remote>,
    max_remote: usize,
    /// The mappings of the program, and the maximum number that the peer records.
    pub(super) local: Vec<Local>,
    max_local: usize,
}

#[derive(Clone, Copy, Debug)]
struct Remote {
    offset: u64,
    len: u64,
    tag: Tag,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) addr: u64,
    pub(super) len: usize,
    /// `None` if the peer was not told of it.
    pub(super) tag: Option<Tag>,
}

impl Mappings {
    pub(super) fn new(max_remote: u32) -> Self {
        Self { remote: Vec::new(), max_remote: max_remote as usize, local: Vec::new(), max_local: 0 }
    }

    pub(super) fn connected(&mut self, peer: &Hello) {
        self.max_local = peer.mappings as usize;
    }

    /// Records a mapping of the peer. Returns whether it is valid.
    pub(super) fn add(&mut self, offset: u64, len: u64, tag: Tag) -> bool {
        let possible = self.remote.len() < self.max_remote && offset.checked_add(len).is_some();
        if possible {
            self.remote.push(Remote { offset, len, tag });
        }
        possible
    }

    /// Removes a mapping of the peer. Returns whether there was one.
    pub(super) fn remove(&mut self, tag: Tag) -> bool {
        let at = self.remote.iter().position(|it| it.tag == tag);
        at.map(|at| self.remote.remove(at)).is_some()
    }

    /// The place of an offset in the peer's memory, and the number of bytes mapped from there on.
    pub(super) fn find(&self, offset: u64) -> Option<(Place, u64)> {
        let it = self.remote.iter().find(|it| (it.offset..it.offset + it.len).contains(&offset))?;
        let within = offset - it.offset;
        Some((Place { tag: it.tag, offset: within }, it.len - within))
    }

    /// Whether the peer may write to memory of the program.
    pub(super) fn any(&self) -> bool {
        self.local.iter().any(|it| it.tag.is_some())
    }

    pub(super) fn has_room(&self) -> bool {
        self.local.iter().filter(|it| it.tag.is_some()).count() < self.max_local
    }
}
