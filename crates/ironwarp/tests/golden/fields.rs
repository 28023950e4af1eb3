//! A frame as named fields, parsed independently: this project's own parser is lenient, and would hide differences.

use std::collections::HashMap;
use std::fmt::Write;

/// Fields in wire order.
pub(crate) type Fields = Vec<(&'static str, String)>;

/// Tags and addresses of one connection. They differ each time; messages that refer to the same memory, and their
/// distances, must be the same.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<u32, (usize, u64)>);

impl Names {
    /// Returns the ordinal of the tag in the connection, and the distance from the first address used with it.
    fn addr(&mut self, tag: u32, offset: u64) -> String {
        if tag <= 1 {
            // The tag of an empty message is not checked. siw sends 1 and 0, for hardware that might check it.
            return format!("nothing+{offset:#x}");
        }
        let next = self.0.len();
        let (n, first) = *self.0.entry(tag).or_insert((next, offset));
        format!("tag {n}{:+}", offset.wrapping_sub(first).cast_signed())
    }
}

/// Returns the fields of a startup frame or an FPDU.
pub(crate) fn of(bytes: &[u8], names: &mut Names) -> Fields {
    if bytes.starts_with(b"MPA ID Re") { startup(bytes) } else { fpdu(bytes, names) }
}

fn startup(bytes: &[u8]) -> Fields {
    let (flags, mut data) = (bytes[16], &bytes[20..]);
    let bit = |bit: u8| u8::from(flags & bit != 0).to_string();
    let mut fields = vec![
        ("key", String::from_utf8(bytes[..16].to_vec()).unwrap()),
        ("M", bit(0x80)),
        ("C", bit(0x40)),
        ("R", bit(0x20)),
        ("S", bit(0x10)),
        ("reserved", (flags & 0xf).to_string()),
        ("revision", bytes[17].to_string()),
        ("length", u16_at(bytes, 18).to_string()),
    ];
    if flags & 0x10 != 0 {
        for (at, names) in [(0, ["A", "B", "IRD"]), (2, ["RTR Write", "RTR Read", "ORD"])] {
            let word = u16_at(data, at);
            fields.push((names[0], (word >> 15).to_string()));
            fields.push((names[1], (word >> 14 & 1).to_string()));
            fields.push((names[2], (word & 0x3fff).to_string()));
        }
        data = &data[4..];
    }
    fields.push(("private data", hex(data)));
    fields
}

fn fpdu(bytes: &[u8], names: &mut Names) -> Fields {
    let len = usize::from(u16_at(bytes, 0));
    let (ulpdu, rest) = bytes[2..].split_at(len);
    let (padding, crc) = rest.split_at(rest.len() - 4);
    let mut fields = vec![("length", len.to_string())];
    let opcode = ulpdu[1] & 0xf;
    let header = ddp(ulpdu, names, &mut fields);
    let words = &ulpdu[header..];
    match opcode {
        1 => read_request(words, names, &mut fields),
        7 => terminate(words, names, &mut fields),
        _ => fields.push(("payload", hex(words))),
    }
    fields.push(("padding", hex(padding)));
    // The CRC was verified when the frame was dissected.
    fields.push(("CRC", if crc == [0; 4] { "zero" } else { "there" }.to_owned()));
    fields
}

/// Parses a DDP header and RDMAP's control byte. Returns the length.
fn ddp(ulpdu: &[u8], names: &mut Names, fields: &mut Fields) -> usize {
    fields.push(("DDP control", format!("{:02x}", ulpdu[0])));
    fields.push(("RDMAP control", format!("{:02x}", ulpdu[1])));
    if ulpdu[0] & 0x80 != 0 {
        fields.push(("place", names.addr(u32_at(ulpdu, 2), u64_at(ulpdu, 6))));
        return 14;
    }
    let invalidates = [4, 6].contains(&(ulpdu[1] & 0xf));
    let word = u32_at(ulpdu, 2);
    let word = if invalidates && word != 0 { "a tag".to_owned() } else { word.to_string() };
    fields.push(("word", word));
    fields.push(("queue", u32_at(ulpdu, 6).to_string()));
    fields.push(("MSN", u32_at(ulpdu, 10).to_string()));
    fields.push(("MO", u32_at(ulpdu, 14).to_string()));
    18
}

fn read_request(words: &[u8], names: &mut Names, fields: &mut Fields) {
    assert_eq!(words.len(), 28);
    fields.push(("sink", names.addr(u32_at(words, 0), u64_at(words, 4))));
    fields.push(("size", u32_at(words, 12).to_string()));
    fields.push(("source", names.addr(u32_at(words, 16), u64_at(words, 20))));
}

fn terminate(words: &[u8], names: &mut Names, fields: &mut Fields) {
    for (name, byte) in ["layer and type", "code", "header bits", "reserved"].into_iter().zip(words) {
        fields.push((name, format!("{byte:02x}")));
    }
    let Some((length, offender)) = words[4..].split_at_checked(2) else { return };
    fields.push(("segment length", u16_at(length, 0).to_string()));
    let mut inner = Fields::new();
    let header = ddp(offender, names, &mut inner);
    if offender.len() > header {
        read_request(&offender[header..], names, &mut inner);
    }
    fields.extend(inner.into_iter().map(|(name, value)| (of_offender(name), value)));
}

/// Returns the name of a field of the segment that a Terminate reports.
fn of_offender(name: &str) -> &'static str {
    let names = [
        ("DDP control", "its DDP control"),
        ("RDMAP control", "its RDMAP control"),
        ("place", "its place"),
        ("word", "its word"),
        ("queue", "its queue"),
        ("MSN", "its MSN"),
        ("MO", "its MO"),
        ("sink", "its sink"),
        ("size", "its size"),
        ("source", "its source"),
    ];
    names.iter().find(|(it, _)| *it == name).expect("a field of a header").1
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}
