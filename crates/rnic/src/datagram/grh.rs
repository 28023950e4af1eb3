//! The Global Route Header (GRH): 40 bytes that precede every received message in the buffer of the receive, as
//! programs for RoCE expect. A program reads the sender's address from the GRH, or creates an address handle from it
//! to reply.
//!
//! The GRH has the form of an IPv6 header, as in RoCE version 1, even if the datagram was sent over IPv4: the
//! addresses are complete GIDs, because programs compare all 16 bytes.

use crate::gid::Gid;

/// The Global Route Header of a received datagram: its source, destination and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Number of bytes that would follow the GRH on InfiniBand: its transport headers, the message rounded up to a
    /// multiple of four, and its checksum.
    pub payload_len: u16,
    /// Hop limit, as set by the sender.
    pub hop_limit: u8,
    /// The sender's address.
    pub source: Gid,
    /// The receiver's address.
    pub destination: Gid,
}

/// The IP version that the header states.
const VERSION: u32 = 6;
/// The next-header value for InfiniBand's transport header.
const NEXT_HEADER: u8 = 0x1b;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// Number of bytes that InfiniBand adds to the payload: base header, datagram header and checksum.
const TRANSPORT: usize = 12 + 8 + 4;
/// Length of immediate data.
const IMMEDIATE: usize = 4;

// The layout, as of an IPv6 header, in network byte order:
//
// | bytes | field |
// |---|---|
// | 0 to 3 | version (4 bits), traffic class (8 bits), flow label (20 bits) |
// | 4, 5 | payload length |
// | 6 | next header |
// | 7 | hop limit |
// | 8 to 23 | source |
// | 24 to 39 | destination |
impl Grh {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// Parses the first 40 bytes of a receive's buffer. Returns `None` if they are not a GRH.
    ///
    /// ```
    /// # use ironwarp_rnic::datagram::Grh;
    /// assert_eq!(Grh::parse(&[0; 40]), None);
    /// ```
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; Self::LEN] = bytes.first_chunk()?;
        let [w0, w1, w2, w3, len_high, len_low, next_header, hop_limit, addresses @ ..] = *header;
        let first_word = u32::from_be_bytes([w0, w1, w2, w3]);
        if first_word >> 28 != VERSION || next_header != NEXT_HEADER {
            return None;
        }
        let (source, destination) = addresses.split_at(16);
        Some(Self {
            traffic_class: (first_word >> 20 & 0xff) as u8,
            flow_label: first_word & FLOW_LABEL_MASK,
            payload_len: u16::from_be_bytes([len_high, len_low]),
            hop_limit,
            source: Gid::from_bytes(*source.first_chunk()?),
            destination: Gid::from_bytes(*destination.first_chunk()?),
        })
    }

    /// Splits the bytes of a completed receive into the GRH and the message. Returns `None` if they do not start with
    /// a GRH.
    ///
    /// ```
    /// # use ironwarp_rnic::datagram::Grh;
    /// # let mut received = vec![0; 45];
    /// # (received[0], received[6]) = (0x60, 0x1b);
    /// # received[40..].copy_from_slice(b"hello");
    /// let (grh, message) = Grh::split(&received).expect("a datagram was received");
    /// assert_eq!((grh.hop_limit, message), (0, &b"hello"[..]));
    /// ```
    pub fn split(received: &[u8]) -> Option<(Self, &[u8])> {
        Some((Self::parse(received)?, received.get(Self::LEN..)?))
    }

    /// Encodes the header. A flow label of more than 20 bits is cut.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let word = VERSION << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL_MASK;
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&word.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        bytes[6] = NEXT_HEADER;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.source.to_bytes());
        bytes[24..].copy_from_slice(&self.destination.to_bytes());
        bytes
    }

    /// Returns the [`payload_len`](Self::payload_len) for a message of `len` bytes, with or without immediate data.
    pub(super) fn ib_payload_len(len: usize, immediate: bool) -> u16 {
        let len = TRANSPORT + if immediate { IMMEDIATE } else { 0 } + len.next_multiple_of(4);
        u16::try_from(len).unwrap_or(u16::MAX)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_grh_has_the_form_of_an_ipv6_header_with_whole_gids() {
        let grh = Grh {
            traffic_class: 0xab,
            flow_label: 0x1_2345,
            payload_len: Grh::ib_payload_len(5, true),
            hop_limit: 64,
            source: "10.0.0.1".parse().unwrap(),
            destination: "fd00::2".parse().unwrap(),
        };
        let bytes = grh.to_bytes();
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 0, 12 + 8 + 4 + 8 + 4, 0x1b, 64]);
        assert_eq!(bytes[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(bytes[24..], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(Grh::parse(&bytes), Some(grh));
        assert_eq!(Grh::parse(&bytes[..39]), None);
    }

    #[test]
    fn what_is_no_grh_is_not_read_as_one() {
        let grh = Grh { payload_len: 24, hop_limit: 1, ..Grh::parse(&example()).unwrap() };
        for (at, wrong) in [(0, 0x45), (6, 17)] {
            let mut bytes = grh.to_bytes();
            bytes[at] = wrong;
            assert_eq!(Grh::parse(&bytes), None, "byte {at}");
        }
    }

    fn example() -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        (bytes[0], bytes[6]) = (0x60, 0x1b);
        bytes
    }
}
