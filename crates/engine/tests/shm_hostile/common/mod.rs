//! Helpers for tests with a hostile process on the same host: its end of the shared memory, its victim, and honest
//! connections of the victim that must not be affected.
#![allow(dead_code, reason = "not every test uses all helpers")]

pub(crate) mod attack;
pub(crate) mod doorway;
pub(crate) mod honest;
#[path = "../../hostile/common/peer.rs"]
pub(crate) mod peer;
pub(crate) mod resources;
pub(crate) mod ring;
pub(crate) mod victim;

use ironwarp_wire::{Header, Send, SendWord};
use std::time::{Duration, Instant};

/// Longer than any operation here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `find` returns a value.
pub(crate) fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// The n-th Send of the stream, of one segment.
pub(crate) fn send(msn: u32) -> Header {
    Header::Send(Send { msn, last: true, offset: 0, solicited: false, word: SendWord::NONE })
}
