//! Reads the packets of a capture file. `packet.rs` parses the packets.

use crate::Error;
use crate::link::LinkType;
use pcap_parser::nom::{Err as Failure, IResult};
use pcap_parser::pcap::{PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified};
use pcap_parser::{
    Block, InterfaceDescriptionBlock, PcapError, parse_block_be, parse_block_le, parse_pcap_header,
};
use std::time::Duration;

const NANOS: u128 = 1_000_000_000;

/// A recorded packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet<'a> {
    /// Its number in the file, counting from 1 like packet analysers.
    pub number: usize,
    /// When it was recorded, since 1970.
    pub time: Duration,
    /// The kind of header it begins with.
    pub link: LinkType,
    /// The recorded part of the packet.
    pub data: &'a [u8],
}

/// The packets of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording<'a> {
    /// The complete packets.
    pub packets: Vec<Packet<'a>>,
    /// Whether the file ends in the middle of a record, as it does if the recorder was killed.
    pub cut_off: bool,
}

/// Reads a pcap or pcapng file.
pub fn read(file: &[u8]) -> Result<Recording<'_>, Error> {
    let mut recording = Recording::default();
    let read = if let Ok((records, header)) = parse_pcap_header(file) {
        read_pcap(file, records, &header, &mut recording.packets)
    } else if let Ok((_, section)) = pcap_parser::parse_sectionheaderblock(file) {
        read_pcapng(file, section.big_endian(), &mut recording.packets)
    } else {
        Err(Stop::Error(Error::Format))
    };
    match read {
        Err(Stop::Error(error)) => return Err(error),
        Err(Stop::CutOff) => recording.cut_off = true,
        Ok(()) => {}
    }
    Ok(recording)
}

/// Why reading stopped before the end of the file.
enum Stop {
    /// The file ends in the middle of a record.
    CutOff,
    /// The file is invalid.
    Error(Error),
}

/// Reads the records of a pcap file.
fn read_pcap<'a>(
    file: &'a [u8],
    mut records: &'a [u8],
    header: &PcapHeader,
    packets: &mut Vec<Packet<'a>>,
) -> Result<(), Stop> {
    let parse = match (header.is_modified_format(), header.is_bigendian()) {
        (true, _) => parse_pcap_frame_modified,
        (false, true) => parse_pcap_frame_be,
        (false, false) => parse_pcap_frame,
    };
    let unit = if header.is_nanosecond_precision() { 1 } else { 1_000 };
    let link = LinkType::from_wire(header.network.0);
    while !records.is_empty() {
        let number = packets.len() + 1;
        let record = next(parse, file, &mut records, number)?;
        let time = Duration::from_secs(record.ts_sec.into())
            + Duration::from_nanos(u64::from(record.ts_usec) * unit);
        packets.push(Packet { number, time, link, data: record.data });
    }
    Ok(())
}

/// Reads the blocks of a pcapng file.
fn read_pcapng<'a>(file: &'a [u8], mut big_endian: bool, packets: &mut Vec<Packet<'a>>) -> Result<(), Stop> {
    let (mut blocks, mut count) = (file, 0);
    let mut interfaces: Vec<Interface> = Vec::new();
    while !blocks.is_empty() {
        count += 1;
        let parse = if big_endian { parse_block_be } else { parse_block_le };
        let (interface, ticks, data) = match next(parse, file, &mut blocks, count)? {
            Block::SectionHeader(section) => {
                // Each section numbers its interfaces from zero, and may have a different byte order.
                big_endian = section.big_endian();
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(block) => {
                interfaces.push(Interface::new(&block));
                continue;
            }
            Block::EnhancedPacket(block) => {
                let ticks = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
                let captured = block.data.get(..block.caplen as usize).unwrap_or(block.data);
                (block.if_id, ticks, captured)
            }
            Block::SimplePacket(block) => {
                let whole = block.origlen as usize;
                (0, 0, block.data.get(..whole).unwrap_or(block.data)) // without a timestamp
            }
            _ => continue,
        };
        let number = packets.len() + 1;
        let Some(from) = interfaces.get(interface as usize) else {
            return Err(Stop::Error(Error::Interface { packet: number, interface }));
        };
        packets.push(Packet { number, time: from.time(ticks), link: from.link, data });
    }
    Ok(())
}

/// Parses the next record and removes it from `records`. `record` is its number, for errors.
fn next<'a, T>(
    parse: impl Fn(&'a [u8]) -> IResult<&'a [u8], T, PcapError<&'a [u8]>>,
    file: &[u8],
    records: &mut &'a [u8],
    record: usize,
) -> Result<T, Stop> {
    let offset = file.len() - records.len();
    match parse(records) {
        Ok((rest, found)) => {
            *records = rest;
            Ok(found)
        }
        Err(Failure::Incomplete(_)) => Err(Stop::CutOff),
        Err(_) => Err(Stop::Error(Error::Damaged { record, offset })),
    }
}

/// An interface that a pcapng file describes.
struct Interface {
    link: LinkType,
    ticks_per_second: u128,
    /// Seconds to add to each time.
    offset: i64,
}

