//! RDMAP (RFC 5040, RFC 7306): what a segment means.
//!
//! [`Header`] has one variant for each message. `parse.rs` and `emit.rs` mirror each other case by case, and `display.rs`
//! prints headers. Messages with fields of their own after the DDP header have a file each: `read.rs`, `atomic.rs` and
//! `terminate.rs`.

mod atomic;
mod control;
mod display;
mod emit;
mod fpdu;
mod header;
mod parse;
mod read;
mod send;
mod terminate;

pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use fpdu::Fpdu;
pub use header::{Dialect, Header, MAX_HEADER, Tagged};
pub use read::{ReadRequest, ReadV2Request, ReadV2Response};
pub use send::{Immediate, ImmediateData, Send, SendImmediate, SendWord};
pub use terminate::{Offender, Terminate};
