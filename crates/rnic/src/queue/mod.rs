//! The queues a consumer sees: work requests go in, completions come out.
//!
//! `request.rs` has the work requests; `send.rs`, `receive.rs`, `shared.rs` and `shared_send.rs` hold those that are posted; what is
//! done leaves as a [`Completion`] through a [`Cq`]. The stream takes from these queues in order and returns to them in order.

mod completion;
mod cq;
mod moderation;
mod push;
mod receive;
mod request;
mod send;
mod shared;
mod shared_send;

pub use completion::{Completion, Opcode, RequestError, Sender, Status, WrId};
pub use cq::{Arm, Cq, Overrun, TooSmall};
pub use moderation::Moderation;
pub use push::Pushed;
pub(crate) use receive::{Receive, ReceiveQueue, flushed};
pub use request::{Data, Operation, ReceiveRequest, Sge, Sges, WorkRequest};
pub(crate) use send::{Asked, MAX_MESSAGE, OutstandingRead, SendQueue};
pub use shared::{SharedReceiveQueue, SrqStatus, XrcDomain};
pub use shared_send::SharedSendQueue;
