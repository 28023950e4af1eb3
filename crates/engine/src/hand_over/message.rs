//! The messages of a hand-over, to bytes and back.
//!
//! A message begins with its length (4 bytes), the version of the protocol, its kind, and two zero bytes. Numbers are big
//! endian. The header of a message never changes, so that a process can name a version or a kind that it does not know.
//! A HELLO is a list of TLVs: type (2 bytes), length of the value (2 bytes), value. Unknown types are skipped, which is
//! how the protocol grows.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The version of the protocol.
pub const VERSION: u8 = 1;
/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE: usize = OFFER_BODY + MAX_INLINE;
/// Maximum length of the state that travels inside of an OFFER, in bytes. A longer one travels in a memfd.
pub const MAX_INLINE: usize = 32 << 10;
/// Maximum number of descriptors in one message. The kernel allows 253.
pub const MAX_BATCH: usize = 128;
/// Maximum length of the name of a descriptor, in bytes.
pub const MAX_NAME: usize = 64;
/// Maximum length of the reason in a REFUSED, in bytes.
pub const MAX_REASON: usize = 512;

const HEADER: usize = 8;
/// Where the state begins in an OFFER: after the epoch, the version, the place and two lengths.
const OFFER_BODY: usize = HEADER + 27;

const HELLO: u8 = 1;
const COPY: u8 = 2;
const COPIED: u8 = 3;
const PREPARE: u8 = 4;
const READY: u8 = 5;
const REFUSED: u8 = 6;
const OFFER: u8 = 7;
const TAKEN: u8 = 8;

/// The types of the TLVs of a HELLO.
const ROLE: u16 = 1;
const SNAPSHOTS: u16 = 2;
const DESCRIPTORS: u16 = 3;
const STATE: u16 = 4;

/// A message, without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of both ends. Its descriptor is a pidfd of the sender.
    Hello(Hello),
    /// Names of the descriptors that come with this message.
    Copy(Vec<Vec<u8>>),
    /// The target has this many descriptors in all.
    Copied(u32),
    /// The source has sent this many descriptors in all, and asks the target to claim numbers and tags.
    Prepare(u32),
    /// The target waits for the offer.
    Ready,
    /// The sender takes no further part, and why: the source keeps the function.
    Refused(String),
    /// The source is frozen.
    Offer(Offer),
    /// The target has loaded the snapshot, and owns the function.
    Taken,
}

/// Which end of the hand-over a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Source,
    Target,
}

/// The terms of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub role: Role,
    /// The versions of snapshots that it writes or reads.
    pub snapshots: RangeInclusive<u16>,
    /// Maximum number of descriptors that it takes.
    pub descriptors: u32,
    /// Maximum length of the state (snapshot and bytes of the program) that it takes.
    pub state: u64,
}

/// The offer of a frozen function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How many times the function was offered, with this one.
    pub epoch: u64,
    /// The version of the snapshot.
    pub version: u16,
    /// Length of the snapshot, which is the first part of the state.
    pub snapshot: u64,
    /// Length of the bytes of the program, which are the rest.
    pub program: u64,
    /// The state; `None` if the descriptor of the message is a memfd with it.
    pub state: Option<Vec<u8>>,
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    #[error("message of {have} bytes is too short: need {need}")]
    Short { have: usize, need: usize },
    #[error("message of {have} bytes exceeds the maximum of {MAX_MESSAGE}")]
    Long { have: usize },
    #[error("message of {have} bytes has the length {stated} in its header")]
    Length { have: usize, stated: u32 },
    #[error("unknown version {0} of the hand-over protocol: this process speaks version {VERSION}")]
    Version(u8),
    #[error("unknown message of kind {0}")]
    Kind(u8),
    #[error("invalid {0}")]
    Field(&'static str),
    #[error("the hello contains no {0}")]
    Missing(&'static str),
    #[error("{0} unexpected bytes at the end of a message")]
    Trailing(usize),
}

impl Message {
    /// Returns the name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Copy(_) => "COPY",
            Self::Copied(_) => "COPIED",
            Self::Prepare(_) => "PREPARE",
            Self::Ready => "READY",
            Self::Refused(_) => "REFUSED",
            Self::Offer(_) => "OFFER",
            Self::Taken => "TAKEN",
        }
    }

    /// Returns the number of descriptors that must come with the message.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Hello(_) | Self::Offer(Offer { state: None, .. }) => 1,
            Self::Copy(names) => names.len(),
            _ => 0,
        }
    }

    /// Returns the message as bytes. The reason of a REFUSED is cut to its maximum length.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = vec![0; HEADER];
        let kind = match self {
            Self::Hello(hello) => {
                hello.encode(&mut to);
                HELLO
            }
            Self::Copy(names) => {
                debug_assert!(names.len() <= MAX_BATCH && names.iter().all(|name| name.len() <= MAX_NAME));
                to.push(low_byte(names.len()));
                for name in names {
                    to.push(low_byte(name.len()));
                    to.extend(name);
                }
                COPY
            }
            Self::Copied(total) => {
                to.extend(total.to_be_bytes());
                COPIED
            }
            Self::Prepare(total) => {
                to.extend(total.to_be_bytes());
                PREPARE
            }
            Self::Ready => READY,
            Self::Refused(reason) => {
                to.extend(cut_reason(reason).as_bytes());
                REFUSED
            }
            Self::Offer(offer) => {
                offer.encode(&mut to);
                OFFER
            }
            Self::Taken => TAKEN,
        };
        let len = u32::try_from(to.len()).unwrap_or(u32::MAX); // bounded by the fields
        to[..4].copy_from_slice(&len.to_be_bytes());
        (to[4], to[5]) = (VERSION, kind);
        to
    }

    /// Reads the message that the bytes are.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_MESSAGE {
            return Err(Malformed::Long { have: bytes.len() });
        }
        let mut fields = Fields { bytes, at: 0 };
        let stated = fields.u32()?;
        let [version, kind, ..] = fields.array::<4>()?; // the last two are for later versions
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if stated as usize != bytes.len() {
            return Err(Malformed::Length { have: bytes.len(), stated });
        }
        let message = match kind {
            HELLO => Self::Hello(Hello::decode(&mut fields)?),
            COPY => Self::Copy(names(&mut fields)?),
            COPIED => Self::Copied(fields.u32()?),
            PREPARE => Self::Prepare(fields.u32()?),
            READY => Self::Ready,
            REFUSED => Self::Refused(reason(fields.rest())?),
            OFFER => Self::Offer(Offer::decode(&mut fields)?),
            TAKEN => Self::Taken,
            unknown => return Err(Malformed::Kind(unknown)),
        };
        match fields.rest().len() {
            0 => Ok(message),
            more => Err(Malformed::Trailing(more)),
        }
    }
}

