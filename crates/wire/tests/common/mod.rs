//! Test helpers: hex decoding, and slow reference implementations.
#![allow(dead_code, reason = "not every test binary uses everything")]

use ironwarp_wire::mpa::{FpduReader, FpduWriter, Framing, Piece};
use ironwarp_wire::{Dialect, Header, Violation};

/// Decodes hex. White space is ignored, and `"text"` in quotes is taken literally.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, part) in text.split('"').enumerate() {
        if i % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let digits: Vec<u32> = part.chars().filter_map(|c| c.to_digit(16)).collect();
        assert!(digits.len().is_multiple_of(2), "odd number of hex digits in {part:?}");
        bytes.extend(digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()));
    }
    bytes
}

/// Computes CRC32c bit by bit.
pub(crate) fn slow_crc(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!crc).to_le_bytes()
}

/// A segment to send.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// Emits segments with [`FpduWriter`].
pub(crate) fn write(framing: Framing, segments: &[Sent]) -> Vec<u8> {
    let mut writer = FpduWriter::new(framing);
    let mut stream = Vec::new();
    for Sent { header, payload } in segments {
        writer.write(header, payload, |bytes| stream.extend(bytes)).unwrap();
    }
    stream
}

/// Reference implementation of [`write`]: builds whole FPDUs, then inserts markers byte by byte, as RFC 5044 §4.3 describes.
pub(crate) fn slow_write(framing: Framing, segments: &[Sent]) -> Vec<u8> {
    let mut stream = Vec::new();
    for Sent { header, payload } in segments {
        let mut head = [0; ironwarp_wire::MAX_HEADER];
        let n = header.emit(payload.len(), &mut head).unwrap();
        let mut plain = [&head[..n], payload].concat();
        while !plain.len().is_multiple_of(4) {
            plain.push(0);
        }
        let first = stream.len();
        // Position of the length field: after a marker that precedes the FPDU.
        let start = first + if framing.markers && first.is_multiple_of(512) { 4 } else { 0 };
        let push_marker = |stream: &mut Vec<u8>| {
            if framing.markers && stream.len().is_multiple_of(512) {
                let pointer = u16::try_from(stream.len().saturating_sub(start)).unwrap();
                stream.extend([0, 0]);
                stream.extend(pointer.to_be_bytes());
            }
        };
        for byte in plain {
            push_marker(&mut stream);
            stream.push(byte);
        }
        push_marker(&mut stream);
        let crc = if framing.crc { slow_crc(&stream[first..]) } else { [0; 4] };
        stream.extend(crc);
    }
    stream
}

/// Reads a stream that arrives in `chunks`. With `direct`, payload bypasses the reader.
pub(crate) fn read<'a>(
    framing: Framing,
    dialect: Dialect,
    direct: bool,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Vec<Sent>, FpduReader), Violation> {
    let mut reader = FpduReader::new(framing);
    let (mut segments, mut open): (Vec<Sent>, Option<Sent>) = (Vec::new(), None);
    for mut input in chunks {
        loop {
            if direct && reader.run_len() > 0 && !input.is_empty() {
                let (run, rest) = input.split_at(reader.run_len().min(input.len()));
                reader.cover(run);
                open.as_mut().unwrap().payload.extend(run);
                input = rest;
            }
            match reader.next(&mut input, dialect)? {
                None => break assert!(input.is_empty(), "`None` means that all input was consumed"),
                Some(Piece::Header(fpdu)) => {
                    assert!(open.is_none());
                    open = Some(Sent { header: fpdu.header, payload: Vec::new() });
                }
                Some(Piece::Payload(bytes)) => {
                    assert!(!bytes.is_empty());
                    open.as_mut().unwrap().payload.extend(bytes);
                }
                Some(Piece::End) => segments.push(open.take().unwrap()),
            }
        }
    }
    Ok((segments, reader))
}
