//! Reassembles TCP connections from their segments: the bytes of each direction in order, without duplicates.

use crate::reader::Packet;
use crate::{Error, Segment, packet};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

/// A position in a capture: a packet and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Number of the packet, counting from 1.
    pub packet: usize,
    /// Its time, since 1970.
    pub time: Duration,
}

/// A TCP connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// The client and the server. If the SYN was not recorded, the sender of the first packet comes first.
    pub ends: [SocketAddr; 2],
    /// The stream that each of `ends` sent.
    pub streams: [Stream; 2],
    /// The first packet.
    pub opened: Moment,
    /// The last packet that closed a direction, or reset the connection.
    pub closed: Option<Moment>,
}

/// The byte stream from one end of a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// The bytes up to the first gap.
    pub bytes: Vec<u8>,
    /// The gap after them, if later bytes were recorded.
    pub gap: Option<Gap>,
    /// The end of each range that became readable with one packet, in order.
    arrivals: Vec<(usize, Moment)>,
}

/// Bytes missing from the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Number of bytes.
    pub missing: usize,
    /// The first packet after the gap.
    pub before: Moment,
}

impl Stream {
    /// Returns the packet with which the byte at `offset` became readable: the one that carried it or, if it was out of
    /// order, the one that filled the last gap before it. Past the end, returns that of the last byte.
    pub fn readable_at(&self, offset: usize) -> Moment {
        let range = self.arrivals.partition_point(|(end, _)| *end <= offset);
        self.arrivals.get(range).or(self.arrivals.last()).map_or(Moment::default(), |(_, moment)| *moment)
    }
}

