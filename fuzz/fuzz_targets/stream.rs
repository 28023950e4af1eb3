//! A stream of FPDUs with arbitrary bytes and framing, split anywhere. The result does not depend on the split, and delivered segments
//! survive emitting and parsing again.
#![no_main]

use ironwarp_wire::mpa::{FpduReader, FpduWriter, Framing, Piece};
use ironwarp_wire::{Dialect, Fpdu, Header, MAX_ULPDU, Violation};
use libfuzzer_sys::fuzz_target;

/// The delivered FPDUs with their payload, and the violation that ended the stream.
type Delivered = (Vec<(Fpdu, Vec<u8>)>, Option<Violation>);

fuzz_target!(|bytes: &[u8]| {
    let [options, cut, stream @ ..] = bytes else { return };
    let framing = Framing { crc: options & 1 != 0, markers: options & 2 != 0 };
    let dialect = if options & 4 != 0 { Dialect::Ironwarp } else { Dialect::Standard };

    let (front, back) = stream.split_at(usize::from(*cut).min(stream.len()));
    let whole = read(framing, dialect, [stream, &[]]);
    assert_eq!(read(framing, dialect, [front, back]), whole);

    for (fpdu, payload) in &whole.0 {
        let _ = fpdu.to_string();
        if fpdu.ulpdu_len() <= MAX_ULPDU {
            again(framing, dialect, &fpdu.header, payload);
        }
    }
});

fn read(framing: Framing, dialect: Dialect, chunks: [&[u8]; 2]) -> Delivered {
    let mut reader = FpduReader::new(framing);
    let (mut delivered, mut open) = (Vec::new(), None);
    for mut input in chunks {
        loop {
            // Like an adapter: complete FPDUs at once, and payload directly where possible.
            match reader.take_whole(&mut input, dialect) {
                Ok(Some((fpdu, payload))) => {
                    delivered.push((fpdu, payload.to_vec()));
                    continue;
                }
                Ok(None) => {}
                Err(violation) => return (delivered, Some(violation)),
            }
            match reader.next(&mut input, dialect) {
                Ok(None) => break assert!(input.is_empty()),
                Ok(Some(Piece::Header(fpdu))) => open = Some((fpdu, Vec::new())),
                Ok(Some(Piece::Payload(payload))) => {
                    open.as_mut().expect("a header").1.extend(payload);
                }
                Ok(Some(Piece::End)) => {
                    let (fpdu, payload) = open.take().expect("a header");
                    assert_eq!(payload.len(), usize::from(fpdu.payload_len));
                    delivered.push((fpdu, payload));
                }
                Err(violation) => return (delivered, Some(violation)),
            }
        }
    }
    (delivered, None)
}

/// Emits a segment and parses it again.
fn again(framing: Framing, dialect: Dialect, header: &Header, payload: &[u8]) {
    let mut stream = Vec::new();
    let sent = FpduWriter::new(framing).write(header, payload, |bytes| stream.extend(bytes));
    assert_eq!(sent, Ok(()), "a received segment cannot be emitted");
    let (delivered, violation) = read(framing, dialect, [&stream, &[]]);
    assert_eq!(violation, None);
    let [(fpdu, received)] = &delivered[..] else { panic!("not exactly one FPDU") };
    assert_eq!(received, payload);
    // A Terminate without a segment may be parsed in siw's form; see the target `terminate`.
    if !matches!(header, Header::Terminate(_)) {
        assert_eq!(&fpdu.header, header);
    }
}
