//! What hardware demands of a peer: one test for each demand that the Linux drivers of two families of cards make of
//! whoever connects to them, or is connected to by them. No card is at hand; [`card`] behaves as the drivers do.
//!
//! | | |
//! |---|---|
//! | `card` | cxgb4 (Chelsio T4 to T6) and irdma (Intel X722, E810) on a plain socket: what they send, what they refuse |
//! | `session` | an adapter of ours and a card, connected by the one or by the other |
//! | `path` | the segment size of a connection, and in how many segments something came |
//! | `calls` | we connect to a card |
//! | `called` | a card connects to us |
//! | `depths` | how many Reads each end may have outstanding |
//! | `data` | private data |
//! | `stream` | what goes over a connection, whoever made it |
//! | `terminates` | how a connection ends |
//! | `siw` | what Linux siw does as particularly, and a live one does not do at will |
//!
//! docs/interop-hardware.md lists the demands.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod called;
mod calls;
mod card;
#[path = "../hostile/common/mod.rs"]
mod common;
mod data;
mod depths;
mod path;
mod session;
mod siw;
mod stream;
mod terminates;
