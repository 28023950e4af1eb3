//! The private protocol between two Ironwarp ends. `docs/wire.md` specifies it for other implementations.
//!
//! The private protocol does not disturb other peers: every peer must ignore a [`Signal`]; a [`Hello`], a [`CmHeader`]
//! or a [`Datagram`] is sent only to addresses of Ironwarp ends; and the private messages ([`SendImmediate`],
//! [`ReadV2Request`], [`ReadV2Response`]) are sent only after the peer's signal has arrived.
//!
//! `extension.rs` has the rules for extending the private protocol.

mod cm;
mod datagram;
mod extension;
mod hello;
mod port;
mod signal;

pub use crate::rdmap::{ReadV2Request, ReadV2Response, SendImmediate};
pub use cm::{CmHeader, CmKind, MAX_CM_HEADER, Secret};
pub use datagram::{DATAGRAM_LEN, Datagram, DatagramAnswer, DatagramKind, MAX_DATAGRAM_HEADER};
pub use extension::{Emitted, Unreadable, VERSION};
pub use hello::{Hello, HelloKind, MAX_HELLO, Reason, Token};
pub use port::{PortSpace, RdmaPort};
pub use signal::{Capabilities, MAX_ACKNOWLEDGED, OFFER_LEN, OFFER_PARTS, Route, SIGNAL_TAG, Signal};

use crate::Misuse;

/// Checks that a queue pair number fits 24 bits, and returns it.
fn check_qpn(qpn: u32) -> Result<u32, Misuse> {
    if qpn >> 24 == 0 { Ok(qpn) } else { Err(Misuse::QueuePairNumber(qpn)) }
}
