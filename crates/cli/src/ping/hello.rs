//! The private data that client and server exchange when they connect: the operation, the message size and memory
//! addresses.

use super::options::Op;
use ironwarp::memory::{Place, Tag};

/// Name and version of the protocol.
const MAGIC: [u8; 8] = *b"iwping01";

/// The private data of a client's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) op: Op,
    /// Size of each message, in bytes.
    pub(super) size: u32,
    /// Memory of the client, to which the server writes.
    pub(super) place: Place,
}

/// The private data with which a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// Memory of the server, which the client writes or reads.
    pub(super) place: Place,
}

impl Hello {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let op = match self.op {
            Op::Send => 0,
            Op::Write => 1,
            Op::Read => 2,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.push(op);
        bytes.extend(self.size.to_be_bytes());
        bytes.extend(place_to_bytes(self.place));
        bytes
    }

    /// Parses private data. Returns `None` if it is from another program or version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&op, bytes) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        let op = match op {
            0 => Op::Send,
            1 => Op::Write,
            2 => Op::Read,
            _ => return None,
        };
        let (size, bytes) = bytes.split_first_chunk()?;
        Some(Self { op, size: u32::from_be_bytes(*size), place: parse_place(bytes)? })
    }
}

impl Welcome {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&MAGIC[..], &place_to_bytes(self.place)].concat()
    }

    /// Parses private data. Returns `None` if it is from another program or version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { place: parse_place(bytes.strip_prefix(&MAGIC)?)? })
    }
}

fn place_to_bytes(place: Place) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&place.tag.0.to_be_bytes());
    bytes[4..].copy_from_slice(&place.offset.to_be_bytes());
    bytes
}

/// Parses a remote address. Ignores trailing bytes, because a peer may pad private data with zeros.
fn parse_place(bytes: &[u8]) -> Option<Place> {
    let (tag, bytes) = bytes.split_first_chunk()?;
    let offset = bytes.first_chunk()?;
    Some(Place { tag: Tag(u32::from_be_bytes(*tag)), offset: u64::from_be_bytes(*offset) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { tag: Tag(0x0102_0304), offset: 0x1112_1314_1516_1718 };

    #[test]
    fn both_survive_encoding() {
        for op in [Op::Send, Op::Write, Op::Read] {
            let hello = Hello { op, size: 0xa1b2_c3d4, place: PLACE };
            assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        }
        assert_eq!(Welcome::parse(&Welcome { place: PLACE }.to_bytes()), Some(Welcome { place: PLACE }));
    }

    #[test]
    fn truncated_and_foreign_data_are_rejected() {
        let bytes = Hello { op: Op::Read, size: 1, place: PLACE }.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        assert_eq!(Hello::parse(b"iwping02 of a later version"), None);
        assert_eq!(Welcome::parse(&[0; 40]), None);
    }
}
