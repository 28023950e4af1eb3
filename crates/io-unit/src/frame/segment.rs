//! Segmentation and checksums in software, for receivers without offloads.
//!
//! Follows what Linux does for a device without offloads, byte for byte: `tcp_gso_segment`, `__udp_gso_segment`,
//! `inet_gso_segment`, `ipv6_gso_segment` and `skb_checksum_help`.

use super::check::{Invalid, check};
use super::checksum::Sum;
use super::header::{
    ETHERNET_HEADER, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, Header, TCP_HEADER, UDP_HEADER,
};

const ETHERTYPE: usize = 12;
const VLAN_TAG: usize = 4;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;

// Fields in the headers of IPv4, TCP and UDP.
const IPV4_LENGTH: usize = 2;
const IPV4_ID: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV6_LENGTH: usize = 4;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const UDP_LENGTH: usize = 4;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// Where the headers of a super-packet are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    version: Version,
    protocol: u8,
    /// Offset of the IP header.
    ip: usize,
    /// Offset of the header of TCP or UDP.
    transport: usize,
    /// Offset of the checksum of TCP or UDP.
    checksum: usize,
    /// Offset of the payload.
    payload: usize,
}

/// Passes a frame with its virtio header to `emit` as plain Ethernet frames, each with all checksums and within the MTU. A
/// super-packet becomes at most [`MAX_SEGMENTS`](super::MAX_SEGMENTS) frames. If the frame is invalid, emits none.
pub fn segments(bytes: &[u8], mtu: u32, mut emit: impl FnMut(&[u8])) -> Result<(), Invalid> {
    check(bytes, bytes.len(), mtu)?;
    let (header, frame) = Header::split(bytes).ok_or(Invalid::Short(bytes.len()))?;
    if header.gso != GSO_NONE {
        let layout = Layout::find(&header, frame)?;
        return layout.segment(&header, frame, mtu, emit);
    }
    if !header.needs_checksum() {
        emit(frame);
        return Ok(());
    }
    // The field holds the sum of the pseudo-header.
    let start = usize::from(header.start);
    let sum = Sum::default().add_bytes(&frame[start..]).finish();
    let mut whole = frame.to_vec();
    // Linux avoids 0, "no checksum" to UDP, for all protocols: the receiver sees no difference.
    put(&mut whole, start + usize::from(header.offset), if sum == 0 { u16::MAX } else { sum });
    emit(&whole);
    Ok(())
}

impl Layout {
    /// Finds and checks the headers of a super-packet whose virtio header was checked.
    fn find(header: &Header, frame: &[u8]) -> Result<Self, Invalid> {
        let Header { gso, start, offset, .. } = *header;
        let transport = usize::from(start);
        let (ethertype, ip) = network(&frame[..transport]).ok_or(Invalid::Network { gso, start })?;
        let gso = gso & !GSO_ECN;
        let protocol = if gso == GSO_UDP { UDP } else { TCP };
        let packet = &frame[ip..transport];
        let version = match ethertype {
            [0x08, 0x00] if gso != GSO_TCP6 && is_ipv4(packet, protocol) => Version::V4,
            [0x86, 0xdd] if gso != GSO_TCP4 && is_ipv6(packet, protocol) => Version::V6,
            _ => return Err(Invalid::Network { gso: header.gso, start }),
        };
        let headers = match protocol {
            UDP => UDP_HEADER,
            _ => usize::from(frame.get(transport + 12).map_or(0, |byte| byte >> 4)) * 4,
        };
        let payload = transport + headers;
        if (protocol == TCP && headers < TCP_HEADER) || payload > frame.len() {
            return Err(Invalid::Transport { gso: header.gso, start, len: frame.len() });
        }
        Ok(Self { version, protocol, ip, transport, checksum: transport + usize::from(offset), payload })
    }

    fn segment(
        self,
        header: &Header,
        frame: &[u8],
        mtu: u32,
        mut emit: impl FnMut(&[u8]),
    ) -> Result<(), Invalid> {
        let (headers, payload) = frame.split_at(self.payload);
        let size = usize::from(header.size);
        let longest = self.payload + size.min(payload.len());
        let max = (mtu as usize).min(usize::from(u16::MAX)) + self.ip;
        if longest > max {
            return Err(Invalid::Long { len: longest, max });
        }
        let pseudo = self.pseudo_header(frame);
        let count = payload.len().div_ceil(size).max(1);
        let mut segment = Vec::with_capacity(longest);
        for index in 0..count {
            let from = index * size;
            segment.clear();
            segment.extend(headers);
            segment.extend(&payload[from..payload.len().min(from + size)]);
            self.complete_ip(&mut segment, index);
            self.complete_transport(&mut segment, from, index == 0, index + 1 == count, pseudo);
            emit(&segment);
        }
        Ok(())
    }

