//! MPA startup: from the first byte of a connection to what both ends agreed on (RFC 5044 §7.1, RFC 6581).
//!
//! ```text
//!   Initiator::new ── request() ──────────▶ Incoming::parse       shown to the program, which decides
//!   Initiator::parse_reply ◀─────────────── accept() or reject()
//!        │ Agreed                                │ Agreed
//!        ▼                                       ▼
//!   sends the RTR, then may send            may send once a valid FPDU has arrived
//! ```
//!
//! Startup begins on an established TCP connection. It ends with [`Agreed`], which is all that a stream
//! needs. This module turns bytes into bytes and decisions: reading, writing, waiting and timeouts are up to
//! the driver. So is trying again with [`MpaMode::Unenhanced`] when a peer closes the connection on a Request
//! of revision 2 (RFC 6581 §10).
//!
//! How a connection manager reports the depths in its events, seen from the end that gets the event:
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
