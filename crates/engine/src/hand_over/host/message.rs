//! The messages between two hosts, to bytes and back.
//!
//! A frame begins with the length of the rest (4 bytes, big endian) and the version of the protocol. Then follow the head of
//! the message, in the format of `postcard`, and its payload. The protocol grows by new kinds of heads, which come after those
//! here, and by new elements of a HELLO.

use super::super::error::Failure;
use super::super::message::{Malformed, Role};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The version of the protocol.
const VERSION: u8 = 1;
/// Maximum length of a payload, in bytes.
pub(super) const MAX_PAYLOAD: usize = 256 << 10;
/// Maximum length of a head, in bytes. That of a HELLO may have elements of later versions.
const MAX_HEAD: usize = 4096;
/// Length of what comes before the head.
pub(super) const PREFIX: usize = 5;

/// A message, without its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Head {
    /// The first message of both ends.
    Hello(Hello),
    /// The sender holds the cluster key.
    Proof([u8; 16]),
    /// An address of the function, with the length of its prefix.
    Address(IpAddr, u8),
    /// A buffer. The first has the index 0.
    Buffer { first: u64, addr: u64, len: u64 },
    /// Contents of the buffer with this index, from an offset on.
    Pages { buffer: u32, offset: u64 },
    /// The source asks whether it can freeze the function.
    Prepare,
    /// The target waits for the offer.
    Ready,
    /// The sender takes no further part. The payload is the reason.
    Refused,
    /// A listener, with its number and address.
    Listener(u32, SocketAddr),
    /// More bytes of a part of the state.
    State(Part),
    /// The source is frozen, and has sent everything.
    Offer { epoch: u64, version: u16 },
    /// The target has loaded the snapshot, and waits for COMMIT.
    Loaded,
    /// The target owns the function.
    Commit,
    /// The target has begun to act.
    Taken,
}

/// A part of the state of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    /// The image of the TCP connection of the queue pair with this number.
    Socket(u32),
    Snapshot,
    /// Bytes of the program.
    Program,
}

/// The terms of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) role: Role,
    /// The oldest and the latest version of snapshots that it writes or reads.
    pub(super) snapshots: (u16, u16),
    /// Maximum length of the state that it takes.
    pub(super) state: u64,
    /// Maximum length of all buffers that it takes.
    pub(super) memory: u64,
    /// A random number, for which the other end computes its proof.
    pub(super) nonce: [u8; 16],
    /// Elements of later versions: kind and value. Unknown ones are ignored.
    pub(super) more: Vec<(u16, Vec<u8>)>,
}