    /// Returns the sum of the pseudo-header without its length. The checksum field of a super-packet holds it with the length
    /// of the whole.
    fn pseudo_header(self, frame: &[u8]) -> Sum {
        let len = match self.protocol {
            UDP => get(frame, self.transport + UDP_LENGTH).into(),
            _ => (frame.len() - self.transport) as u64,
        };
        Sum::default().add(get(frame, self.checksum).into()).subtract(len)
    }

    fn complete_ip(self, segment: &mut [u8], index: usize) {
        let len = length(&segment[self.ip..]);
        match self.version {
            Version::V4 => {
                put(segment, self.ip + IPV4_LENGTH, len);
                #[expect(clippy::cast_possible_truncation, reason = "identifications wrap")]
                let id = get(segment, self.ip + IPV4_ID).wrapping_add(index as u16);
                put(segment, self.ip + IPV4_ID, id);
                put(segment, self.ip + IPV4_CHECKSUM, 0);
                let sum = Sum::default().add_bytes(&segment[self.ip..self.transport]).finish();
                put(segment, self.ip + IPV4_CHECKSUM, sum);
            }
            Version::V6 => put(segment, self.ip + IPV6_LENGTH, length(&segment[self.ip + IPV6_HEADER..])),
        }
    }

    /// Completes the header of TCP or UDP of the segment whose payload starts `from` bytes into that of the whole.
    fn complete_transport(self, segment: &mut [u8], from: usize, first: bool, last: bool, pseudo: Sum) {
        let len = length(&segment[self.transport..]);
        if self.protocol == UDP {
            put(segment, self.transport + UDP_LENGTH, len);
        } else {
            let field = &mut segment[self.transport + TCP_SEQUENCE..][..4];
            let sequence = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
            #[expect(clippy::cast_possible_truncation, reason = "a frame is shorter than 4 GiB")]
            field.copy_from_slice(&sequence.wrapping_add(from as u32).to_be_bytes());
            // RFC 3168, section 6.1.2: CWR is sent once. It is the ECN bit of the virtio header.
            let cleared = if first { 0 } else { CWR } | if last { 0 } else { FIN | PSH };
            segment[self.transport + TCP_FLAGS] &= !cleared;
        }
        put(segment, self.checksum, 0);
        let sum = pseudo.add(len.into()).add_bytes(&segment[self.transport..]).finish();
        // RFC 768: 0 means that there is no checksum.
        put(segment, self.checksum, if sum == 0 && self.protocol == UDP { u16::MAX } else { sum });
    }
}

/// Finds the type and the offset of the network header behind up to two VLAN tags, 802.1Q or 802.1ad.
fn network(headers: &[u8]) -> Option<([u8; 2], usize)> {
    (0..=2).map(|tags| ETHERTYPE + tags * VLAN_TAG).find_map(|at| {
        let ethertype = *headers.get(at..)?.first_chunk::<2>()?;
        let is_tag = matches!(ethertype, [0x81, 0x00] | [0x88, 0xa8]);
        (!is_tag).then_some((ethertype, at + ETHERNET_HEADER - ETHERTYPE))
    })
}

/// Returns whether an IPv4 header with its options precedes a whole packet of the protocol.
fn is_ipv4(header: &[u8], protocol: u8) -> bool {
    header.len() >= IPV4_HEADER
        && header[0] >> 4 == 4
        && usize::from(header[0] & 15) * 4 == header.len()
        && header[9] == protocol
        // Neither more fragments nor an offset.
        && get(header, 6) & 0x3fff == 0
}

/// Returns whether an IPv6 header and its extension headers precede a whole packet of the protocol.
fn is_ipv6(headers: &[u8], protocol: u8) -> bool {
    if headers.len() < IPV6_HEADER || headers[0] >> 4 != 6 {
        return false;
    }
    let (mut next, mut rest) = (headers[6], &headers[IPV6_HEADER..]);
    // Hop-by-hop options, routing, destination options (RFC 8200, section 4). A fragment is no whole packet.
    while let (0 | 43 | 60, [after, units, ..]) = (next, rest) {
        let Some(behind) = rest.get(usize::from(*units) * 8 + 8..) else { return false };
        (next, rest) = (*after, behind);
    }
    rest.is_empty() && next == protocol
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Length of a part of a segment: `segment` has checked that it fits.
fn length(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX)
}
