//! The protocol between the two ends of a connection. All numbers are big-endian.
//!
//! In the private data of the MPA startup, each end sends a hello:
//!
//! | bytes | |
//! |---|---|
//! | 4 | `IWRS` |
//! | 2 | version, 1 |
//! | 2 | reserved, zero |
//! | 4 | tag of its ring, whose first byte is at offset 0 |
//! | 4 | length of its ring |
//! | 4 | number of messages it has receives for, besides credit and the end |
//! | 4 | maximum number of the peer's mappings it records |
//!
//! Data is sent as an RDMA Write with Immediate into the ring, directly after the previous data. The immediate is the
//! length of the data. Writes wrap around the ring, but no write crosses its end. Everything else is a Send of 32
//! bytes: a code and three numbers, of eight bytes each.
//!
//! | code | | numbers |
//! |---|---|---|
//! | 1 | credit | bytes read so far, messages received so far (of those that count), 0 |
//! | 2 | end: no more data from this end | 0, 0, 0 |
//! | 3 | memory was mapped | offset, length, tag; its first byte is at offset 0 of the tag |
//! | 4 | memory was unmapped | 0, 0, tag |
//!
//! Data and the codes 3 and 4 count as messages, whose number the credit limits. Only a few of the others are ever in
//! flight, because each credit must exceed the one before, and the end is sent once. Data is never empty, and its
//! length equals the immediate. Each end validates everything it receives, and closes the connection if the peer
//! breaks a rule.

use ironwarp_wire::Tag;

const MAGIC: &[u8; 4] = b"IWRS";
const VERSION: u16 = 1;

/// Length of a control message.
pub(super) const MESSAGE: usize = 32;

/// The hello that an end sends in the private data of its startup frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// Tag of the ring that the other end writes to.
    pub(super) ring: Tag,
    /// Length of the ring in bytes.
    pub(super) len: u32,
    /// Number of receives for messages that count.
    pub(super) messages: u32,
    /// Maximum number of mappings of the other end.
    pub(super) mappings: u32,
}

impl Hello {
    /// Encodes the hello.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 2]); // reserved
        for number in [self.ring.0, self.len, self.messages, self.mappings] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Parses a hello, and ignores what follows it. Returns `None` if it is invalid: then the peer is not an rsocket of
    /// Ironwarp.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_be_bytes())?;
        let (numbers, _) = rest.get(2..)?.as_chunks(); // after the reserved bytes
        let &[ring, len, messages, mappings, ..] = numbers else { return None };
        let number = u32::from_be_bytes;
        let (ring, len) = (Tag(number(ring)), number(len));
        let hello = Self { ring, len, messages: number(messages), mappings: number(mappings) };
        (hello.len > 0 && hello.messages > 0).then_some(hello)
    }
}

/// A control message, sent as a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Total numbers of bytes that the sender has read, and of counted messages that it has received.
    Credit { bytes: u64, messages: u64 },
    /// The sender sends no more data.
    End,
    /// The sender has mapped memory at an offset.
    Mapped { offset: u64, len: u64, tag: Tag },
    /// The sender has removed a mapping.
    Unmapped { tag: Tag },
}

impl Message {
    /// Encodes the message: its code, and three numbers.
    pub(super) fn to_bytes(self) -> [u8; MESSAGE] {
        let numbers = match self {
            Self::Credit { bytes, messages } => [1, bytes, messages, 0],
            Self::End => [2, 0, 0, 0],
            Self::Mapped { offset, len, tag } => [3, offset, len, tag.0.into()],
            Self::Unmapped { tag } => [4, 0, 0, tag.0.into()],
        };
        let mut bytes = [0; MESSAGE];
        for (word, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *word = number.to_be_bytes();
        }
        bytes
    }

    /// Parses a message. Returns `None` if the code is unknown, or a tag does not fit into 32 bits.
    pub(super) fn from_bytes(bytes: [u8; MESSAGE]) -> Option<Self> {
        let mut numbers = [0; 4];
        for (number, word) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *number = u64::from_be_bytes(*word);
        }
        let [code, first, second, third] = numbers;
        match code {
            1 => Some(Self::Credit { bytes: first, messages: second }),
            2 => Some(Self::End),
            3 => Some(Self::Mapped { offset: first, len: second, tag: Tag(third.try_into().ok()?) }),
            4 => Some(Self::Unmapped { tag: Tag(third.try_into().ok()?) }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_round_trips_and_rejects_anything_else() {
        let hello = Hello { ring: Tag(0x1234_5678), len: 1 << 17, messages: 376, mappings: 1 };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        assert_eq!(Hello::from_bytes(&[&bytes[..], b"more"].concat()), Some(hello));
        for short in 0..bytes.len() {
            assert_eq!(Hello::from_bytes(&bytes[..short]), None, "{short} bytes");
        }
        assert_eq!(Hello::from_bytes(&Hello { len: 0, ..hello }.to_bytes()), None);
        assert_eq!(Hello::from_bytes(&[b"XXXX", &bytes[4..]].concat()), None);
    }

    #[test]
    fn messages_round_trip() {
        let tag = Tag(u32::MAX);
        for message in [
            Message::Credit { bytes: u64::MAX, messages: 7 },
            Message::End,
            Message::Mapped { offset: 1 << 40, len: 5, tag },
            Message::Unmapped { tag },
        ] {
            assert_eq!(Message::from_bytes(message.to_bytes()), Some(message));
        }
        assert_eq!(Message::from_bytes([0xff; MESSAGE]), None);
        assert_eq!(Message::from_bytes([0; MESSAGE]), None);
    }
}
