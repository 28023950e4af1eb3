//! Packet captures of iWARP: read, shown, cut anew and written.
//!
//! ```text
//!  file ── reader ─▶ packets ── packet ─▶ TCP segments ── flow ─▶ connections ── dissect ─▶ frames ── show ─▶ text
//!  file ◀─ ironwarp-capture ── bytes to send ◀── encode ── messages                     └── recut ─▶ ironwarp-capture
//! ```
//!
//! Internal: it serves the tests, which compare with captures of other implementations and with what Wireshark makes of
//! our own messages, and people who look into captures. All of it works in memory.
//!
//! ```
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/siw-rping.pcap");
//! let capture = ironwarp_pcap::Capture::open(file)?;
//! let (_, first) = capture.frames().next().unwrap();
//! assert_eq!(first.to_string(), "MPA Request, revision 2, IRD 1, ORD 1, 0 bytes of private data");
//! # Ok::<(), ironwarp_pcap::Error>(())
//! ```
#![forbid(unsafe_code)]

mod dissect;
mod encode;
mod error;
mod flow;
mod packet;
mod reader;
pub mod recut;
pub mod sample;
pub mod show;

pub use dissect::{Conversation, Fault, Frame, Kind, OwnedStartup, Problem, dissect};
pub use encode::Encoder;
pub use error::Error;
pub use flow::{Connection, Hole, Moment, Stream, connections};
pub use ironwarp_capture::{CaptureWriter, Flags, OpenConnection, Segment};
pub use packet::{LinkType, segment};
pub use reader::{Packet, Recording, read};

use std::path::Path;
use std::time::Duration;

/// What is in a capture file.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// The connections that speak iWARP, in the order in which they begin.
    pub conversations: Vec<Conversation>,
    /// How many TCP connections speak something else.
    pub others: usize,
    /// The time of the first packet, of whatever kind.
    pub start: Duration,
    /// The file ends in the middle of a packet, which is left out.
    pub cut_off: bool,
}

impl Capture {
    /// Reads a file, pcap or pcapng.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
        Self::parse(&file)
    }

    /// Reads the content of a file, pcap or pcapng.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let Recording { packets, cut_off } = read(file)?;
        let start = packets.first().map_or(Duration::ZERO, |packet| packet.time);
        let connections = connections(&packets)?;
        let conversations: Vec<_> = connections.iter().filter_map(dissect).collect();
        let others = connections.len() - conversations.len();
        Ok(Self { conversations, others, start, cut_off })
    }

    /// All frames in the order in which they were complete, each with its conversation.
    pub fn frames(&self) -> impl Iterator<Item = (&Conversation, &Frame)> {
        let mut frames: Vec<_> =
            self.conversations.iter().flat_map(|it| it.frames.iter().map(move |frame| (it, frame))).collect();
        frames.sort_by_key(|(_, frame)| frame.at.packet);
        frames.into_iter()
    }
}