impl Interface {
    /// Converts the description of an interface.
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let exponent = u32::from(block.if_tsresol & 0x7f);
        let base: u128 = if block.if_tsresol & 0x80 == 0 { 10 } else { 2 };
        Self {
            link: LinkType::from_wire(block.linktype.0),
            ticks_per_second: base.checked_pow(exponent).unwrap_or(u128::MAX),
            offset: block.if_tsoffset,
        }
    }

    /// Returns the time of a timestamp, since 1970.
    fn time(&self, ticks: u64) -> Duration {
        let ticks = u128::from(ticks);
        let seconds = u64::try_from(ticks / self.ticks_per_second).unwrap_or(u64::MAX);
        // If the resolution is so fine that the product overflows, the fraction is ignored.
        let nanos = (ticks % self.ticks_per_second).checked_mul(NANOS).unwrap_or(0) / self.ticks_per_second;
        let nanos = u32::try_from(nanos).unwrap_or(0);
        Duration::new(seconds.saturating_add_signed(self.offset), nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pcap file with one packet of three bytes.
    fn pcap(magic: u32, word: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let header = [word(magic).to_vec(), half(2).to_vec(), half(4).to_vec()].concat();
        let rest = [0, 0, 65_535, 101].map(word).concat();
        let record = [1_000_000_000, 250, 3, 3].map(word).concat();
        [header, rest, record, b"abc".to_vec()].concat()
    }

    #[test]
    fn both_byte_orders_and_both_precisions_are_read() {
        let (micros, nanos) = (Duration::from_micros(250), Duration::from_nanos(250));
        for (magic, fraction) in [(0xa1b2_c3d4, micros), (0xa1b2_3c4d, nanos)] {
            let little = pcap(magic, u32::to_le_bytes, u16::to_le_bytes);
            let big = pcap(magic, u32::to_be_bytes, u16::to_be_bytes);
            for file in [little, big] {
                let time = Duration::from_secs(1_000_000_000) + fraction;
                let expected = Packet { number: 1, time, link: LinkType::RAW, data: b"abc" };
                assert_eq!(read(&file).unwrap(), Recording { packets: vec![expected], cut_off: false });
            }
        }
    }

    fn block(word: fn(u32) -> [u8; 4], kind: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len() + 12).unwrap();
        [&word(kind)[..], &word(len), body, &word(len)].concat()
    }

    /// A pcapng section with an interface whose resolution is 2^-10 seconds, and one packet of it.
    fn section(link: u16, word: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let version = [half(1), half(0)].concat();
        let header = [word(0x1a2b_3c4d).to_vec(), version, vec![0xff; 8]].concat();
        let resolution = [half(9).to_vec(), half(1).to_vec(), vec![0x80 | 10, 0, 0, 0], vec![0; 4]].concat();
        let interface = [half(link).to_vec(), half(0).to_vec(), word(0).to_vec(), resolution].concat();
        let packet = [[0, 0, 3 * 1024 + 512, 3, 3].map(word).concat(), b"abc\0".to_vec()].concat();
        [block(word, 0x0a0d_0d0a, &header), block(word, 1, &interface), block(word, 6, &packet)].concat()
    }

    #[test]
    fn pcapng_sections_have_their_own_byte_order_and_interfaces() {
        let file = [
            section(276, u32::to_le_bytes, u16::to_le_bytes),
            section(113, u32::to_be_bytes, u16::to_be_bytes),
        ]
        .concat();
        let time = Duration::from_millis(3500);
        let packet = |number, link| Packet { number, time, link, data: b"abc" };
        assert_eq!(read(&file).unwrap().packets, [packet(1, LinkType::SLL2), packet(2, LinkType::SLL)]);
    }

    #[test]
    fn other_files_are_an_error() {
        assert!(matches!(read(b""), Err(Error::Format)));
        assert!(matches!(read(b"GIF89a, and more than a file header"), Err(Error::Format)));
    }

    #[test]
    fn complete_packets_of_a_truncated_file_are_read() {
        let one = pcap(0xa1b2_c3d4, u32::to_le_bytes, u16::to_le_bytes);
        let two = [&one[..], &one[24..]].concat();
        for len in 24..=two.len() {
            let recording = read(&two[..len]).unwrap();
            assert_eq!(recording.packets.len(), (len - 24) / 19, "{len} bytes");
            assert_eq!(recording.cut_off, (len - 24) % 19 != 0, "{len} bytes");
        }
        let ng = section(276, u32::to_le_bytes, u16::to_le_bytes);
        let recording = read(&ng[..ng.len() - 1]).unwrap();
        assert_eq!((recording.packets.len(), recording.cut_off), (0, true));
    }

    #[test]
    fn a_packet_of_an_unknown_interface_is_an_error() {
        let mut file = section(276, u32::to_le_bytes, u16::to_le_bytes);
        let interface = file.len() - 4 - 4 - 20;
        file[interface] = 7;
        assert!(matches!(read(&file), Err(Error::Interface { packet: 1, interface: 7 })));
    }
}
