//! An initiator whose responder is hostile from the first byte of the MPA Reply. See `world` for what follows.
#![no_main]

mod world;

use ironwarp_rnic::connect::{Agreed, Initiator, MpaMode, Reply, Role, Rtr, Terms};
use ironwarp_wire::Parse;
use libfuzzer_sys::fuzz_target;
use world::peer::Script;

// The input: options of the initiator, length of the Reply, the Reply, then the script of what follows.
fuzz_target!(|bytes: &[u8]| {
    let [setup, flags, len, rest @ ..] = bytes else { return };
    let setup = [MpaMode::PeerToPeer, MpaMode::ClientServer, MpaMode::Unenhanced][usize::from(*setup) % 3];
    let terms = Terms { ird: 2, max_ird: 4, ord: 2, crc: flags & 1 != 0, markers: flags & 2 != 0 };
    let (reply, script) = rest.split_at(usize::from(*len).min(rest.len()));
    // As is, or after the key that every Reply begins with.
    let reply = if flags & 4 != 0 { reply.to_vec() } else { [b"MPA ID Rep Frame", reply].concat() };
    let Ok(initiator) = Initiator::new(setup, terms, b"") else { return };
    if let Some(agreed) = accepted(&initiator, terms, &reply) {
        world::run(&mut Script(script), move |_| agreed);
    }
});

/// Passes the Reply byte by byte. The result is the same as for the complete Reply, and within the terms.
fn accepted(initiator: &Initiator, terms: Terms, reply: &[u8]) -> Option<Agreed> {
    let whole = initiator.parse_reply(reply);
    for cut in 0..reply.len() {
        match initiator.parse_reply(&reply[..cut]) {
            Ok(Parse::Need(need)) => assert!(need > cut),
            decided => {
                assert_eq!(decided, whole);
                break;
            }
        }
    }
    match whole {
        Ok(Parse::Done(Reply::Accepted { agreed, consumed, .. })) => {
            assert!(consumed <= reply.len());
            let reads = u16::from(agreed.role == Role::Initiator { rtr: Some(Rtr::Read) });
            assert!(agreed.ird <= terms.max_ird && agreed.ord <= terms.ord.max(reads), "{agreed:?}");
            Some(agreed)
        }
        Ok(_) => None,
        Err(error) => {
            let _ = (error.to_string(), error.terminate());
            None
        }
    }
}
