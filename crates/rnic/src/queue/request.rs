//! Work requests, as a consumer posts them to send and receive queues.

use super::InlineData;
use crate::memory::{Binding, Memory};
use ironwarp_wire::{AtomicOp, RemoteAddr, Tag};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

/// An element of a scatter/gather list: a range of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sge {
    /// The tag of the region (lkey).
    pub tag: Tag,
    /// The address within the region: usually a virtual address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Sge {
    /// Returns tag and address as a [`RemoteAddr`].
    pub(crate) fn addr(&self) -> RemoteAddr {
        RemoteAddr { tag: self.tag, offset: self.addr }
    }
}

/// A scatter/gather list. Up to two elements need no allocation.
#[derive(Clone, Debug)]
pub enum Sges {
    /// The elements, and how many of them are used.
    Few([Sge; 2], u8),
    /// More than two.
    Many(Arc<[Sge]>),
}

impl Default for Sges {
    fn default() -> Self {
        Self::Few([Sge::default(); 2], 0)
    }
}

// Not derived: only the elements in use matter.
impl Serialize for Sges {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Sges {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::from(&*Vec::<Sge>::deserialize(from)?))
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

    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        match self.as_slice() {
            [one] => one.len.into(), // most have one
            list => list.iter().map(|sge| u64::from(sge.len)).sum(),
        }
    }

    /// Whether the total length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the place of the first element, which names the whole list: as the sink of a Read Request, which the
    /// peer repeats in its response, and in error messages. Default if the list is empty.
    pub(crate) fn addr(&self) -> RemoteAddr {
        self.as_slice().first().map_or(RemoteAddr::default(), Sge::addr)
    }

    /// Calls `each`, in order, for the parts of elements that hold the `len` bytes from `offset` on, counted from the
    /// first byte of the list. Stops at the first error.
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

/// The payload of a Send or Write, or the sink of a Read or atomic operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Data {
    /// Registered memory.
    Memory(Sges),
    /// Bytes that were copied when the request was posted (requirement X5). They need no region, and their source
    /// can be reused at once.
    Inline(InlineData),
}

// Send queues hold many of these.
const _: () = assert!(size_of::<Data>() <= 40);

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(sges) => sges.len(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The operation of a work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Sends a message for the peer's next receive. Can invalidate a remote tag (requirement M12).
    Send {
        /// The remote tag to invalidate, if any.
        invalidate: Option<Tag>,
    },
    /// RDMA Write to this address.
    Write(RemoteAddr),
    /// RDMA Read from this address.
    Read(RemoteAddr),
    /// An atomic operation on a remote 64-bit word (RFC 7306 §5). The old value of the word is stored in the memory of
    /// [`WorkRequest::data`].
    Atomic {
        /// The place of the word.
        target: RemoteAddr,
        /// The operation.
        op: AtomicOp,
    },
    /// Binds a window to a part of a region (requirement M3). The window gets the next instance of its tag.
    Bind {
        /// The window.
        window: Tag,
        /// What the window covers.
        binding: Binding,
    },
    /// Binds a window to a part of a region, with an instance of its tag that the consumer chose.
    BindAs {
        /// The new tag of the window.
        tag: Tag,
        /// What the window covers.
        binding: Binding,
    },
    /// Registers memory under a tag that was allocated before (requirement M6).
    Register {
        /// The tag. Requests posted after this one may use it.
        tag: Tag,
        /// The memory.
        memory: Memory,
    },
    /// Registers memory under a tag that was allocated before, then sends a message for the peer's next receive: one
    /// request with one completion, as that of a Send (requirement M12). If the registration is refused, nothing is
    /// sent. If the data of the message may not be read, the tag does not stay valid.
    RegisterSend {
        /// The tag. The data of this request and all requests posted after it may use it.
        tag: Tag,
        /// The memory.
        memory: Memory,
        /// The remote tag to invalidate, if any.
        invalidate: Option<Tag>,
    },
    /// Invalidates the local region or window with this tag.
    Invalidate(Tag),
}

// Send queues hold many of these. The operands of an atomic operation take the most room.
const _: () = assert!(size_of::<Operation>() <= 56);

impl Operation {
    /// Whether the adapter executes the operation without sending anything. It executes the registration of
    /// [`RegisterSend`](Self::RegisterSend) in the same way; the request is then a [`Send`](Self::Send).
    pub(crate) const fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Bind { .. }
                | Self::BindAs { .. }
                | Self::Register { .. }
                | Self::RegisterSend { .. }
                | Self::Invalidate(_)
        )
    }

    /// Whether the operation is a Send, with or without a registration before it.
    pub(crate) const fn is_send(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::RegisterSend { .. })
    }
}

/// A work request for the send queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkRequest {
    /// The identifier returned in the completion.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// Payload of a Send or Write, sink of a Read or atomic operation. Empty for local operations.
    pub data: Data,
    /// Whether the request gets a completion if it succeeds. If it fails, it always gets one.
    pub signaled: bool,
    /// Whether the request waits until all earlier Reads and atomic operations are complete.
    pub fence: bool,
    /// Whether the completion of the remote receive is solicited (requirement N8).
    pub solicited: bool,
    /// Immediate data for the remote completion of a Send or Write. A Write with immediate data uses a remote receive.
    pub immediate: Option<u32>,
    /// XRC: the number of the remote shared receive queue. Otherwise zero.
    pub srq: u32,
}

impl WorkRequest {
    /// Creates a signaled request without further options.
    pub const fn new(id: u64, operation: Operation, data: Data) -> Self {
        let (signaled, fence, solicited) = (true, false, false);
        Self { id, operation, data, signaled, fence, solicited, immediate: None, srq: 0 }
    }
}

/// A work request for the receive queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiveRequest {
    /// The identifier returned in the completion.
    pub id: u64,
    /// The buffers for the message.
    pub buffers: Sges,
}
