//! The header of a connection aside: what two connection managers tell each other of queue pairs that the connection itself
//! does not carry, because the program connects them or because they are connectionless. It precedes the program's private
//! data in a Request or Reply.
//!
//! Connections of queue pairs that a connection manager id owns have no such header at the TCP port of the number that was asked for:
//! any iWARP peer understands them. At a candidate port, where only an Ironwarp end listens, all have one that names the RDMA port.

use super::extension::{Emitted, Format, Parsed, Prologue, Unreadable, array, unknown};
use super::port::RdmaPort;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the longest header, all extensions included.
pub const MAX_ASIDE: usize = size_of::<RawAside>() + 20 + 8;

const FORMAT: Format = Format { magic: *b"IRWC", must: 0 };

// May-ignore bits.
const FLOW_CONTROL: u16 = 1 << 0;
const SRQ: u16 = 1 << 1;
const KEEPS_SECRET: u16 = 1 << 2;

// Extensions.
const SECRET: u8 = 0x01;
const PORT: u8 = 0x80;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What it is for.
    pub kind: AsideKind,
    /// The sender's queue pair; 24 bits, higher ones are not sent.
    pub qpn: u32,
    /// Its key, if it is connectionless.
    pub qkey: u32,
    /// Why there is none, as InfiniBand's service ID resolution numbers it; zero if there is one.
    pub status: u32,
    /// How often to repeat; 3 bits.
    pub retry_count: u8,
    /// How often to repeat while no receive is posted; 3 bits.
    pub rnr_retry_count: u8,
    /// The sender wants end-to-end flow control.
    pub flow_control: bool,
    /// The queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// In a Request: a secret that the two queue pairs may use to prove who they are.
    pub secret: Option<Secret>,
    /// In a Reply: the passive end keeps the secret, so both ends use it.
    pub keeps_secret: bool,
    /// The RDMA port that is asked for, or confirmed.
    pub port: Option<RdmaPort>,
}

/// What a header of a connection aside is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AsideKind {
    /// Two queue pairs belong together, which the programs connect by their numbers.
    Pair = 1,
    /// Asks for the number and key of a connectionless queue pair.
    Lookup = 2,
    /// The answer to that.
    Found = 3,
    /// Asks for an RDMA port at a candidate, or confirms it. The private data that belong to the connection follow, as they would be
    /// at the TCP port of the same number.
    Port = 4,
    /// Asks whether an RDMA port is here. There will be no connection.
    Probe = 5,
    /// The answer to that: it is.
    Here = 6,
    /// The RDMA port that was asked for is not here.
    Elsewhere = 7,
}

/// A secret of 128 bits, which does not show in logs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAside {
    prologue: Prologue,
    qpn: U32,
    qkey: U32,
    status: U32,
    retry_count: u8,
    rnr_retry_count: u8,
    zero: [u8; 2],
}

impl Aside {
    /// With the defaults of the connection manager.
    pub const fn new(kind: AsideKind, qpn: u32) -> Self {
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

    /// Of a kind that is about an RDMA port and not about a queue pair.
    pub const fn about(kind: AsideKind, port: RdmaPort) -> Self {
        Self { port: Some(port), ..Self::new(kind, 0) }
    }

    /// Reads the header that private data begin with. Returns it with what is left for the program.
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), Unreadable> {
        let Parsed { fixed, extensions, rest } = FORMAT.parse::<RawAside>(private_data)?;
        let kind = match fixed.prologue.kind {
            1 => AsideKind::Pair,
            2 => AsideKind::Lookup,
            3 => AsideKind::Found,
            4 => AsideKind::Port,
            5 => AsideKind::Probe,
            6 => AsideKind::Here,
            7 => AsideKind::Elsewhere,
            other => return Err(Unreadable::Extension(other)),
        };
        let (mut secret, mut port) = (None, None);
        for extension in extensions {
            match extension? {
                (SECRET, value) => secret = Some(Secret(array(value)?)),
                (PORT, value) => {
                    port = Some(RdmaPort::from_bytes(array(value)?).ok_or(Unreadable::Extension(PORT))?);
                }
                (kind, _) => unknown(kind)?,
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

    /// The header to send in front of the program's private data.
    pub fn emit(&self) -> Emitted<MAX_ASIDE> {
        let set = |on, bit| if on { bit } else { 0 };
        let may =
            set(self.flow_control, FLOW_CONTROL) | set(self.srq, SRQ) | set(self.keeps_secret, KEEPS_SECRET);
        let raw = RawAside {
            prologue: FORMAT.prologue::<RawAside>(self.kind as u8, 0, may),
            qpn: (self.qpn & 0xff_ffff).into(),
            qkey: self.qkey.into(),
            status: self.status.into(),
            retry_count: self.retry_count & 7,
            rnr_retry_count: self.rnr_retry_count & 7,
            zero: [0; 2],
        };
        Emitted::new(&raw)
            .extension(SECRET, self.secret.as_ref().map(|secret| &secret.0[..]))
            .extension(PORT, self.port.map(RdmaPort::to_bytes).as_ref().map(|port| &port[..]))
    }
}

impl fmt::Display for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            AsideKind::Pair => write!(f, "Aside, queue pair {:#08x}", self.qpn)?,
            AsideKind::Lookup => write!(f, "Aside, looks for a connectionless queue pair")?,
            AsideKind::Found if self.status != 0 => write!(f, "Aside, status {}", self.status)?,
            AsideKind::Found => write!(f, "Aside, found {:#08x}, qkey {:#x}", self.qpn, self.qkey)?,
            AsideKind::Port => write!(f, "Aside, for a connection")?,
            AsideKind::Probe => write!(f, "Aside, asks for a listener")?,
            AsideKind::Here => write!(f, "Aside, listens here")?,
            AsideKind::Elsewhere => write!(f, "Aside, does not listen here")?,
        }
        if let Some(port) = self.port {
            write!(f, ", {port}")?;
        }
        f.write_str(if self.secret.is_some() { ", with a secret" } else { "" })?;
        f.write_str(if self.keeps_secret { ", keeps the secret" } else { "" })
    }
}
