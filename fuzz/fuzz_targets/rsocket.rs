//! An rsocket whose peer writes hello, messages and data in any order, while the program reads, writes and closes. The input is a
//! script. There must be no panic, no read of data that did not arrive, and no write outside the peer's ring.
#![no_main]

use ironwarp_ibverbs::fuzzing::Rsocket;
use libfuzzer_sys::fuzz_target;

/// Lengths of a hello and of a message.
const HELLO: usize = 24;
const MESSAGE: usize = 32;

fuzz_target!(|script: &[u8]| {
    let Some((hello, mut script)) = script.split_at_checked(HELLO) else { return };
    let Some(mut socket) = Rsocket::new(hello) else { return };
    let (mut arrived, mut read) = (0, 0);
    while let [what, a, b, rest @ ..] = script {
        script = rest;
        let number = u16::from_be_bytes([*a, *b]);
        let broken = match what % 8 {
            0 => !socket.receive_send(message(&mut script)),
            1 => !socket.receive_send(short_message(*a, *b, &mut script)),
            2 => {
                let possible = socket.receive_write(number.into());
                arrived += if possible { usize::from(number) } else { 0 };
                !possible
            }
            3 => {
                let peek = what & 8 != 0;
                let taken = socket.read(number.into(), peek);
                read += if peek { 0 } else { taken };
                false
            }
            4 => socket.write(number.into()) > usize::from(number),
            5 => {
                socket.complete_oldest();
                false
            }
            6 => socket.mapped_len(u64::from(number)) == Some(0),
            _ => {
                socket.close();
                read = arrived; // dropped
                false
            }
        };
        assert!(read <= arrived, "read {read} bytes, but only {arrived} arrived");
        if broken {
            return; // the connection was aborted
        }
    }
});

/// Returns 32 arbitrary bytes.
fn message(script: &mut &[u8]) -> [u8; MESSAGE] {
    std::array::from_fn(|_| byte(script))
}

/// Returns a message with a known code and small numbers, which is likely to be accepted.
fn short_message(code: u8, flags: u8, script: &mut &[u8]) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[7] = code % 5;
    for number in message[8..].chunks_exact_mut(8) {
        number[6..].copy_from_slice(&[byte(script), byte(script)]);
        // Close to the maximum.
        number[..6].fill(if flags & 1 != 0 { 0xff } else { 0 });
    }
    if flags & 2 != 0 {
        message[24..28].fill(0); // tags are 32 bits wide
    }
    message
}

fn byte(script: &mut &[u8]) -> u8 {
    let Some((first, rest)) = script.split_first() else { return 0 };
    *script = rest;
    *first
}
