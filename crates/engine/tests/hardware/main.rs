//! Requirements that hardware has of its peers: one test for each requirement of the Linux drivers of two
//! families of cards, as initiator and as responder. These tests need no card: [`card`] behaves as the
//! drivers do.
//!
//! | module | subject |
//! |---|---|
//! | `card` | cxgb4 (Chelsio T4 to T6) and irdma (Intel X722, E810) on a plain socket: what they send, what they refuse |
//! | `session` | one of our adapters and a card, connected by either |
//! | `path` | the segment size of a connection, and the number of segments received |
//! | `calls` | we connect to a card |
//! | `called` | a card connects to us |
//! | `depths` | the number of outstanding Reads of each end |
//! | `data` | private data |
//! | `stream` | traffic over a connection, whichever end made it |
//! | `terminates` | how a connection ends |
//! | `siw` | behaviour of Linux siw that a live one does not show on demand |
//!
//! docs/interop-hardware.md lists the requirements.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod called;
mod calls;
mod card;
#[path = "../hostile/common/mod.rs"]
mod common;
mod data;
mod depths;
mod session;
mod siw;
mod stream;
mod terminates;
