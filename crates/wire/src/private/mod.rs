//! What only two Ironwarp ends say to each other. `docs/wire.md` describes all of it, so that another implementation
//! could follow.
//!
//! Nothing here is sent to a peer that would mind: the [`Signal`] is a message that every peer must ignore, a [`Hello`], an
//! [`Aside`] and a [`Datagram`] go to addresses that an Ironwarp end gave out, and the private messages
//! ([`SendImmediate`], [`ReadV2Request`], [`ReadV2Response`]) leave only after the peer's signal was seen.
//!
//! `extension.rs` has the rule by which all of it can grow.

mod aside;
mod datagram;
mod extension;
mod hello;
mod port;
mod signal;

pub use crate::rdmap::{ReadV2Request, ReadV2Response, SendImmediate};
pub use aside::{Aside, AsideKind, MAX_ASIDE, Secret};
pub use datagram::{DATAGRAM_LEN, Datagram, MAX_DATAGRAM_HEADER};
pub use extension::{Emitted, Unreadable, VERSION};
pub use hello::{Hello, HelloKind, MAX_HELLO, Reason, Token};
pub use port::{PortSpace, RdmaPort};
pub use signal::{Capabilities, MAX_ACKNOWLEDGED, SIGNAL_TAG, Signal};

use crate::Misuse;

/// Queue pair numbers have 24 bits, in the verbs and here.
fn check_qpn(qpn: u32) -> Result<u32, Misuse> {
    if qpn >> 24 == 0 { Ok(qpn) } else { Err(Misuse::QueuePairNumber(qpn)) }
}
