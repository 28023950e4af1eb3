//! The CM header, which precedes the program's private data in an MPA Request or Reply between two connection managers.
//! It is for queue pairs that do not use this MPA connection themselves, because the programs connect them by QPN or
//! because they are connectionless.
//!
//! A connection of a queue pair that belongs to a CM id has no CM header if it goes to the TCP port with the requested
//! number, so that any iWARP peer understands it. On a candidate port, where only Ironwarp listens, every connection
//! begins with a CM header that names the RDMA port.

use super::extension::{Emitted, Format, Parsed, Prologue, Unreadable, reject_if_required, to_array};
use super::port::RdmaPort;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of a CM header in bytes, all extensions included.
pub const MAX_CM_HEADER: usize = size_of::<RawCmHeader>() + 20 + 8;

const FORMAT: Format = Format { magic: *b"IRWC", must: 0 };

// May-ignore bits.
const FLOW_CONTROL: u16 = 1 << 0;
const SRQ: u16 = 1 << 1;
const KEEPS_SECRET: u16 = 1 << 2;

// Extensions.
const SECRET: u8 = 0x01;
const PORT: u8 = 0x80;

/// The contents of a CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmHeader {
    /// The kind of header.
    pub kind: CmKind,
    /// The number of the sender's queue pair: 24 bits, higher bits are not sent.
    pub qpn: u32,
    /// The Q_Key of a connectionless queue pair, else zero.
    pub qkey: u32,
    /// Status of a lookup, as in InfiniBand's service ID resolution: zero on success.
    pub status: u32,
    /// The sender's retry count, 3 bits (retry_cnt).
    pub retry_count: u8,
    /// The sender's RNR retry count, 3 bits (rnr_retry).
    pub rnr_retry_count: u8,
    /// Whether the sender requests end-to-end flow control.
    pub flow_control: bool,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
    /// In a Request: a secret that the two queue pairs may use to authenticate each other.
    pub secret: Option<Secret>,
    /// In a Reply: whether the passive end has stored the secret, so that both ends use it.
    pub keeps_secret: bool,
    /// The RDMA port that is requested or confirmed, for the kinds that concern an RDMA port.
    pub port: Option<RdmaPort>,
}

/// The kinds of CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CmKind {
    /// Associates two queue pairs that the programs connect by QPN.
    Pair = 1,
    /// Requests the QPN and Q_Key of a connectionless queue pair.
    Lookup = 2,
    /// Answers a lookup.
    Found = 3,
    /// Requests a connection to an RDMA port at a candidate port, or confirms it. The same private data follows as on
    /// the TCP port with the number of the RDMA port.
    Port = 4,
    /// Asks whether an RDMA port listens here. No connection results.
    Probe = 5,
    /// Answers a probe: the RDMA port listens here.
    Listening = 6,
    /// The requested RDMA port does not listen here.
    NotListening = 7,
}

/// A secret of 128 bits. `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCmHeader {
    prologue: Prologue,
    qpn: U32,
    qkey: U32,
    status: U32,
    retry_count: u8,
    rnr_retry_count: u8,
    zero: [u8; 2],
}

impl CmHeader {
    /// Creates a header with the default values of the connection manager.
    pub const fn new(kind: CmKind, qpn: u32) -> Self {
        Self {
            kind,
            qpn,
            qkey: 0,
            status: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: true,
            srq: false,
            secret: None,
            keeps_secret: false,
            port: None,
        }
    }

    /// Creates a header of a kind that concerns an RDMA port rather than a queue pair.
    pub const fn for_port(kind: CmKind, port: RdmaPort) -> Self {
        Self { port: Some(port), ..Self::new(kind, 0) }
    }

    /// Parses the header at the front of private data. Returns the header and the private data of the program.
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), Unreadable> {
        let Parsed { fixed, extensions, rest } = FORMAT.parse::<RawCmHeader>(private_data)?;
        let kind = match fixed.prologue.kind {
            1 => CmKind::Pair,
            2 => CmKind::Lookup,
            3 => CmKind::Found,
            4 => CmKind::Port,
            5 => CmKind::Probe,
            6 => CmKind::Listening,
            7 => CmKind::NotListening,
            other => return Err(Unreadable::Extension(other)),
        };
        let (mut secret, mut port) = (None, None);
        for extension in extensions {
            match extension? {
                (SECRET, value) => secret = Some(Secret(to_array(value)?)),
                (PORT, value) => {
                    port = Some(RdmaPort::from_bytes(to_array(value)?).ok_or(Unreadable::Extension(PORT))?);
                }
                (kind, _) => reject_if_required(kind)?,
            }
        }
        let may = fixed.prologue.may.get();
        let header = Self {
            kind,
            qpn: fixed.qpn.get() & 0xff_ffff,
            qkey: fixed.qkey.get(),
            status: fixed.status.get(),
            retry_count: fixed.retry_count & 7,
            rnr_retry_count: fixed.rnr_retry_count & 7,
            flow_control: may & FLOW_CONTROL != 0,
            srq: may & SRQ != 0,
            secret,
            keeps_secret: may & KEEPS_SECRET != 0,
            port,
        };
        Ok((header, rest))
    }

    /// Encodes the header, which precedes the program's private data.
    pub fn emit(&self) -> Emitted<MAX_CM_HEADER> {
        let set = |on, bit| if on { bit } else { 0 };
        let may =
            set(self.flow_control, FLOW_CONTROL) | set(self.srq, SRQ) | set(self.keeps_secret, KEEPS_SECRET);
        let raw = RawCmHeader {
            prologue: FORMAT.prologue::<RawCmHeader>(self.kind as u8, 0, may),
            qpn: (self.qpn & 0xff_ffff).into(),
            qkey: self.qkey.into(),
            status: self.status.into(),
            retry_count: self.retry_count & 7,
            rnr_retry_count: self.rnr_retry_count & 7,
            zero: [0; 2],
        };
        Emitted::new(&raw)
            .add_extension(SECRET, self.secret.as_ref().map(|secret| &secret.0[..]))
            .add_extension(PORT, self.port.map(RdmaPort::to_bytes).as_ref().map(|port| &port[..]))
    }
}

impl fmt::Display for CmHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CmKind::Pair => write!(f, "CM, queue pair {:#08x}", self.qpn)?,
            CmKind::Lookup => f.write_str("CM, lookup of a connectionless queue pair")?,
            CmKind::Found if self.status != 0 => write!(f, "CM, lookup failed, status {}", self.status)?,
            CmKind::Found => write!(f, "CM, found {:#08x}, qkey {:#x}", self.qpn, self.qkey)?,
            CmKind::Port => f.write_str("CM, connection")?,
            CmKind::Probe => f.write_str("CM, probe")?,
            CmKind::Listening => f.write_str("CM, listening")?,
            CmKind::NotListening => f.write_str("CM, not listening")?,
        }
        if let Some(port) = self.port {
            write!(f, ", {port}")?;
        }
        f.write_str(if self.secret.is_some() { ", with a secret" } else { "" })?;
        f.write_str(if self.keeps_secret { ", secret stored" } else { "" })
    }
}