impl Hello {
    fn encode(&self, to: &mut Vec<u8>) {
        let mut put = |kind: u16, value: &[u8]| {
            to.extend(kind.to_be_bytes());
            to.extend([0, low_byte(value.len())]);
            to.extend(value);
        };
        put(ROLE, &[if self.role == Role::Source { 1 } else { 2 }]);
        let [low, high] = [self.snapshots.start(), self.snapshots.end()].map(|version| version.to_be_bytes());
        put(SNAPSHOTS, &[low, high].concat());
        put(DESCRIPTORS, &self.descriptors.to_be_bytes());
        put(STATE, &self.state.to_be_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (mut role, mut snapshots, mut descriptors, mut state) = (None, None, None, None);
        while fields.left() > 0 {
            let kind = fields.u16()?;
            let len = fields.u16()?;
            let mut value = Fields { bytes: fields.take(len.into())?, at: 0 };
            let is_new = match kind {
                ROLE => role
                    .replace(match value.array()? {
                        [1] => Role::Source,
                        [2] => Role::Target,
                        _ => return Err(Malformed::Field("role")),
                    })
                    .is_none(),
                SNAPSHOTS => snapshots.replace(value.u16()?..=value.u16()?).is_none(),
                DESCRIPTORS => descriptors.replace(value.u32()?).is_none(),
                STATE => state.replace(value.u64()?).is_none(),
                _ => continue,
            };
            if !is_new || value.left() > 0 {
                return Err(Malformed::Field("element of a hello"));
            }
        }
        let snapshots = snapshots.ok_or(Malformed::Missing("versions of snapshots"))?;
        if snapshots.is_empty() {
            return Err(Malformed::Field("range of versions of snapshots"));
        }
        Ok(Self {
            role: role.ok_or(Malformed::Missing("role"))?,
            snapshots,
            descriptors: descriptors.ok_or(Malformed::Missing("limit of descriptors"))?,
            state: state.ok_or(Malformed::Missing("limit of the state"))?,
        })
    }
}

impl Offer {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.epoch.to_be_bytes());
        to.extend(self.version.to_be_bytes());
        to.push(u8::from(self.state.is_none()));
        to.extend(self.snapshot.to_be_bytes());
        to.extend(self.program.to_be_bytes());
        debug_assert_eq!(to.len(), OFFER_BODY);
        to.extend(self.state.iter().flatten());
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (epoch, version, place) = (fields.u64()?, fields.u16()?, fields.array()?);
        let (snapshot, program) = (fields.u64()?, fields.u64()?);
        let len = snapshot.checked_add(program).ok_or(Malformed::Field("length of the state"))?;
        let state = match place {
            [0] if len == fields.left() as u64 => Some(fields.rest().to_vec()),
            [0] => return Err(Malformed::Field("length of the state")),
            [1] => None,
            _ => return Err(Malformed::Field("place of the state")),
        };
        Ok(Self { epoch, version, snapshot, program, state })
    }
}

/// Reads the names in a COPY.
fn names(fields: &mut Fields<'_>) -> Result<Vec<Vec<u8>>, Malformed> {
    let [count] = fields.array()?;
    if count == 0 || usize::from(count) > MAX_BATCH {
        return Err(Malformed::Field("number of descriptors"));
    }
    let name = |_| {
        let [len] = fields.array()?;
        if usize::from(len) > MAX_NAME {
            return Err(Malformed::Field("name of a descriptor"));
        }
        Ok(fields.take(len.into())?.to_vec())
    };
    (0..count).map(name).collect()
}

/// Cuts a reason to its maximum length.
pub(super) fn cut_reason(reason: &str) -> &str {
    let end = (0..=MAX_REASON.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    &reason[..end.unwrap_or(0)]
}

/// Reads a text that ends up in logs: bytes that are no text, or that control a terminal, become question marks.
pub(super) fn reason(bytes: &[u8]) -> Result<String, Malformed> {
    if bytes.len() > MAX_REASON {
        return Err(Malformed::Field("length of a reason"));
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.extend(chunk.valid().chars().map(|c| if c.is_control() { '?' } else { c }));
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    Ok(text)
}

/// Converts a length that is known to be small.
#[expect(clippy::cast_possible_truncation, reason = "callers check the length")]
fn low_byte(len: usize) -> u8 {
    debug_assert!(len < 256);
    len as u8
}

/// The fields of a message, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        if len > self.left() {
            return Err(Malformed::Short { have: self.bytes.len(), need: self.at + len });
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests;
