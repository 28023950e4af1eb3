//! The private data that client and server exchange when they connect: the operation, the message size and memory
//! addresses.

use super::options::Op;
use ironwarp::memory::{RemoteAddr, Tag};

/// Name and version of the protocol.
const MAGIC: [u8; 8] = *b"iwping01";

/// The private data of a client's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) op: Op,
    /// Size of each message, in bytes.
    pub(super) size: u32,
    /// Memory of the client, to which the server writes.
    pub(super) addr: RemoteAddr,
}

/// The private data with which a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// Memory of the server, which the client writes or reads.
    pub(super) addr: RemoteAddr,
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
        bytes.extend(addr_to_bytes(self.addr));
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
        Some(Self { op, size: u32::from_be_bytes(*size), addr: parse_addr(bytes)? })
    }
}

impl Welcome {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&MAGIC[..], &addr_to_bytes(self.addr)].concat()
    }

    /// Parses private data. Returns `None` if it is from another program or version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { addr: parse_addr(bytes.strip_prefix(&MAGIC)?)? })
    }
}

fn addr_to_bytes(addr: RemoteAddr) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&addr.tag.0.to_be_bytes());
    bytes[4..].copy_from_slice(&addr.offset.to_be_bytes());
    bytes
}

/// Parses a remote address. Ignores trailing bytes, because a peer may pad private data with zeros.
fn parse_addr(bytes: &[u8]) -> Option<RemoteAddr> {
    let (tag, bytes) = bytes.split_first_chunk()?;
    let offset = bytes.first_chunk()?;
    Some(RemoteAddr { tag: Tag(u32::from_be_bytes(*tag)), offset: u64::from_be_bytes(*offset) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: RemoteAddr = RemoteAddr { tag: Tag(0x0102_0304), offset: 0x1112_1314_1516_1718 };

    #[test]
    fn both_survive_encoding() {
        for op in [Op::Send, Op::Write, Op::Read] {
            let hello = Hello { op, size: 0xa1b2_c3d4, addr: ADDR };
            assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        }
        assert_eq!(Welcome::parse(&Welcome { addr: ADDR }.to_bytes()), Some(Welcome { addr: ADDR }));
    }

    #[test]
    fn truncated_and_foreign_data_are_rejected() {
        let bytes = Hello { op: Op::Read, size: 1, addr: ADDR }.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        assert_eq!(Hello::parse(b"iwping02 of a later version"), None);
        assert_eq!(Welcome::parse(&[0; 40]), None);
    }
}
