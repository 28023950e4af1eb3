//! The header of a connectionless message (requirement P2: one datagram, one message, the address in each request).
//!
//! It goes over UDP; the payload follows it and ends with the datagram. The receiver makes the 40-byte GRH that verbs
//! programs expect from this header and the datagram's addresses.

use super::check_qpn;
use crate::Misuse;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header.
pub const DATAGRAM_LEN: usize = size_of::<RawDatagram>();
const _: () = assert!(DATAGRAM_LEN == 28);

const MAGIC: [u8; 4] = *b"IRWD";
const VERSION: u8 = 1;
const SOLICITED: u8 = 0x01;
const IMMEDIATE: u8 = 0x02;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// What a datagram says in front of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The receiver's queue pair; 24 bits.
    pub destination: u32,
    /// The sender's queue pair; 24 bits.
    pub source: u32,
    /// Must be the receiver's.
    pub qkey: u32,
    /// The receiver's program shall be woken.
    pub solicited: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// For the GRH: hop limit.
    pub hop_limit: u8,
    /// For the GRH: traffic class.
    pub traffic_class: u8,
    /// For the GRH: flow label; 20 bits, higher ones are not sent.
    pub flow_label: u32,
    /// For the completion: service level; 4 bits, higher ones are not sent.
    pub service_level: u8,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDatagram {
    magic: [u8; 4],
    version: u8,
    flags: u8,
    hop_limit: u8,
    reserved: u8,
    destination: U32,
    source: U32,
    qkey: U32,
    immediate: U32,
    /// Service level (4 bits), traffic class (8), flow label (20).
    flow: U32,
}

impl Datagram {
    /// Reads the header of a datagram and returns it with the payload; `None` if it is none of this version, which is
    /// to be dropped like any other stray datagram.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, payload) = RawDatagram::ref_from_prefix(datagram).ok()?;
        let (destination, source) = (raw.destination.get(), raw.source.get());
        if raw.magic != MAGIC
            || raw.version != VERSION
            || check_qpn(destination).is_err()
            || check_qpn(source).is_err()
        {
            return None;
        }
        let flow = raw.flow.get();
        let header = Self {
            destination,
            source,
            qkey: raw.qkey.get(),
            solicited: raw.flags & SOLICITED != 0,
            immediate: (raw.flags & IMMEDIATE != 0).then(|| raw.immediate.get()),
            hop_limit: raw.hop_limit,
            traffic_class: (flow >> 20 & 0xff) as u8,
            flow_label: flow & FLOW_LABEL_MASK,
            service_level: (flow >> 28) as u8,
        };
        Some((header, payload))
    }

    /// The header to send in front of the payload.
    pub fn emit(&self) -> Result<[u8; DATAGRAM_LEN], Misuse> {
        let set = |on, flag| if on { flag } else { 0 };
        let flow = u32::from(self.service_level & 0xf) << 28
            | u32::from(self.traffic_class) << 20
            | self.flow_label & FLOW_LABEL_MASK;
        let raw = RawDatagram {
            magic: MAGIC,
            version: VERSION,
            flags: set(self.solicited, SOLICITED) | set(self.immediate.is_some(), IMMEDIATE),
            hop_limit: self.hop_limit,
            reserved: 0,
            destination: check_qpn(self.destination)?.into(),
            source: check_qpn(self.source)?.into(),
            qkey: self.qkey.into(),
            immediate: self.immediate.unwrap_or(0).into(),
            flow: flow.into(),
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