/// Returns the connections in a capture, in the order in which they begin.
///
/// A SYN begins a new connection even between the same ports, unless it repeats the SYN of the current one.
pub fn connections(packets: &[Packet<'_>]) -> Result<Vec<Connection>, Error> {
    let mut open: HashMap<[SocketAddr; 2], usize> = HashMap::new();
    let mut all: Vec<Assembly> = Vec::new();
    for packet in packets {
        let Some(segment) = packet::segment(packet)? else { continue };
        let moment = Moment { packet: packet.number, time: packet.time };
        let mut key = [segment.from, segment.to];
        key.sort();
        let index = match open.get(&key) {
            Some(&index) if !all[index].is_superseded_by(&segment) => index,
            _ => {
                all.push(Assembly::new(&segment, moment));
                open.insert(key, all.len() - 1);
                all.len() - 1
            }
        };
        all[index].add_segment(&segment, moment);
    }
    Ok(all.into_iter().map(Assembly::finish).collect())
}

/// A connection being reassembled.
struct Assembly {
    ends: [SocketAddr; 2],
    directions: [Direction; 2],
    opened: Moment,
    closed: Option<Moment>,
}

impl Assembly {
    /// Starts to reassemble the connection of this segment.
    fn new(first: &Segment<'_>, opened: Moment) -> Self {
        // If the SYN was not recorded, a SYN-ACK comes from the server.
        let is_syn_ack = first.flags.syn && first.flags.ack;
        let ends = if is_syn_ack { [first.to, first.from] } else { [first.from, first.to] };
        Self { ends, directions: Default::default(), opened, closed: None }
    }

    /// Returns whether the segment opens another connection between the same ports.
    fn is_superseded_by(&self, segment: &Segment<'_>) -> bool {
        segment.flags.syn
            && !segment.flags.ack
            && self.directions[self.side(segment)].syn != Some(segment.seq)
    }

    /// Returns the index of the end that sent a segment.
    fn side(&self, segment: &Segment<'_>) -> usize {
        usize::from(segment.from != self.ends[0])
    }

    fn add_segment(&mut self, segment: &Segment<'_>, moment: Moment) {
        if segment.flags.fin || segment.flags.rst {
            self.closed = Some(moment);
        }
        let side = self.side(segment);
        self.directions[side].add_segment(segment, moment);
    }

    fn finish(self) -> Connection {
        let Self { ends, directions, opened, closed } = self;
        Connection { ends, streams: directions.map(Direction::finish), opened, closed }
    }
}

/// A direction being reassembled.
#[derive(Default)]
struct Direction {
    /// The sequence number of the SYN.
    syn: Option<u32>,
    /// The sequence number of the first byte.
    first: Option<u32>,
    stream: Stream,
    /// Out-of-order segments by offset and packet.
    early: BTreeMap<(usize, usize), (Moment, Vec<u8>)>,
}

impl Direction {
    fn add_segment(&mut self, segment: &Segment<'_>, moment: Moment) {
        if segment.flags.syn {
            self.syn = Some(segment.seq);
        }
        let seq = segment.seq.wrapping_add(segment.flags.syn.into()); // a SYN counts as one byte
        let first = *self.first.get_or_insert(seq);
        let have = self.stream.bytes.len();
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers count modulo 2^32")]
        let ahead = seq.wrapping_sub(first.wrapping_add(have as u32)).cast_signed();
        let distance = ahead.unsigned_abs() as usize;
        if ahead <= 0 {
            self.append(segment.payload.get(distance..).unwrap_or_default(), moment);
            self.append_early(moment);
        } else if !segment.payload.is_empty() {
            self.early.insert((have + distance, moment.packet), (moment, segment.payload.to_vec()));
        }
    }

    /// Appends bytes to the stream, which became readable with this packet.
    fn append(&mut self, bytes: &[u8], moment: Moment) {
        if !bytes.is_empty() {
            self.stream.bytes.extend(bytes);
            self.stream.arrivals.push((self.stream.bytes.len(), moment));
        }
    }

    /// Appends early segments that follow the stream without a gap now.
    fn append_early(&mut self, moment: Moment) {
        while let Some(entry) = self.early.first_entry() {
            let (offset, _) = *entry.key();
            let Some(known) = self.stream.bytes.len().checked_sub(offset) else { return };
            let (_, bytes) = entry.remove();
            self.append(bytes.get(known..).unwrap_or_default(), moment);
        }
    }

    fn finish(self) -> Stream {
        let mut stream = self.stream;
        stream.gap = self
            .early
            .first_key_value()
            .map(|((offset, _), (before, _))| Gap { missing: offset - stream.bytes.len(), before: *before });
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureWriter, Flags};

    const CLIENT: &str = "10.0.0.1:1000";
    const SERVER: &str = "10.0.0.2:2000";

    /// Assembles segments (sender, sequence number, flags, payload) that are one second apart.
    fn assemble(segments: &[(&str, u32, Flags, &[u8])]) -> Vec<Connection> {
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        for (second, &(from, seq, flags, payload)) in (1..).zip(segments) {
            let to = if from == CLIENT { SERVER } else { CLIENT };
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let segment = Segment { from, to, seq, ack: 0, flags, payload };
            writer.segment(Duration::from_secs(second), &segment).unwrap();
        }
        connections(&crate::read(&writer.into_inner()).unwrap().packets).unwrap()
    }

    const SYN: Flags = Flags { syn: true, fin: false, rst: false, psh: false, ack: false };
    const SYN_ACK: Flags = Flags { ack: true, ..SYN };
    const ACK: Flags = Flags { syn: false, ..SYN_ACK };
    const FIN: Flags = Flags { fin: true, ..ACK };

    #[test]
    fn bytes_are_put_in_order_across_the_end_of_the_sequence_numbers() {
        let found = assemble(&[
            (CLIENT, u32::MAX - 2, SYN, b""),
            (SERVER, 500, SYN_ACK, b""),
            (CLIENT, 1, ACK, b"defg"),          // out of order
            (CLIENT, u32::MAX - 1, ACK, b"ab"), // delayed
            (SERVER, 501, ACK, b"yes"),
            (CLIENT, 0, ACK, b"cde"), // fills the gap, and overlaps the out-of-order segment
            (CLIENT, u32::MAX - 1, ACK, b"ab"), // retransmission
            (CLIENT, 5, FIN, b"h"),
        ]);
        let [connection] = &found[..] else { panic!("{found:?}") };
        assert_eq!(connection.ends, [CLIENT, SERVER].map(|end| end.parse().unwrap()));
        let [to_server, to_client] = &connection.streams;
        assert_eq!((&to_server.bytes[..], to_server.gap), (&b"abcdefgh"[..], None));
        assert_eq!(to_client.bytes, b"yes");
        // Bytes `d` to `g` became readable only when the gap was filled.
        let packets: Vec<_> = (0..9).map(|offset| to_server.readable_at(offset).packet).collect();
        assert_eq!(packets, [4, 4, 6, 6, 6, 6, 6, 8, 8]);
        assert_eq!(to_server.readable_at(4).time, Duration::from_secs(6));
        assert_eq!((connection.opened.packet, connection.closed.unwrap().packet), (1, 8));
    }

    #[test]
    fn a_gap_is_found_with_its_position_and_length() {
        let found = assemble(&[(CLIENT, 9, SYN, b""), (CLIENT, 10, ACK, b"abc"), (CLIENT, 20, ACK, b"xyz")]);
        let stream = &found[0].streams[0];
        assert_eq!(stream.bytes, b"abc");
        let before = Moment { packet: 3, time: Duration::from_secs(3) };
        assert_eq!(stream.gap, Some(Gap { missing: 7, before }));
    }

    #[test]
    fn a_new_syn_begins_a_new_connection_and_a_repeated_one_does_not() {
        let found = assemble(&[
            (CLIENT, 9, SYN, b""),
            (CLIENT, 9, SYN, b""),
            (SERVER, 99, SYN_ACK, b""),
            (CLIENT, 10, ACK, b"first"),
            (CLIENT, 5000, SYN, b""),
            (SERVER, 99, SYN_ACK, b""),
            (CLIENT, 5001, ACK, b"second"),
        ]);
        let bytes: Vec<_> = found.iter().map(|it| &it.streams[0].bytes[..]).collect();
        assert_eq!(bytes, [&b"first"[..], b"second"]);
    }

    #[test]
    fn a_connection_whose_opening_was_not_recorded_begins_with_its_first_packet() {
        let found =
            assemble(&[(SERVER, 99, SYN_ACK, b""), (CLIENT, 10, ACK, b"abc"), (SERVER, 100, ACK, b"d")]);
        let [connection] = &found[..] else { panic!("{found:?}") };
        assert_eq!(connection.ends[0], CLIENT.parse().unwrap());
        assert_eq!(
            (&connection.streams[0].bytes[..], &connection.streams[1].bytes[..]),
            (&b"abc"[..], &b"d"[..])
        );
    }
}
