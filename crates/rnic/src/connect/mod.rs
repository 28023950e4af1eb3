//! MPA startup: the exchange of Request and Reply by which the two ends of a connection agree on its terms (RFC 5044
//! §7.1, RFC 6581).
//!
//! ```text
//!   Initiator::new ── request() ──────────▶ Incoming::parse       the program decides
//!   Initiator::parse_reply ◀─────────────── accept() or reject()
//!        │ Agreed                                │ Agreed
//!        ▼                                       ▼
//!   sends the RTR, then may send            may send once a valid FPDU has arrived
//! ```
//!
//! Startup begins on an established TCP connection and ends with [`Agreed`], the terms with which a stream is
//! created. This module only parses and builds frames and decides. The driver reads and writes bytes and handles
//! timeouts. The driver also tries again with [`MpaMode::Unenhanced`] when a peer closes the connection after a
//! Request of revision 2 (RFC 6581 §10).
//!
//! A connection manager reports the depths in its events as follows, from the view of the end that gets the event:
//!
//! | event | `initiator_depth` | `responder_resources` |
//! |---|---|---|
//! | CONNECT_REQUEST | [`Incoming::peer`]`.ird` | [`Incoming::peer`]`.ord` |
//! | ESTABLISHED, both ends | [`Agreed::ird`] | [`Agreed::ord`] |
//!
//! A depth that the peer did not state is reported as the device's maximum, so that a program that accepts
//! with the values of the event can use Reads. (Linux siw reports 0, and such programs fail.)

mod agreement;
mod initiator;
mod responder;
#[cfg(test)]
mod tests;

pub use agreement::{Agreed, Depths, InvalidArgument, MAX_DEPTH, MpaMode, Role, Rtr, StartupError, Terms};
pub use initiator::{Initiator, Reply};
pub use responder::Incoming;
