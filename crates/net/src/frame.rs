//! Frames with a virtio-net header in front: the checks of frames that hosts have sent, before others get them.

use crate::tap::VNET_HEADER;
use ironwarp_io_unit::message::Mac;

/// Offloads of the protocol: checksum, TSO4, TSO6, USO4 and USO6.
pub(crate) const CHECKSUM: u32 = 1;
const TSO4: u32 = 2;
const TSO6: u32 = 4;
const USO4: u32 = 8;
const USO6: u32 = 16;
/// Offloads of every TAP device.
pub(crate) const TCP_OFFLOADS: u32 = CHECKSUM | TSO4 | TSO6;
/// Offloads of TAP devices since Linux 6.2.
pub(crate) const ALL_OFFLOADS: u32 = TCP_OFFLOADS | USO4 | USO6;

/// Longest frame with its header that is read from a TAP device: a super-packet of 64 KiB.
pub(crate) const MAX_FRAME: usize = 69_632;
const ETHERNET_HEADER: usize = 14;
/// Two VLAN tags.
const MAX_TAGS: usize = 8;

// Fields of `virtio_net_hdr_v1`.
const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// The addresses of a frame that was checked, and the offload that its receiver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) to: Mac,
    pub(crate) from: Mac,
    pub(crate) offload: u32,
}

/// The reason why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("frame of {0} bytes with its header is too short")]
    Short(usize),
    #[error("unknown flags {0:#x} in the virtio header")]
    Flags(u8),
    #[error("unknown segmentation {0:#x} in the virtio header")]
    Segmentation(u8),
    #[error(
        "segmentation {gso:#x} with segments of {size} bytes, {headers} bytes of headers and flags {flags:#x}"
    )]
    Segments { gso: u8, size: u16, headers: u16, flags: u8 },
    #[error("checksum at {start} + {offset} is outside of a frame of {len} bytes")]
    Checksum { start: u16, offset: u16, len: usize },
    #[error("frame of {len} bytes exceeds the MTU of {mtu} bytes")]
    Long { len: usize, mtu: u32 },
}

/// Checks a frame with its header: a kernel must be able to use the header without reading outside of the frame.
pub(crate) fn check(bytes: &[u8], mtu: u32) -> Result<Checked, Invalid> {
    if bytes.len() < VNET_HEADER + ETHERNET_HEADER {
        return Err(Invalid::Short(bytes.len()));
    }
    let (header, frame) = bytes.split_at(VNET_HEADER);
    let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (flags, gso) = (header[0], header[1]);
    let (headers, size, start, offset) = (field(2), field(4), field(6), field(8));
    if flags & !(NEEDS_CHECKSUM | DATA_VALID) != 0 {
        return Err(Invalid::Flags(flags));
    }
    let needs_checksum = flags & NEEDS_CHECKSUM != 0;
    if needs_checksum {
        let end = usize::from(start) + usize::from(offset) + 2;
        if usize::from(start) < ETHERNET_HEADER || end > frame.len() {
            return Err(Invalid::Checksum { start, offset, len: frame.len() });
        }
    }
    let offload = match gso & !GSO_ECN {
        GSO_NONE if gso == GSO_NONE => CHECKSUM,
        GSO_TCP4 => TSO4,
        GSO_TCP6 => TSO6,
        GSO_UDP if frame[12..14] == ETHERTYPE_IPV6 => USO6,
        GSO_UDP => USO4,
        _ => return Err(Invalid::Segmentation(gso)),
    };
    if gso == GSO_NONE {
        if frame.len() > mtu as usize + ETHERNET_HEADER + MAX_TAGS {
            return Err(Invalid::Long { len: frame.len(), mtu });
        }
    } else if !needs_checksum || size == 0 || u32::from(size) > mtu || usize::from(headers) > frame.len() {
        return Err(Invalid::Segments { gso, size, headers, flags });
    }
    let mac = |at: usize| Mac(std::array::from_fn(|index| frame[at + index]));
    Ok(Checked { to: mac(0), from: mac(6), offload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: [u8; VNET_HEADER], len: usize) -> Vec<u8> {
        let mut bytes = header.to_vec();
        bytes.extend([0xff; 6]);
        bytes.extend([2, 0, 0, 0, 0, 1]);
        bytes.resize(VNET_HEADER + len, 0);
        bytes
    }

    #[test]
    fn headers_that_point_outside_of_the_frame_are_refused() {
        let plain = [0; 12];
        let (to, from) = (Mac([0xff; 6]), Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(check(&frame(plain, 60), 1500), Ok(Checked { to, from, offload: CHECKSUM }));
        for len in 0..VNET_HEADER + ETHERNET_HEADER {
            assert_eq!(check(&frame(plain, 60)[..len], 1500), Err(Invalid::Short(len)));
        }
        assert!(check(&frame(plain, 1522), 1500).is_ok());
        assert_eq!(check(&frame(plain, 1523), 1500), Err(Invalid::Long { len: 1523, mtu: 1500 }));
        let checksum = |start: u16, offset: u16| {
            let ([a, b], [c, d]) = (start.to_le_bytes(), offset.to_le_bytes());
            check(&frame([1, 0, 0, 0, 0, 0, a, b, c, d, 0, 0], 60), 1500)
        };
        assert!(checksum(34, 16).is_ok() && checksum(34, 24).is_ok());
        for (start, offset) in [(34, 25), (13, 2), (60, 0), (u16::MAX, u16::MAX)] {
            assert_eq!(checksum(start, offset), Err(Invalid::Checksum { start, offset, len: 60 }));
        }
        let segments = |flags, gso, headers, size| {
            check(&frame([flags, gso, headers, 0, size, 0, 34, 0, 16, 0, 0, 0], 9000), 1500)
        };
        for (gso, offload) in [(1, TSO4), (4, TSO6), (0x81, TSO4), (5, USO4)] {
            assert_eq!(segments(1, gso, 54, 200).map(|checked| checked.offload), Ok(offload));
        }
        assert!(matches!(segments(0, 1, 54, 200), Err(Invalid::Segments { .. })), "no checksum");
        assert!(matches!(segments(1, 1, 54, 0), Err(Invalid::Segments { .. })), "empty segments");
        let large = frame([1, 1, 54, 0, 0xdd, 5, 34, 0, 16, 0, 0, 0], 9000);
        assert!(matches!(check(&large, 1500), Err(Invalid::Segments { size: 1501, .. })), "above the MTU");
        let mut long = frame([1, 1, 0xff, 0xff, 1, 0, 34, 0, 16, 0, 0, 0], 9000);
        assert!(matches!(check(&long, 1500), Err(Invalid::Segments { .. })), "headers beyond the frame");
        long[1] = 3; // UFO, which no kernel sends any more
        assert_eq!(check(&long, 1500), Err(Invalid::Segmentation(3)));
        assert_eq!(check(&frame([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 60), 1500), Err(Invalid::Flags(4)));
        assert_eq!(segments(1, 0x80, 54, 200), Err(Invalid::Segmentation(0x80)));
    }
}
