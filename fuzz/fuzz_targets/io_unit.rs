//! The messages between hosts and I/O units (docs/io-unit.md). Any bytes yield a message or an error, and a message survives
//! encoding and decoding again.
#![no_main]

use ironwarp_io_unit::message::Message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    match Message::decode(input) {
        Ok((context, message)) => {
            assert_eq!(Message::decode(&message.encode(context)), Ok((context, message)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
