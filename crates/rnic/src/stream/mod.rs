//! The stream of a connected queue pair: everything it has beyond its queues.
//!
//! A stream has two halves, which two threads can drive at the same time:
//!
//! | half | input | output |
//! |---|---|---|
//! | [`tx`] | work requests, and what the rx half wants sent ([`TxObligations`](crate::outbound::TxObligations)) | bytes for the link |
//! | [`rx`] | bytes from the link | memory, completions, and what the tx half is to send |
//!
//! Between two calls a half is plain data: it holds no guard and borrows no buffer, and keeps whatever is
//! unfinished in bytes it owns. At a message boundary, the whole stream can therefore be moved elsewhere.

mod atomic;
mod park;
pub(crate) mod rx;
pub(crate) mod tx;

use ironwarp_wire::Place;

pub(crate) use rx::Rx;
pub(crate) use tx::Tx;

/// The place `by` bytes after `place`.
pub(crate) fn advance(place: Place, by: u64) -> Place {
    Place { tag: place.tag, offset: place.offset.wrapping_add(by) }
}

/// Payload of at least this length is not copied through a staging buffer, neither when received nor when
/// sent, unless a CRC has to be computed. For shorter payload, a copy is cheaper than avoiding it.
pub(crate) const MIN_DIRECT: usize = 32 << 10;
