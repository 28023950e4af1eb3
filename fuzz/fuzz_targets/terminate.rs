//! Terminate messages with arbitrary bytes after the DDP header, in the RFC's form or siw's. They always have a cause, and normalising
//! is idempotent. The Terminate that answers any segment can be emitted.
#![no_main]

use ironwarp_wire::{Cause, Dialect, Fpdu, Header, MAX_HEADER, Offender, Parse, Terminate};
use libfuzzer_sys::fuzz_target;

const DDP: [u8; 18] = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];

fuzz_target!(|words: &[u8]| {
    let len = u16::try_from(DDP.len() + words.len()).unwrap_or(u16::MAX);
    let fpdu = [&len.to_be_bytes()[..], &DDP, words].concat();
    if let Some(terminate) = parse(&fpdu) {
        let _ = terminate.to_string();
        let known = !matches!(terminate.cause, Cause::Other { .. });
        if known || terminate.offender != Offender::default() {
            assert_eq!(parse(&emit(terminate)), Some(terminate));
        }
    } else {
        assert!(!(4..=52).contains(&words.len()), "a Terminate of a legal length was rejected");
    }
    // The same bytes as a segment to be answered.
    for (layer, kind, code) in [(0, 1, 0), (0, 2, 6), (1, 1, 0), (1, 2, 1), (2, 0, 2)] {
        let answer = Terminate::for_segment(Cause::from_wire(layer, kind, code), words);
        assert_eq!(parse(&emit(answer)), Some(answer));
    }
});

fn parse(fpdu: &[u8]) -> Option<Terminate> {
    match Fpdu::parse(fpdu, Dialect::Standard) {
        Ok(Parse::Done(Fpdu { header: Header::Terminate(terminate), .. })) => Some(terminate),
        _ => None,
    }
}

fn emit(terminate: Terminate) -> Vec<u8> {
    let mut out = [0; MAX_HEADER];
    let n = Header::Terminate(terminate).emit(0, &mut out).expect("a Terminate that fits");
    out[..n].to_vec()
}
