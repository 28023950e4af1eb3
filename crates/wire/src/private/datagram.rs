//! The header of a datagram of a connectionless queue pair (requirement P2). A datagram is one UDP packet: the header and
//! the payload.
//!
//! From this header and the addresses of the packet, the receiver creates the 40-byte GRH that verbs programs expect.

use super::check_qpn;
use super::extension::{Format, Parsed, Prologue, Unreadable, reject_if_required};
use crate::Misuse;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header in bytes, as this release sends it.
pub const DATAGRAM_LEN: usize = size_of::<RawDatagram>();
const _: () = assert!(DATAGRAM_LEN == 36);

/// Maximum length of a received header in bytes, extensions included.
pub const MAX_DATAGRAM_HEADER: usize = 64;

const FORMAT: Format = Format { magic: *b"IRWD", must: IMMEDIATE };
/// The only kind: a message.
const MESSAGE: u8 = 1;
/// Must-understand bit: the datagram contains immediate data.
const IMMEDIATE: u16 = 1 << 0;
/// May-ignore bit: the datagram raises a solicited event.
const SOLICITED: u16 = 1 << 0;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The number of the receiver's queue pair, 24 bits.
    pub destination: u32,
    /// The number of the sender's queue pair, 24 bits.
    pub source: u32,
    /// The Q_Key, which must be that of the receiver's queue pair.
    pub qkey: u32,
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

impl Datagram {
    /// Parses a datagram. Returns the header and the payload.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), Unreadable> {
        let Parsed { fixed: raw, extensions, rest: payload } = FORMAT.parse::<RawDatagram>(datagram)?;
        if datagram.len() - payload.len() > MAX_DATAGRAM_HEADER {
            return Err(Unreadable::Malformed);
        }
        if raw.prologue.kind != MESSAGE {
            return Err(Unreadable::Extension(raw.prologue.kind));
        }
        for extension in extensions {
            reject_if_required(extension?.0)?;
        }
        let in_range = |qpn: U32| check_qpn(qpn.get()).map_err(|_| Unreadable::Malformed);
        let (must, may) = (raw.prologue.must.get(), raw.prologue.may.get());
        let flow = raw.flow.get();
        let header = Self {
            destination: in_range(raw.destination)?,
            source: in_range(raw.source)?,
            qkey: raw.qkey.get(),
            solicited: may & SOLICITED != 0,
            immediate: (must & IMMEDIATE != 0).then(|| raw.immediate.get()),
            hop_limit: raw.hop_limit,
            traffic_class: (flow >> 20 & 0xff) as u8,
            flow_label: flow & FLOW_LABEL_MASK,
            service_level: (flow >> 28) as u8,
        };
        Ok((header, payload))
    }

    /// Encodes the header, which precedes the payload.
    pub fn emit(&self) -> Result<[u8; DATAGRAM_LEN], Misuse> {
        let must = if self.immediate.is_some() { IMMEDIATE } else { 0 };
        let may = if self.solicited { SOLICITED } else { 0 };
        let flow = u32::from(self.service_level & 0xf) << 28
            | u32::from(self.traffic_class) << 20
            | self.flow_label & FLOW_LABEL_MASK;
        let raw = RawDatagram {
            prologue: FORMAT.prologue::<RawDatagram>(MESSAGE, must, may),
            destination: check_qpn(self.destination)?.into(),
            source: check_qpn(self.source)?.into(),
            qkey: self.qkey.into(),
            immediate: self.immediate.unwrap_or(0).into(),
            flow: flow.into(),
            hop_limit: self.hop_limit,
            zero: [0; 3],
        };
        Ok(zerocopy::transmute!(raw))
    }
}

impl fmt::Display for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let solicited = if self.solicited { " SE" } else { "" };
        write!(f, "Datagram{solicited}, from {:#08x} to {:#08x}", self.source, self.destination)?;
        write!(f, ", qkey {:#x}", self.qkey)?;
        self.immediate.map_or(Ok(()), |data| write!(f, ", data {data:#x}"))
    }
}
