//! Reads, prints, resegments and writes packet captures of iWARP.
//!
//! ```text
//!  file ── reader ─▶ packets ── packet ─▶ TCP segments ── flow ─▶ connections ── dissect ─▶ frames ── show ─▶ text
//!  file ◀─ ironwarp-capture ── bytes to send ◀── encode ── messages                     └── resegment ─▶ ironwarp-capture
//! ```
//!
//! Internal: used by tests that compare our traffic with captures of other implementations and with Wireshark's
//! decoder, and by people who inspect captures. Captures are held in memory.
//!
//! ```
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/siw-rping.pcap");
//! let capture = ironwarp_pcap::Capture::open(file)?;
//! let (_, first) = capture.frames().next().unwrap();
//! assert_eq!(first.to_string(), "MPA Request, revision 2, IRD 1, ORD 1, 0 bytes of private data");
//! # Ok::<(), ironwarp_pcap::Error>(())
//! ```
#![forbid(unsafe_code)]

mod capture;
mod dissect;
mod encode;
mod error;
mod flow;
mod link;
mod packet;
mod reader;
pub mod resegment;
pub mod sample;
pub mod show;

pub use capture::{Capture, CapturedDatagram};
pub use dissect::{Conversation, Frame, Kind, OwnedStartup, Problem, ProblemKind, dissect};
pub use encode::Encoder;
pub use error::Error;
pub use flow::{Connection, Gap, Moment, Stream, connections};
pub use ironwarp_capture::{CaptureWriter, Flags, OpenConnection, Segment};
pub use link::LinkType;
pub use packet::{UdpDatagram, datagram, segment};
pub use reader::{Packet, Recording, read};
