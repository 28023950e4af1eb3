//! Completions: how requests end, and how programs learn of it.
//!
//! Every request ends with a [`Completion`] in a [`CompletionQueue`]. A program polls the queue, waits at it, or arms
//! it and waits for its file descriptor. A [`CompletionHandler`] reports the events of many queues.
//!
//! ```
//! # fn main() -> ironwarp::Result<()> {
//! # let (client, server) = ironwarp::example::pair().expect("two connected queue pairs");
//! # use ironwarp::prelude::*;
//! # use std::time::Duration;
//! client.qp.post_send(WorkRequest::write_inline(7, b"hello", server.region.remote_addr(0)?))?;
//! let completion = client.cq.wait(Duration::from_secs(5))?;
//! assert_eq!((completion.wr_id, completion.status), (7, Status::Success));
//! # Ok(())
//! # }
//! ```

mod builder;
mod handler;
mod queue;

pub use builder::CompletionQueueBuilder;
pub use handler::CompletionHandler;
pub use ironwarp_engine::Class;
pub use ironwarp_rnic::event::{CqEvent, EventQueueStats, HandlerId};
pub use ironwarp_rnic::queue::{Arm, Completion, Opcode, Overrun, RequestError, Sender, Status, TooSmall};
pub use queue::{CompletionQueue, Drain};
