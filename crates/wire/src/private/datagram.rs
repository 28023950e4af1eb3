//! The header of a datagram of a connectionless queue pair (requirement P2). A datagram is one UDP packet: the header and
//! the payload.
//!
//! From this header and the addresses of the packet, the receiver creates the 40-byte GRH that verbs programs expect.
//!
//! A datagram is a cell of its own (requirement P3): an extension carries its sequence number, the length of the
//! payload, and a CRC32c of everything else in the datagram. UDP's checksum has 16 bits, is optional with IPv4, and is
//! often left to hardware; it does not notice that an IP fragment was replaced by another one with the same sum.
//!
//! Queue pairs that acknowledge datagrams exchange further kinds of datagrams ([`DatagramKind`]), which name the session
//! that they belong to. An answer is never longer than the datagram that it answers, so that nobody can multiply traffic
//! by naming the address of another host as its own.

use super::check_qpn;
use super::extension::{
    Emitted, Extensions, Format, Parsed, Prologue, Unreadable, reject_if_required, to_array,
};
use crate::Misuse;
use crate::mpa::Crc;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length in bytes of the header of a message, as this release sends it.
pub const DATAGRAM_LEN: usize = CRC_AT + CRC_LEN;
const _: () = assert!(DATAGRAM_LEN == 48);

/// Maximum length of a received header in bytes, extensions included.
pub const MAX_DATAGRAM_HEADER: usize = 96;

/// The extension with the fields of a cell: sequence number (4 bytes), length of the payload (2) and CRC (4). Releases
/// that do not know it ignore it.
const CELL: u8 = 0x01;
const CELL_LEN: usize = 4 + 2 + CRC_LEN;
const CRC_LEN: usize = 4;
/// Where the CRC is sent: the cell is the first extension, and the CRC is its last field.
const CRC_AT: usize = size_of::<RawDatagram>() + 2 + CELL_LEN - CRC_LEN;

/// The extension with the number of a session, 8 bytes.
const SESSION: u8 = 0x80;
/// The extension with a cookie, 8 bytes.
const COOKIE: u8 = 0x81;

const FORMAT: Format = Format { magic: *b"IRWD", must: IMMEDIATE };
/// Must-understand bit: the datagram contains immediate data.
const IMMEDIATE: u16 = 1 << 0;
/// May-ignore bit: the datagram raises a solicited event.
const SOLICITED: u16 = 1 << 0;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// A message that is not acknowledged.
    Message,
    /// A message of a session. It is answered with one of the answers below, which has the same sequence number.
    Acknowledged {
        /// The session, numbered by its sender.
        session: u64,
    },
    /// Asks the receiver to open a session.
    Open {
        /// The session, numbered by its sender.
        session: u64,
        /// The cookie of the last challenge, or zero.
        cookie: u64,
    },
    /// Answers an [`Open`](Self::Open) without a valid cookie.
    Challenge {
        /// The session.
        session: u64,
        /// The cookie that the sender has to return.
        cookie: u64,
    },
    /// Any other answer.
    Answer {
        /// The session.
        session: u64,
        /// The answer.
        answer: DatagramAnswer,
    },
}

/// The answer to a datagram of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramAnswer {
    /// The session is open.
    Opened,
    /// The message is in the memory of a receive.
    Placed,
    /// No receive is posted: the message was dropped, and should be sent again.
    NotReady,
    /// The receive that the message consumed has failed.
    Rejected,
    /// The session is not open, or not any more: the message was dropped.
    Unknown,
}

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// What the datagram is.
    pub kind: DatagramKind,
    /// The number of the receiver's queue pair, 24 bits.
    pub destination: u32,
    /// The number of the sender's queue pair, 24 bits.
    pub source: u32,
    /// The Q_Key, which must be that of the receiver's queue pair.
    pub qkey: u32,
    /// The sequence number.
    pub sequence: u32,
    /// Whether the message raises a solicited event at the receiver.
    pub solicited: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The hop limit for the GRH.
    pub hop_limit: u8,
    /// The traffic class for the GRH.
    pub traffic_class: u8,
    /// The flow label for the GRH: 20 bits, higher bits are not sent.
    pub flow_label: u32,
    /// The service level for the completion: 4 bits, higher bits are not sent.
    pub service_level: u8,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDatagram {
    prologue: Prologue,
    destination: U32,
    source: U32,
    qkey: U32,
    immediate: U32,
    /// Service level (4 bits), traffic class (8), flow label (20).
    flow: U32,
    hop_limit: u8,
    zero: [u8; 3],
}

