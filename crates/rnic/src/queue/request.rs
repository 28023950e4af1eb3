//! Work requests: what a consumer posts. Before this: the verbs; after: `send.rs` and `receive.rs`.

use super::Pushed;
use crate::memory::{Binding, Memory};
use ironwarp_wire::{AtomicOp, Place, Tag};
use std::sync::Arc;

/// A piece of registered memory: an element of a scatter/gather list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The region (lkey).
    pub tag: Tag,
    /// Where in it, as the region counts: the virtual address, for most.
    pub addr: u64,
    /// How many bytes.
    pub len: u32,
}

impl Sge {
    pub(crate) fn place(&self) -> Place {
        Place { tag: self.tag, offset: self.addr }
    }
}

/// A scatter/gather list. Two elements need no allocation.
#[derive(Clone, Debug)]
pub enum Sges {
    /// The first so many of these.
    Few([Sge; 2], u8),
    /// More than two.
    Many(Arc<[Sge]>),
}

impl Default for Sges {
    fn default() -> Self {
        Self::Few([Sge::default(); 2], 0)
    }
}

impl From<&[Sge]> for Sges {
    fn from(list: &[Sge]) -> Self {
        match *list {
            [] => Self::default(),
            [one] => Self::Few([one, Sge::default()], 1),
            [one, two] => Self::Few([one, two], 2),
            _ => Self::Many(list.into()),
        }
    }
}

impl From<Sge> for Sges {
    fn from(one: Sge) -> Self {
        Self::Few([one, Sge::default()], 1)
    }
}

impl Sges {
    /// The elements.
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Few(list, n) => &list[..usize::from(*n)],
            Self::Many(list) => list,
        }
    }

    /// All bytes together.
    pub fn len(&self) -> u64 {
        self.as_slice().iter().map(|sge| u64::from(sge.len)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place that stands for all of them: in a Read Request, whose sink the peer copies blindly into its answer, and in
    /// messages.
    pub(crate) fn place(&self) -> Place {
        self.as_slice().first().map_or(Place::default(), Sge::place)
    }

    /// Calls `each` for the elements, or parts of them, that hold the `len` bytes from `offset` on, in order.
    pub(crate) fn range<E>(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(Sge) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut skip, mut left) = (offset, len as u64);
        for sge in self.as_slice() {
            if left == 0 {
                break;
            }
            let all = u64::from(sge.len);
            if skip >= all {
                skip -= all;
                continue;
            }
            let take = (all - skip).min(left);
            #[expect(clippy::cast_possible_truncation, reason = "at most the element's own length")]
            each(Sge { tag: sge.tag, addr: sge.addr.wrapping_add(skip), len: take as u32 })?;
            (skip, left) = (0, left - take);
        }
        Ok(())
    }
}

/// What a Send or Write carries, or where a Read puts what it fetches.
#[derive(Clone, Debug)]
pub enum Data {
    /// Registered memory.
    Memory(Sges),
    /// Bytes that were copied when the request was posted (requirement X5): no region, and free for reuse at once.
    Inline(Pushed),
}

impl Data {
    /// How many bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(sges) => sges.len(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a work request on the send queue asks for.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A message for the peer's next receive; it may end the registration of a tag of the peer's (requirement M12).
    Send {
        /// The peer's tag to invalidate.
        invalidate: Option<Tag>,
    },
    /// RDMA Write to the peer's memory.
    Write(Place),
    /// RDMA Read of the peer's memory.
    Read(Place),
    /// An atomic operation on a 64-bit word of the peer's (RFC 7306 §5); its value before goes to the data.
    Atomic {
        /// The word.
        target: Place,
        /// What to do with it.
        op: AtomicOp,
    },
    /// Binds a window to a part of a region (requirement M3). It gets the next instance of its tag.
    Bind {
        /// The window.
        window: Tag,
        /// What it shall show.
        binding: Binding,
    },
    /// The same, and the consumer has chosen which instance of its tag the window gets.
    BindAs {
        /// The window, by the tag that it gets.
        tag: Tag,
        /// What it shall show.
        binding: Binding,
    },
    /// Registers memory under a tag that was allocated before (requirement M6).
    Register {
        /// The tag, which requests behind this one may use.
        tag: Tag,
        /// The memory.
        memory: Memory,
    },
    /// Ends a registration or a binding.
    Invalidate(Tag),
}

impl Operation {
    /// Done by the adapter alone: nothing goes out.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::Bind { .. } | Self::BindAs { .. } | Self::Register { .. } | Self::Invalidate(_))
    }
}

/// A work request for the send queue.
#[derive(Clone, Debug)]
pub struct WorkRequest {
    /// Returned in the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// With which bytes.
    pub data: Data,
    /// Whether success is reported; failure always is.
    pub signaled: bool,
    /// Wait until all earlier Reads and atomic operations are done.
    pub fence: bool,
    /// A message that uses up a receive: shall the peer's program be woken (requirement N8)?
    pub solicited: bool,
    /// Data that the peer finds in its completion: of a Send, or of a Write, which then uses up a receive.
    pub immediate: Option<u32>,
    /// XRC: the number of the peer's shared receive queue. Otherwise zero.
    pub srq: u32,
}

impl WorkRequest {
    /// A request whose success is reported, with nothing special to it.
    pub const fn new(id: u64, operation: Operation, data: Data) -> Self {
        let (signaled, fence, solicited) = (true, false, false);
        Self { id, operation, data, signaled, fence, solicited, immediate: None, srq: 0 }
    }
}

/// A work request for the receive queue.
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// Returned in the completion.
    pub id: u64,
    /// Where the message goes.
    pub buffers: Sges,
}
