//! Instruction counts of the codec. `cargo xtask instructions` runs each case under callgrind and checks it against its
//! ceiling, which docs/specification/performance.md states too.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use ironwarp_wire::{
    Dialect, Fpdu, Header, MAX_HEADER, ReadRequest, RemoteAddr, Send, SendWord, Tag, Tagged,
    mpa::{FpduReader, FpduWriter, Framing, MAX_HEAD, MAX_TAIL},
};
use std::hint::black_box;

const REPEATS: usize = 1000;

/// Name, ceiling, and the measured function, which runs the case [`REPEATS`] times.
const CASES: &[(&str, u32, fn())] = &[
    ("loop", 10, measured_loop),
    ("parse_tagged", 50, measured_parse_tagged),
    ("emit_tagged", 50, measured_emit_tagged),
    ("parse_untagged", 60, measured_parse_untagged),
    ("emit_untagged", 60, measured_emit_untagged),
    ("parse_read_request", 135, measured_parse_read_request),
    ("emit_read_request", 80, measured_emit_read_request),
    ("write_whole", 135, measured_write_whole),
    ("read_whole", 80, measured_read_whole),
    ("write_pieces", 180, measured_write_pieces),
    ("read_pieces", 530, measured_read_pieces),
];

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == "--list" {
        return CASES.iter().for_each(|(name, ceiling, _)| println!("{name} {ceiling}"));
    }
    // `cargo bench` passes options of its own, which select no case.
    if let Some((_, _, run)) = CASES.iter().find(|(name, ..)| *name == argument) {
        run();
    }
}

const WRITE: Header = Header::Write(Tagged {
    last: true,
    addr: RemoteAddr { tag: Tag(0x1234_5600), offset: 0x7fff_1234_5678 },
});
const SEND: Header =
    Header::Send(Send { msn: 7, last: true, offset: 0, solicited: true, word: SendWord::NONE });
const READ: Header = Header::ReadRequest(ReadRequest {
    msn: 7,
    sink: RemoteAddr { tag: Tag(0x1234_5600), offset: 0x7fff_1234_5678 },
    len: 4096,
    source: RemoteAddr { tag: Tag(0x6543_2100), offset: 0x7fff_8765_4321 },
});

fn parse(header: &Header) {
    let mut bytes = [0; MAX_HEADER];
    let n = header.emit(0, &mut bytes).unwrap();
    for _ in 0..REPEATS {
        black_box(&Fpdu::parse(black_box(&bytes[..n]), Dialect::Standard));
    }
}

fn emit(header: &Header) {
    let mut bytes = [0; MAX_HEADER];
    for _ in 0..REPEATS {
        black_box(&black_box(header).emit(black_box(0), &mut bytes));
        black_box(&bytes);
    }
}

/// The loop overhead of all cases, which is subtracted from their counts.
#[inline(never)]
fn measured_loop() {
    let bytes = [0; MAX_HEADER];
    for _ in 0..REPEATS {
        black_box(&black_box(&bytes[..]));
    }
}

#[inline(never)]
fn measured_parse_tagged() {
    parse(&WRITE);
}

#[inline(never)]
fn measured_emit_tagged() {
    emit(&WRITE);
}

#[inline(never)]
fn measured_parse_untagged() {
    parse(&SEND);
}

#[inline(never)]
fn measured_emit_untagged() {
    emit(&SEND);
}

#[inline(never)]
fn measured_parse_read_request() {
    parse(&READ);
}

#[inline(never)]
fn measured_emit_read_request() {
    emit(&READ);
}

const FRAMING: Framing = Framing { crc: false, markers: false };
const PAYLOAD: &[u8; 8] = b"12345678";

/// A whole FPDU of an 8-byte Write, without its CRC, whose cost depends on the machine.
#[inline(never)]
fn measured_write_whole() {
    let writer = FpduWriter::new(FRAMING);
    let mut out = [0; 128];
    for _ in 0..REPEATS {
        black_box(&writer.write_whole(black_box(&WRITE), black_box(PAYLOAD), black_box(&mut out)));
    }
}

#[inline(never)]
fn measured_read_whole() {
    let mut fpdu = [0; 128];
    let n = FpduWriter::new(FRAMING).write_whole(&WRITE, PAYLOAD, &mut fpdu).unwrap();
    let mut reader = FpduReader::new(FRAMING);
    for _ in 0..REPEATS {
        let mut input = black_box(&fpdu[..n]);
        black_box(&reader.take_whole(&mut input, Dialect::Standard));
    }
}

/// An 8-byte Write in pieces, as for a payload that is not copied.
#[inline(never)]
fn measured_write_pieces() {
    let mut writer = FpduWriter::new(FRAMING);
    let (mut head, mut tail) = ([0; MAX_HEAD], [0; MAX_TAIL]);
    for _ in 0..REPEATS {
        black_box(&writer.open(black_box(&WRITE), PAYLOAD.len(), &mut head));
        writer.cover(black_box(PAYLOAD));
        black_box(&writer.close(&mut tail));
        black_box((&head, &tail));
    }
}

#[inline(never)]
fn measured_read_pieces() {
    let mut fpdu = [0; 128];
    let n = FpduWriter::new(FRAMING).write_whole(&WRITE, PAYLOAD, &mut fpdu).unwrap();
    let mut reader = FpduReader::new(FRAMING);
    for _ in 0..REPEATS {
        let mut input = black_box(&fpdu[..n]);
        while let Ok(Some(piece)) = &reader.next(&mut input, Dialect::Standard) {
            black_box(piece);
        }
    }
}
