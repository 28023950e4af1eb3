//! The headers of the private protocol: hello, CM header, datagram and signal. Any bytes yield a value or an error, a value survives
//! emitting and parsing again, and a truncated header is rejected.
#![no_main]

use ironwarp_wire::mpa::Crc;
use ironwarp_wire::private::{
    CmHeader, CmKind, DATAGRAM_LEN, Datagram, DatagramKind, Emitted, Hello, HelloKind, MAX_DATAGRAM_HEADER,
    SIGNAL_TAG, Signal, Unreadable,
};
use ironwarp_wire::{Header, RemoteAddr};
use libfuzzer_sys::fuzz_target;

/// Length of the magic number and the version, with which every header begins.
const OPENING: usize = 5;

// The first byte selects the header, and whether its opening is prepended, so that mutations need not guess it.
fuzz_target!(|input: &[u8]| {
    let [which, input @ ..] = input else { return };
    let whole = |opening: &[u8]| match which & 0x80 {
        0 => [&opening[..OPENING], input].concat(),
        _ => input.to_vec(),
    };
    match which % 4 {
        0 => hello(&whole(&Hello::new(HelloKind::Dial, 1, 2).emit().expect("24 bits"))),
        1 => cm(&whole(&CmHeader::new(CmKind::Pair, 1).emit())),
        2 => datagram(&reseal(whole(&empty_datagram()), which & 0x40 == 0)),
        _ => signal(input),
    }
});

fn hello(bytes: &[u8]) {
    let Ok(hello) = show(Hello::parse(bytes)) else { return };
    let _ = hello.to_string();
    assert_eq!(Hello::parse(&hello.emit().expect("24 bits")), Ok(hello));
    // A hello fills the private data, so no prefix of it is one.
    (0..bytes.len()).for_each(|cut| assert!(Hello::parse(&bytes[..cut]).is_err(), "{cut} bytes"));
}

fn cm(bytes: &[u8]) {
    let Ok((header, data)) = show(CmHeader::parse(bytes)) else { return };
    let _ = header.to_string();
    assert_eq!(CmHeader::parse(&[&header.emit()[..], data].concat()), Ok((header, data)));
    let header = bytes.len() - data.len();
    (0..header).for_each(|cut| assert!(CmHeader::parse(&bytes[..cut]).is_err(), "{cut} bytes"));
}

fn datagram(bytes: &[u8]) {
    let Ok((datagram, payload)) = show(Datagram::parse(bytes)) else { return };
    let _ = datagram.to_string();
    let again = datagram.emit(payload).expect("24 bits");
    assert_eq!(Datagram::parse(&[&again[..], payload].concat()), Ok((datagram, payload)));
    (0..bytes.len()).for_each(|cut| assert!(Datagram::parse(&bytes[..cut]).is_err(), "{cut} bytes"));
}

/// Corrects the CRC of a datagram whose first extension is the cell, so that mutations need not guess it.
fn reseal(mut bytes: Vec<u8>, correct: bool) -> Vec<u8> {
    if correct && bytes.len() >= DATAGRAM_LEN {
        let mut crc = Crc::of(&bytes[..DATAGRAM_LEN - 4]);
        crc.update(&bytes[DATAGRAM_LEN..]);
        bytes[DATAGRAM_LEN - 4..DATAGRAM_LEN].copy_from_slice(&crc.to_bytes());
    }
    bytes
}

fn empty_datagram() -> Emitted<MAX_DATAGRAM_HEADER> {
    let header = Datagram {
        kind: DatagramKind::Message,
        destination: 1,
        source: 2,
        qkey: 3,
        sequence: 4,
        solicited: false,
        immediate: None,
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
        service_level: 0,
    };
    header.emit(b"").expect("24 bits")
}

fn signal(bytes: &[u8]) {
    let Some(word) = bytes.first_chunk() else { return };
    let addr = RemoteAddr { tag: SIGNAL_TAG, offset: u64::from_be_bytes(*word) };
    let Some(parsed) = Signal::parse(addr) else { return };
    let Ok(signal) = show(parsed) else { return };
    let _ = signal.to_string();
    let Header::Write(write) = signal.to_header() else { panic!("not an empty Write") };
    // The word of an unknown kind is ignored.
    if !matches!(signal, Signal::Unknown(_)) {
        assert_eq!(Signal::parse(write.addr), Some(Ok(signal)));
    }
}

/// Prints every error.
fn show<T>(parsed: Result<T, Unreadable>) -> Result<T, Unreadable> {
    parsed.inspect_err(|error| assert!(!error.to_string().is_empty()))
}
