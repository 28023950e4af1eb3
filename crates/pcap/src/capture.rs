//! A capture file, read into its iWARP connections.

use crate::{Conversation, Error, Frame, Recording, connections, dissect, read};
use std::path::Path;
use std::time::Duration;

/// The contents of a capture file.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// The iWARP connections, in the order in which they begin.
    pub conversations: Vec<Conversation>,
    /// Number of TCP connections with another protocol.
    pub others: usize,
    /// The time of the first packet of any kind.
    pub start: Duration,
    /// Whether the file ends in the middle of a packet, which is ignored.
    pub cut_off: bool,
}

impl Capture {
    /// Reads a pcap or pcapng file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
        Self::parse(&file)
    }

    /// Parses the contents of a pcap or pcapng file.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let Recording { packets, cut_off } = read(file)?;
        let start = packets.first().map_or(Duration::ZERO, |packet| packet.time);
        let connections = connections(&packets)?;
        let conversations: Vec<_> = connections.iter().filter_map(dissect).collect();
        let others = connections.len() - conversations.len();
        Ok(Self { conversations, others, start, cut_off })
    }

    /// Returns all frames, in the order of their completion, each with its conversation.
    pub fn frames(&self) -> impl Iterator<Item = (&Conversation, &Frame)> {
        let mut frames: Vec<_> =
            self.conversations.iter().flat_map(|it| it.frames.iter().map(move |frame| (it, frame))).collect();
        frames.sort_by_key(|(_, frame)| frame.at.packet);
        frames.into_iter()
    }
}
