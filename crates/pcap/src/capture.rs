//! A capture file, read into its iWARP connections and Ironwarp's datagrams.

use crate::{Conversation, Error, Frame, Moment, Packet, Recording, connections, dissect, packet, read};
use ironwarp_wire::private::{Datagram, Unreadable};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The contents of a capture file.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// The iWARP connections, in the order in which they begin.
    pub conversations: Vec<Conversation>,
    /// Ironwarp's datagrams, in order.
    pub datagrams: Vec<CapturedDatagram>,
    /// Number of TCP connections with another protocol.
    pub others: usize,
    /// The time of the first packet of any kind.
    pub start: Duration,
    /// Whether the file ends in the middle of a packet, which is ignored.
    pub cut_off: bool,
}

/// A datagram of a connectionless queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapturedDatagram {
    /// The packet that contains it.
    pub at: Moment,
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The header, and the length of the payload. An error if a receiver would drop the datagram.
    pub header: Result<(Datagram, usize), Unreadable>,
}

impl CapturedDatagram {
    /// Returns the datagram in a packet. `None` if there is none of Ironwarp.
    fn find(packet: &Packet<'_>) -> Result<Option<Self>, Error> {
        let Some(datagram) = packet::datagram(packet)? else { return Ok(None) };
        let at = Moment { packet: packet.number, time: packet.time };
        let header = match Datagram::parse(datagram.payload) {
            Err(Unreadable::Foreign) => return Ok(None),
            parsed => parsed.map(|(header, payload)| (header, payload.len())),
        };
        Ok(Some(Self { at, from: datagram.from, to: datagram.to, header }))
    }
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
        let found = packets.iter().map(CapturedDatagram::find);
        let datagrams = found.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        Ok(Self { conversations, datagrams, others, start, cut_off })
    }

    /// Returns all frames, in the order of their completion, each with its conversation.
    pub fn frames(&self) -> impl Iterator<Item = (&Conversation, &Frame)> {
        let mut frames: Vec<_> =
            self.conversations.iter().flat_map(|it| it.frames.iter().map(move |frame| (it, frame))).collect();
        frames.sort_by_key(|(_, frame)| frame.at.packet);
        frames.into_iter()
    }
}
