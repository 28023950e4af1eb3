//! An established stream, in either role and framing, with a hostile peer: see `world`.
#![no_main]

mod world;

use ironwarp_rnic::connect::{Agreed, MpaMode, Role};
use ironwarp_wire::mpa::{Framing, RtrSet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| world::run(&mut world::peer::Script(bytes), agreed));

fn agreed(options: [u8; 2]) -> Agreed {
    let framing = Framing { crc: options[0] & 8 != 0, markers: options[0] & 16 != 0 };
    let rtr = if options[0] & 32 != 0 { RtrSet::WRITE | RtrSet::READ } else { RtrSet::empty() };
    let role = if options[0] & 64 != 0 { Role::Initiator { rtr: None } } else { Role::Responder { rtr } };
    Agreed::symmetric(role, MpaMode::PeerToPeer, framing, 2, 2)
}
