//! What is on its way out of a stream, as plain data: the position of the sending half, what the receiving half
//! asks it to send, and the batch of FPDUs of one call to the link. `stream` has the code that works on it.

mod batch;
mod cursor;
mod obligations;
mod place;
mod short;

pub(crate) use batch::{Frame, TxBatch};
pub(crate) use cursor::{Cursor, FrameKind, InProgress};
pub(crate) use obligations::{Opening, RemoteRequest, Response, Snapshot, TxObligations};
pub(crate) use place::UNUSED_PLACE;
pub(crate) use short::{Message, Payload, ShortRequest};