/// The fields of extensions.
#[derive(Default)]
struct Fields {
    cell: Option<Cell>,
    session: Option<u64>,
    cookie: Option<u64>,
}

/// The fields of a cell.
struct Cell {
    sequence: u32,
    /// Length of the payload.
    len: u16,
    crc: [u8; CRC_LEN],
    /// Where the CRC is in the datagram.
    crc_at: usize,
}

impl Datagram {
    /// Parses a datagram, and checks its length and CRC. Returns the header and the payload.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), Unreadable> {
        let Parsed { fixed: raw, extensions, rest: payload } = FORMAT.parse::<RawDatagram>(datagram)?;
        let header_len = datagram.len() - payload.len();
        if header_len > MAX_DATAGRAM_HEADER {
            return Err(Unreadable::Malformed);
        }
        let Fields { cell, session, cookie } = Fields::find(extensions, header_len)?;
        let kind = DatagramKind::from_wire(raw.prologue.kind, session, cookie)?;
        let cell = cell.ok_or(Unreadable::Unchecked)?;
        if payload.len() != usize::from(cell.len) || crc_of(datagram, cell.crc_at).to_bytes() != cell.crc {
            return Err(Unreadable::Damaged);
        }
        let in_range = |qpn: U32| check_qpn(qpn.get()).map_err(|_| Unreadable::Malformed);
        let (must, may) = (raw.prologue.must.get(), raw.prologue.may.get());
        let flow = raw.flow.get();
        let header = Self {
            kind,
            destination: in_range(raw.destination)?,
            source: in_range(raw.source)?,
            qkey: raw.qkey.get(),
            sequence: cell.sequence,
            solicited: may & SOLICITED != 0,
            immediate: (must & IMMEDIATE != 0).then(|| raw.immediate.get()),
            hop_limit: raw.hop_limit,
            traffic_class: (flow >> 20 & 0xff) as u8,
            flow_label: flow & FLOW_LABEL_MASK,
            service_level: (flow >> 28) as u8,
        };
        Ok((header, payload))
    }

    /// Encodes the header, which precedes this payload.
    pub fn emit(&self, payload: &[u8]) -> Result<Emitted<MAX_DATAGRAM_HEADER>, Misuse> {
        let len = u16::try_from(payload.len()).map_err(|_| Misuse::DatagramTooLong(payload.len()))?;
        let must = if self.immediate.is_some() { IMMEDIATE } else { 0 };
        let may = if self.solicited { SOLICITED } else { 0 };
        let flow = u32::from(self.service_level & 0xf) << 28
            | u32::from(self.traffic_class) << 20
            | self.flow_label & FLOW_LABEL_MASK;
        let (kind, session, cookie) = self.kind.to_wire();
        let raw = RawDatagram {
            prologue: FORMAT.prologue::<RawDatagram>(kind, must, may),
            destination: check_qpn(self.destination)?.into(),
            source: check_qpn(self.source)?.into(),
            qkey: self.qkey.into(),
            immediate: self.immediate.unwrap_or(0).into(),
            flow: flow.into(),
            hop_limit: self.hop_limit,
            zero: [0; 3],
        };
        let mut cell = [0; CELL_LEN];
        cell[..4].copy_from_slice(&self.sequence.to_be_bytes());
        cell[4..6].copy_from_slice(&len.to_be_bytes());
        let (session, cookie) = (session.map(u64::to_be_bytes), cookie.map(u64::to_be_bytes));
        let mut header = Emitted::new(&raw)
            .add_extension(CELL, Some(&cell))
            .add_extension(SESSION, session.as_ref().map(|bytes| &bytes[..]))
            .add_extension(COOKIE, cookie.as_ref().map(|bytes| &bytes[..]));
        let mut crc = crc_of(&header, CRC_AT);
        crc.update(payload);
        header.set(CRC_AT, crc.to_bytes());
        Ok(header)
    }
}

