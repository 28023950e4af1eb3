//! Writes capture files (pcap) of traffic that was never on a wire, for any packet analyser.
//!
//! ```text
//!  bytes of a connection ── writer ─▶ segments ── packet ─▶ Ethernet, IP, TCP or UDP ── writer ─▶ file
//! ```
//!
//! Internal. The engine uses it to record its own traffic inside the user's program, so it depends on nothing but the
//! standard library. `ironwarp-pcap` reads the files.
#![forbid(unsafe_code)]

mod packet;
mod writer;

pub use packet::{Flags, Segment};
pub use writer::{CaptureWriter, OpenConnection, file_header};
