//! Startup frames with arbitrary bytes, roles and lengths. An accepted frame survives emitting and parsing again.
#![no_main]

use ironwarp_wire::mpa::{MAX_STARTUP, Role, Startup};
use ironwarp_wire::{Parse, Violation};
use libfuzzer_sys::fuzz_target;

type Parsed<'a> = Result<Parse<(Startup<'a>, usize)>, Violation>;

fn parse(request: bool, bytes: &[u8]) -> Parsed<'_> {
    if request { Startup::parse_request(bytes) } else { Startup::parse_reply(bytes) }
}

fuzz_target!(|bytes: &[u8]| {
    // The first byte selects where the frame is truncated, the second the role.
    let [cut, role, bytes @ ..] = bytes else { return };
    let request = role & 1 == 0;
    let cut = usize::from(*cut).min(bytes.len());
    let whole = parse(request, bytes);
    match parse(request, &bytes[..cut]) {
        // More bytes never change an earlier result.
        Ok(Parse::Need(need)) => assert!(need > cut && need <= MAX_STARTUP),
        short => assert_eq!(short, whole),
    }
    if let Ok(Parse::Done((startup, len))) = whole {
        assert!(len <= bytes.len());
        assert_eq!(startup.role == Role::Request, request);
        let mut out = [0; MAX_STARTUP];
        let emitted = startup.emit(&mut out).expect("a frame that can be emitted");
        assert_eq!(emitted, len);
        assert_eq!(parse(request, &out[..len]), Ok(Parse::Done((startup, len))));
        let _ = startup.to_string();
    }
});