impl Head {
    /// Returns the name of the kind.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Proof(_) => "PROOF",
            Self::Address(..) => "ADDRESS",
            Self::Buffer { .. } => "BUFFER",
            Self::Pages { .. } => "PAGES",
            Self::Prepare => "PREPARE",
            Self::Ready => "READY",
            Self::Refused => "REFUSED",
            Self::Listener(..) => "LISTENER",
            Self::State(_) => "STATE",
            Self::Offer { .. } => "OFFER",
            Self::Loaded => "LOADED",
            Self::Commit => "COMMIT",
            Self::Taken => "TAKEN",
        }
    }

    /// Returns the failure of an end that has received this message while it was waiting for another one.
    pub(super) fn unexpected(&self, awaited: &'static str) -> Failure {
        Failure::Unexpected { got: self.name(), awaited }
    }

    /// Returns whether the message may have a payload.
    fn has_payload(&self) -> bool {
        matches!(self, Self::Pages { .. } | Self::State(_) | Self::Refused)
    }

    /// Returns the frame of the message.
    pub(super) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        debug_assert!(payload.len() <= MAX_PAYLOAD && (payload.is_empty() || self.has_payload()));
        let frame = vec![0, 0, 0, 0, VERSION];
        let mut frame = postcard::to_extend(self, frame).expect("a vector takes everything");
        frame.extend(payload);
        let len = u32::try_from(frame.len() - 4).expect("a payload is bounded");
        frame[..4].copy_from_slice(&len.to_be_bytes());
        frame
    }

    /// Returns the length of the frame that begins with these bytes.
    pub(super) fn frame_len(prefix: [u8; PREFIX]) -> Result<usize, Malformed> {
        let [a, b, c, d, version] = prefix;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        match (version, len) {
            (VERSION, 2..) if len <= 1 + MAX_HEAD + MAX_PAYLOAD => Ok(4 + len),
            (VERSION, 2..) => Err(Malformed::Long { have: len }),
            (VERSION, _) => Err(Malformed::Short { have: len, need: 2 }),
            _ => Err(Malformed::Version(version)),
        }
    }

    /// Reads the message in a frame, and returns its payload as well.
    pub(super) fn decode(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let body = frame.get(PREFIX..).unwrap_or_default();
        let head = &body[..body.len().min(MAX_HEAD)];
        let (message, rest) =
            postcard::take_from_bytes::<Self>(head).map_err(|_| Malformed::Field("head"))?;
        let payload = &body[head.len() - rest.len()..];
        match payload.len() {
            0 => Ok((message, payload)),
            1..=MAX_PAYLOAD if message.has_payload() => Ok((message, payload)),
            more => Err(Malformed::Trailing(more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<(Head, &'static [u8])> {
        let hello = Hello {
            role: Role::Source,
            snapshots: (1, 3),
            state: 7,
            memory: u64::MAX,
            nonce: [9; 16],
            more: vec![(77, b"later".to_vec())],
        };
        vec![
            (Head::Hello(hello), b""),
            (Head::Proof([3; 16]), b""),
            (Head::Address("fd77::2".parse().unwrap(), 64), b""),
            (Head::Buffer { first: 1, addr: 2, len: 3 }, b""),
            (Head::Pages { buffer: 5, offset: 1 << 40 }, b"contents"),
            (Head::Prepare, b""),
            (Head::Ready, b""),
            (Head::Refused, b"why"),
            (Head::Listener(4, "10.0.0.1:18515".parse().unwrap()), b""),
            (Head::State(Part::Socket(8)), b"image"),
            (Head::State(Part::Snapshot), b"snapshot"),
            (Head::State(Part::Program), b""),
            (Head::Offer { epoch: 1, version: 1 }, b""),
            (Head::Loaded, b""),
            (Head::Commit, b""),
            (Head::Taken, b""),
        ]
    }

    #[test]
    fn messages_survive_the_way() {
        for (head, payload) in messages() {
            let frame = head.encode(payload);
            let (prefix, _) = frame.split_first_chunk().unwrap();
            assert_eq!(Head::frame_len(*prefix), Ok(frame.len()));
            assert_eq!(Head::decode(&frame), Ok((head, payload)));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(Head::frame_len([0, 0, 0, 9, 2]), Err(Malformed::Version(2)));
        assert_eq!(Head::frame_len([0, 0, 0, 1, 1]), Err(Malformed::Short { have: 1, need: 2 }));
        assert_eq!(Head::frame_len([0, 5, 0, 0, 1]), Err(Malformed::Long { have: 5 << 16 }));
        let mut frame = Head::Commit.encode(&[]);
        frame.push(0);
        assert_eq!(Head::decode(&frame), Err(Malformed::Trailing(1)));
        *frame.last_mut().unwrap() = 0;
        frame[PREFIX] = 99;
        assert_eq!(Head::decode(&frame), Err(Malformed::Field("head")));
        // Every message that is cut, and every one with a changed byte: an error or another message, never a panic.
        for (head, payload) in messages() {
            let whole = head.encode(payload);
            for len in 0..whole.len() {
                let _ = Head::decode(&whole[..len]);
            }
            for at in PREFIX..whole.len() {
                for bit in 0..8 {
                    let mut changed = whole.clone();
                    changed[at] ^= 1 << bit;
                    let _ = Head::decode(&changed);
                }
            }
        }
    }
}
