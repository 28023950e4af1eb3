//! The data of the sending half of a stream: its position, what the receiving half asks it to send, and the batch of
//! FPDUs for one call to the link. The code that uses these types is in `stream`.

mod batch;
mod cursor;
mod obligations;
mod short;
mod unused_addr;

pub(crate) use batch::{Frame, ReadResponses, TxBatch};
pub(crate) use cursor::{Cursor, FrameKind, InProgress};
pub(crate) use obligations::{
    Leaving, MAX_OFFERS, Opening, RemoteRequest, Response, RouteSignals, SharedObligations, Snapshot,
    TxObligations,
};
pub(crate) use short::{Payload, ShortRequest};
pub(crate) use unused_addr::UNUSED_ADDR;