impl DatagramKind {
    /// Returns the length in bytes of a header of this kind, as this release sends it.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Message => DATAGRAM_LEN,
            Self::Acknowledged { .. } | Self::Answer { .. } => DATAGRAM_LEN + 12,
            Self::Open { .. } | Self::Challenge { .. } => DATAGRAM_LEN + 24,
        }
    }

    /// Returns the kind with this number, with the fields that it needs.
    fn from_wire(kind: u8, session: Option<u64>, cookie: Option<u64>) -> Result<Self, Unreadable> {
        let session = || session.ok_or(Unreadable::Malformed);
        let cookie = || cookie.ok_or(Unreadable::Malformed);
        let answer = |answer| Ok(Self::Answer { session: session()?, answer });
        match kind {
            1 => Ok(Self::Message),
            2 => Ok(Self::Acknowledged { session: session()? }),
            3 => Ok(Self::Open { session: session()?, cookie: cookie()? }),
            4 => Ok(Self::Challenge { session: session()?, cookie: cookie()? }),
            5 => answer(DatagramAnswer::Opened),
            6 => answer(DatagramAnswer::Placed),
            7 => answer(DatagramAnswer::NotReady),
            8 => answer(DatagramAnswer::Rejected),
            9 => answer(DatagramAnswer::Unknown),
            _ => Err(Unreadable::Extension(kind)),
        }
    }

    /// Returns the number of the kind, its session and its cookie.
    const fn to_wire(self) -> (u8, Option<u64>, Option<u64>) {
        match self {
            Self::Message => (1, None, None),
            Self::Acknowledged { session } => (2, Some(session), None),
            Self::Open { session, cookie } => (3, Some(session), Some(cookie)),
            Self::Challenge { session, cookie } => (4, Some(session), Some(cookie)),
            Self::Answer { session, answer } => {
                let kind = match answer {
                    DatagramAnswer::Opened => 5,
                    DatagramAnswer::Placed => 6,
                    DatagramAnswer::NotReady => 7,
                    DatagramAnswer::Rejected => 8,
                    DatagramAnswer::Unknown => 9,
                };
                (kind, Some(session), None)
            }
        }
    }
}

impl Fields {
    /// Finds the fields in the extensions of a header of `header_len` bytes.
    fn find(mut extensions: Extensions<'_>, header_len: usize) -> Result<Self, Unreadable> {
        let mut fields = Self::default();
        while let Some(extension) = extensions.next() {
            match extension? {
                (CELL, value) => {
                    let [s0, s1, s2, s3, len_high, len_low, crc @ ..] = to_array::<CELL_LEN>(value)?;
                    let (sequence, len) =
                        (u32::from_be_bytes([s0, s1, s2, s3]), u16::from_be_bytes([len_high, len_low]));
                    let crc_at = header_len - extensions.remaining() - CRC_LEN;
                    fields.cell = Some(Cell { sequence, len, crc, crc_at });
                }
                (SESSION, value) => fields.session = Some(u64::from_be_bytes(to_array(value)?)),
                (COOKIE, value) => fields.cookie = Some(u64::from_be_bytes(to_array(value)?)),
                (kind, _) => reject_if_required(kind)?,
            }
        }
        Ok(fields)
    }
}

/// Returns the CRC of all bytes, except for those of the CRC itself.
fn crc_of(bytes: &[u8], crc_at: usize) -> Crc {
    let mut crc = Crc::of(&bytes[..crc_at]);
    crc.update(&bytes[crc_at + CRC_LEN..]);
    crc
}

impl fmt::Display for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let solicited = if self.solicited { " SE" } else { "" };
        write!(f, "{}{solicited}, from {:#08x} to {:#08x}", self.kind, self.source, self.destination)?;
        write!(f, ", qkey {:#x}, sequence {}", self.qkey, self.sequence)?;
        self.immediate.map_or(Ok(()), |data| write!(f, ", data {data:#x}"))
    }
}

impl fmt::Display for DatagramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => f.write_str("Datagram"),
            Self::Acknowledged { session } => write!(f, "Acknowledged Datagram of session {session:#x}"),
            Self::Open { session, cookie } => write!(f, "Open session {session:#x} with cookie {cookie:#x}"),
            Self::Challenge { session, cookie } => {
                write!(f, "Challenge for session {session:#x}: cookie {cookie:#x}")
            }
            Self::Answer { session, answer } => write!(f, "Answer of session {session:#x}: {answer}"),
        }
    }
}

impl fmt::Display for DatagramAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opened => "opened",
            Self::Placed => "placed",
            Self::NotReady => "not ready",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown",
        })
    }
}
