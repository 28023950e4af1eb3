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

mod atomic;
mod park;
pub(crate) mod rx;
pub(crate) mod tx;

pub(crate) use rx::Rx;
pub(crate) use tx::Tx;

/// Payload of at least this length is not copied through a staging buffer, neither when received nor when
/// sent, unless a CRC has to be computed. For shorter payload, a copy is cheaper than avoiding it.
pub(crate) const MIN_DIRECT: usize = 32 << 10;
