//! The stream of a connected queue pair: sends and receives its messages over the link.
//!
//! A stream has two halves, which two threads can drive at the same time:
//!
//! | half | input | output |
//! |---|---|---|
//! | [`tx`] | work requests, and the obligations below | bytes for the link |
//! | [`rx`] | bytes from the link | memory, completions, and [obligations](crate::outbound::TxObligations) of `tx` |
//!
//! Between two calls, a half holds no guard and borrows no buffer, and stores unfinished segments itself. Any thread
//! can therefore drive it next.

mod adversary;
mod atomic;
mod park;
pub(crate) mod rx;
pub(crate) mod tx;

pub(crate) use adversary::{AdverseLink, HasContext};
pub(crate) use rx::Rx;
pub(crate) use tx::Tx;

use crate::link::Route;
use ironwarp_wire::mpa::Framing;

/// Payload of at least this length is not copied through a staging buffer, neither when received nor when
/// sent, unless a CRC has to be computed. For shorter payload, a copy is cheaper than avoiding it.
pub(crate) const MIN_DIRECT: usize = 32 << 10;

/// A call that receives fewer bytes than this needs no staging buffer: a buffer on the stack has this size.
const SMALL_RECV: usize = 256;

/// Returns the framing of a direction after a switch to a route. `crc` tells whether CRCs were agreed for TCP; in shared
/// memory, bytes are not damaged on their way, and need none. There are no markers, because a stream with markers has no
/// other route than TCP.
fn framing_on(route: Route, crc: bool) -> Framing {
    Framing { crc: crc && route == Route::Tcp, markers: false }
}
