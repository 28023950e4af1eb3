//! RDMAP headers (RFC 5040, RFC 7306): the part of a segment's header that determines the operation.
//!
//! [`Header`] has one variant for each kind of message. `parse.rs` decodes headers and `emit.rs` encodes them, case by
//! case in the same order; `display.rs` prints them. Messages with further fields after the DDP header are in
//! `read.rs`, `atomic.rs` and `terminate.rs`.

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
