//! The virtio-net header in front of a frame.

use super::VNET_HEADER;

pub(super) const ETHERNET_HEADER: usize = 14;
/// Two VLAN tags.
pub(super) const MAX_TAGS: usize = 8;

// Values of the fields.
pub(super) const NEEDS_CHECKSUM: u8 = 1;
pub(super) const DATA_VALID: u8 = 2;
pub(super) const GSO_NONE: u8 = 0;
pub(super) const GSO_TCP4: u8 = 1;
pub(super) const GSO_TCP6: u8 = 4;
pub(super) const GSO_UDP: u8 = 5;
pub(super) const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in the headers of TCP and UDP.
pub(super) const TCP_CHECKSUM: u16 = 16;
pub(super) const UDP_CHECKSUM: u16 = 6;
/// Length of these headers, without options.
pub(super) const TCP_HEADER: usize = 20;
pub(super) const UDP_HEADER: usize = 8;

/// A `virtio_net_hdr_v1`, without its number of buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) flags: u8,
    pub(super) gso: u8,
    /// Length of the headers of the frame: a hint that Linux does not rely on either.
    pub(super) headers: u16,
    /// Length of the payload of each segment.
    pub(super) size: u16,
    /// Offset in the frame from which on the checksum is computed: that of the transport header.
    pub(super) start: u16,
    /// Offset of the checksum, from `start`.
    pub(super) offset: u16,
}

impl Header {
    /// Reads the header at the start of `bytes`, and returns it with the rest. Returns `None` if there are too few.
    pub(super) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = bytes.split_first_chunk::<VNET_HEADER>()?;
        let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let [headers, size, start, offset] = [2, 4, 6, 8].map(field);
        Some((Self { flags: header[0], gso: header[1], headers, size, start, offset }, frame))
    }

    pub(super) fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }
}
