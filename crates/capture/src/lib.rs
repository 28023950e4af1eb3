//! Capture files (pcap) of traffic that was never on a wire: packets as bytes, in a file that any analyser reads.
//!
//! ```text
//!  bytes of a connection ── writer ─▶ segments ── packet ─▶ Ethernet, IP, TCP or UDP ── writer ─▶ file
//! ```
//!
//! Internal. The engine writes its own traffic with it, inside of the user's program, so it needs nothing but the standard
//! library; `ironwarp-pcap` reads what it writes.
#![forbid(unsafe_code)]

mod packet;
mod writer;

pub use packet::{Flags, Segment};
pub use writer::{CaptureWriter, OpenConnection, file_header};
