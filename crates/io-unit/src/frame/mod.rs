//! Ethernet frames with a virtio-net header in front, as hosts and units exchange them.
//!
//! Frames come from other hosts and are untrusted: every length and offset is checked before it is used.

mod check;
mod checksum;
mod header;
mod segment;

pub use check::{Checked, HEAD, Invalid, check};
pub use segment::segments;

/// Length of the header in front of each frame: a `virtio_net_hdr_v1`, little-endian.
pub const VNET_HEADER: usize = 12;
/// Longest frame with its header that is read from a TAP device: a super-packet of 64 KiB.
pub const MAX_FRAME: usize = 69_632;
/// Least payload of the TCP segments of a super-packet: `TCP_MIN_GSO_SIZE` of Linux, a segment of 48 bytes minus 40 bytes of
/// options.
pub const MIN_TCP_SEGMENT: u16 = 8;
/// Maximum number of frames that one frame becomes without offloads.
pub const MAX_SEGMENTS: usize = MAX_FRAME / MIN_TCP_SEGMENT as usize;

/// Offload of checksums, as a bit of the protocol.
pub const CHECKSUM: u32 = 1;
/// Segmentation of TCP over IPv4.
pub const TSO4: u32 = 2;
/// Segmentation of TCP over IPv6.
pub const TSO6: u32 = 4;
/// Segmentation of UDP over IPv4.
pub const USO4: u32 = 8;
/// Segmentation of UDP over IPv6.
pub const USO6: u32 = 16;
/// Offloads of every TAP device.
pub const TCP_OFFLOADS: u32 = CHECKSUM | TSO4 | TSO6;
/// Offloads of TAP devices since Linux 6.2.
pub const ALL_OFFLOADS: u32 = TCP_OFFLOADS | USO4 | USO6;
