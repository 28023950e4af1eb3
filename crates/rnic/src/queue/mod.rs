//! The queues of the verbs: send and receive queues, shared ones, and completion queues.
//!
//! `request.rs` defines work requests. `send.rs`, `receive.rs`, `shared.rs` and `shared_send.rs` hold those that are
//! posted. A request that is done becomes a [`Completion`] in a [`Cq`]. The stream takes requests in order and
//! completes them in order.

mod completion;
mod cq;
mod entry;
mod feed;
mod inline;
mod moderation;
mod owner;
mod receive;
mod request;
mod send;
mod shared;
mod shared_send;

pub use crate::status::Status;
pub use completion::{Completes, Completion, Opcode, RequestError, Sender, WrId};
pub use cq::{Arm, Cq, CqTooLarge, FrozenCq, HeldTimer, Overrun, TooSmall};
pub(crate) use entry::{MAX_MESSAGE, OutstandingRead, ReadKind, check_request};
pub use inline::InlineData;
pub use moderation::Moderation;
pub(crate) use owner::QueueOwner;
pub(crate) use receive::{Receive, ReceiveQueue, flushed_completion};
pub use request::{Data, Operation, ReceiveRequest, Sge, Sges, WorkRequest};
pub(crate) use send::{Begun, BlamedRequest, SendQueue};
pub use shared::{FrozenSrq, SharedReceiveQueue, SrqSize, SrqStatus, XrcDomain};
pub use shared_send::SharedSendQueue;

/// Maximum number of requests or messages of a stream in a snapshot (requirement X2), so that counting on cannot overflow.
pub(crate) const MAX_COUNT: u64 = 1 << 62;
