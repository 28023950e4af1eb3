//! Names of remotely accessible memory: [`Tag`] and [`RemoteAddr`].

use core::fmt;

/// A steering tag: names a region or window of memory (the RFC's STag, the verbs' lkey or rkey).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// An address in tagged memory: a tag, and an offset in the memory that the tag names (the RFC's STag and Tagged
/// Offset).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteAddr {
    /// The tag of the region or window.
    pub tag: Tag,
    /// The offset in the region or window.
    pub offset: u64,
}

impl RemoteAddr {
    /// Returns the address `bytes` bytes after this one. Whether it is still in the region is checked by the peer.
    ///
    /// ```
    /// # use ironwarp_wire::{RemoteAddr, Tag};
    /// let counters = RemoteAddr { tag: Tag(0x1234), offset: 0x100 };
    /// assert_eq!(counters.offset_by(3 * 8).offset, 0x118);
    /// ```
    #[inline]
    pub const fn offset_by(self, bytes: u64) -> Self {
        Self { tag: self.tag, offset: self.offset.wrapping_add(bytes) }
    }

    /// Encodes the address in network byte order, tag first, so that it can be sent to the peer, which decodes it with
    /// [`from_bytes`](Self::from_bytes).
    ///
    /// ```
    /// # use ironwarp_wire::{RemoteAddr, Tag};
    /// let addr = RemoteAddr { tag: Tag(0x1234), offset: 0x56 };
    /// assert_eq!(addr.to_bytes(), [0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0x56]);
    /// ```
    pub const fn to_bytes(self) -> [u8; 12] {
        let ([a, b, c, d], [e, f, g, h, i, j, k, l]) = (self.tag.0.to_be_bytes(), self.offset.to_be_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Decodes the bytes that [`to_bytes`](Self::to_bytes) returned. Returns `None` unless there are exactly 12.
    ///
    /// ```
    /// # use ironwarp_wire::{RemoteAddr, Tag};
    /// let addr = RemoteAddr { tag: Tag(0x1234), offset: 0x56 };
    /// assert_eq!(RemoteAddr::from_bytes(&addr.to_bytes()), Some(addr));
    /// assert_eq!(RemoteAddr::from_bytes(b"too short"), None);
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, offset) = bytes.split_first_chunk()?;
        let offset = offset.try_into().ok()?;
        Some(Self { tag: Tag(u32::from_be_bytes(*tag)), offset: u64::from_be_bytes(offset) })
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.tag, self.offset)
    }
}
