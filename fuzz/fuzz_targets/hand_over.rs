//! The messages by which a function is handed over to another process, those of a move to another host, and the images of
//! connections. Any bytes yield a message or an error, a message is within its limits and survives encoding and decoding
//! again, and a truncated message is rejected.
#![no_main]

use ironwarp_engine::fuzzing::host_frame;
use ironwarp_engine::hand_over::{MAX_BATCH, MAX_INLINE, MAX_NAME, MAX_REASON, Message, VERSION};
use ironwarp_engine::sys::tcp_repair::TcpImage;
use libfuzzer_sys::fuzz_target;

// The first byte selects the kind, and whether a header is prepended, so that mutations need not guess the length.
fuzz_target!(|input: &[u8]| {
    let [which, input @ ..] = input else { return };
    match which & 0x60 {
        0x20 => {
            host_frame(&[&[0, 0, 0, 0, 1], input].concat());
            return;
        }
        0x40 => return image(input),
        _ => {}
    }
    if which & 0x80 != 0 {
        return decode(input);
    }
    let len = u32::try_from(input.len() + 8).expect("the input is short").to_be_bytes();
    decode(&[&len[..], &[VERSION, which % 10, 0, 0], input].concat());
});

fn image(bytes: &[u8]) {
    if let Ok(image) = TcpImage::decode(bytes) {
        assert_eq!(TcpImage::decode(&image.encode()), Ok(image));
    }
}

fn decode(bytes: &[u8]) {
    let message = match Message::decode(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(message.descriptors() <= MAX_BATCH && !message.name().is_empty());
    match &message {
        Message::Hello(hello) => assert!(!hello.snapshots.is_empty()),
        Message::Copy(names) => assert!(names.iter().all(|name| name.len() <= MAX_NAME)),
        Message::Refused(reason) => {
            assert!(reason.len() <= MAX_REASON && !reason.contains(char::is_control));
        }
        Message::Offer(offer) => {
            let len = offer.snapshot.checked_add(offer.program).expect("the length was checked");
            let state = offer.state.as_ref();
            assert!(state.is_none_or(|state| state.len() as u64 == len && state.len() <= MAX_INLINE));
        }
        _ => {}
    }
    assert_eq!(Message::decode(&message.encode()), Ok(message));
    (0..bytes.len()).for_each(|cut| assert!(Message::decode(&bytes[..cut]).is_err(), "{cut} bytes"));
}
