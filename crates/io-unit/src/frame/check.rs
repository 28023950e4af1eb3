//! Checks of frames that hosts have sent, before others get them.

use super::header::{
    DATA_VALID, ETHERNET_HEADER, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, Header, MAX_TAGS,
    NEEDS_CHECKSUM, TCP_CHECKSUM, UDP_CHECKSUM, UDP_HEADER,
};
use super::{CHECKSUM, MAX_FRAME, MIN_TCP_SEGMENT, TSO4, TSO6, USO4, USO6, VNET_HEADER};
use crate::message::Mac;

/// Number of bytes at the start of a frame that [`check`] reads: the virtio header and the Ethernet header.
pub const HEAD: usize = VNET_HEADER + ETHERNET_HEADER;
/// Maximum number of datagrams in a super-packet: `UDP_MAX_SEGMENTS` of Linux.
const MAX_DATAGRAMS: usize = 128;

const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// The addresses of a frame that was checked, and the offload that its receiver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Destination.
    pub to: Mac,
    /// Source.
    pub from: Mac,
    /// A bit of the offloads.
    pub offload: u32,
}

/// The reason why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum Invalid {
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
    #[error("frame of {len} bytes exceeds the maximum of {max} bytes")]
    Long { len: usize, max: usize },
    #[error("segmentation {gso:#x} without matching IP headers before the transport header at {start}")]
    Network { gso: u8, start: u16 },
    #[error("segmentation {gso:#x} without a transport header at {start} of a frame of {len} bytes")]
    Transport { gso: u8, start: u16, len: usize },
}

/// Checks a frame of `len` bytes with its header, which starts with `head`: at least [`HEAD`] bytes of it. A kernel must be able
/// to use the header without reading outside of the frame. `head` may be a copy, so that nobody changes it afterwards.
pub fn check(head: &[u8], len: usize, mtu: u32) -> Result<Checked, Invalid> {
    let short = Invalid::Short(len.min(head.len()));
    let (header, frame) = Header::split(head).filter(|_| len.min(head.len()) >= HEAD).ok_or(short)?;
    let len = len - VNET_HEADER;
    let Header { flags, gso, headers, size, start, offset } = header;
    if flags & !(NEEDS_CHECKSUM | DATA_VALID) != 0 {
        return Err(Invalid::Flags(flags));
    }
    if header.needs_checksum() {
        let end = usize::from(start) + usize::from(offset) + 2;
        if usize::from(start) < ETHERNET_HEADER || end > len {
            return Err(Invalid::Checksum { start, offset, len });
        }
    }
    let offload = match gso {
        GSO_NONE => CHECKSUM,
        GSO_UDP if frame[12..14] == ETHERTYPE_IPV6 => USO6,
        GSO_UDP => USO4,
        gso if gso & !GSO_ECN == GSO_TCP4 => TSO4,
        gso if gso & !GSO_ECN == GSO_TCP6 => TSO6,
        _ => return Err(Invalid::Segmentation(gso)),
    };
    let max = match gso {
        GSO_NONE => mtu as usize + ETHERNET_HEADER + MAX_TAGS,
        _ => MAX_FRAME - VNET_HEADER,
    };
    if len > max {
        return Err(Invalid::Long { len, max });
    }
    // The rules of Linux, which drops super-packets with another checksum or more datagrams. Its TCP never sends shorter
    // segments. Without a minimum, a frame would cost its receiver 64 K frames.
    let payload = len.saturating_sub(usize::from(start) + UDP_HEADER);
    let divisible = match gso {
        GSO_NONE => true,
        GSO_UDP => offset == UDP_CHECKSUM && payload <= usize::from(size) * MAX_DATAGRAMS && size > 0,
        _ => offset == TCP_CHECKSUM && size >= MIN_TCP_SEGMENT,
    };
    let fits = header.needs_checksum() && u32::from(size) <= mtu && usize::from(headers) <= len;
    if !divisible || gso != GSO_NONE && !fits {
        return Err(Invalid::Segments { gso, size, headers, flags });
    }
    let mac = |at: usize| Mac(std::array::from_fn(|index| frame[at + index]));
    Ok(Checked { to: mac(0), from: mac(6), offload })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes only the head of a frame, as callers do that have the rest in registered memory.
    fn check_head(bytes: &[u8], mtu: u32) -> Result<Checked, Invalid> {
        check(&bytes[..bytes.len().min(HEAD)], bytes.len(), mtu)
    }

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
        assert_eq!(check_head(&frame(plain, 60), 1500), Ok(Checked { to, from, offload: CHECKSUM }));
        for len in 0..HEAD {
            assert_eq!(check_head(&frame(plain, 60)[..len], 1500), Err(Invalid::Short(len)));
            assert_eq!(check(&frame(plain, 60)[..len], 72, 1500), Err(Invalid::Short(len)));
            assert_eq!(check(&frame(plain, 60), len, 1500), Err(Invalid::Short(len)));
        }
        assert!(check_head(&frame(plain, 1522), 1500).is_ok());
        assert_eq!(check_head(&frame(plain, 1523), 1500), Err(Invalid::Long { len: 1523, max: 1522 }));
        let checksum = |start: u16, offset: u16| {
            let ([a, b], [c, d]) = (start.to_le_bytes(), offset.to_le_bytes());
            check_head(&frame([1, 0, 0, 0, 0, 0, a, b, c, d, 0, 0], 60), 1500)
        };
        assert!(checksum(34, 16).is_ok() && checksum(34, 24).is_ok());
        for (start, offset) in [(34, 25), (13, 2), (60, 0), (u16::MAX, u16::MAX)] {
            assert_eq!(checksum(start, offset), Err(Invalid::Checksum { start, offset, len: 60 }));
        }
        let segments = |flags, gso, headers, size| {
            let offset = if gso == 5 { 6 } else { 16 };
            check_head(&frame([flags, gso, headers, 0, size, 0, 34, 0, offset, 0, 0, 0], 9000), 1500)
        };
        for (gso, offload) in [(1, TSO4), (4, TSO6), (0x81, TSO4), (5, USO4)] {
            assert_eq!(segments(1, gso, 54, 200).map(|checked| checked.offload), Ok(offload));
        }
        assert!(segments(1, 1, 54, 8).is_ok());
        assert!(matches!(segments(1, 1, 54, 7), Err(Invalid::Segments { .. })), "more than 1,000 segments");
        assert!(matches!(segments(1, 5, 42, 69), Err(Invalid::Segments { .. })), "more than 128 datagrams");
        assert!(matches!(segments(0, 1, 54, 200), Err(Invalid::Segments { .. })), "no checksum");
        assert!(matches!(segments(1, 1, 54, 0), Err(Invalid::Segments { .. })), "empty segments");
        let large = frame([1, 1, 54, 0, 0xdd, 5, 34, 0, 16, 0, 0, 0], 9000);
        assert!(
            matches!(check_head(&large, 1500), Err(Invalid::Segments { size: 1501, .. })),
            "above the MTU"
        );
        let mut long = frame([1, 1, 0xff, 0xff, 1, 0, 34, 0, 16, 0, 0, 0], 9000);
        assert!(matches!(check_head(&long, 1500), Err(Invalid::Segments { .. })), "headers beyond the frame");
        long[1] = 3; // UFO, which no kernel sends any more
        assert_eq!(check_head(&long, 1500), Err(Invalid::Segmentation(3)));
        assert_eq!(
            check_head(&frame([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 60), 1500),
            Err(Invalid::Flags(4))
        );
        assert_eq!(segments(1, 0x80, 54, 200), Err(Invalid::Segmentation(0x80)));
    }
}
