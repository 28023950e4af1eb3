//! Queue pairs, shared queues, and the requests that programs post to them.
//!
//! [`ProtectionDomain::queue_pair`](crate::ProtectionDomain::queue_pair) creates a [`QueuePair`]. A [`WorkRequest`]
//! describes a Send, Write, Read or another operation. Its completion appears in the
//! [completion queue](crate::completion) of the queue pair.
//!
//! ```
//! # fn main() -> ironwarp::Result<()> {
//! # let (client, server) = ironwarp::example::pair().expect("two connected queue pairs");
//! # use ironwarp::prelude::*;
//! # use std::time::Duration;
//! server.qp.post_receive(1, &[server.region.slice(..64)?])?;
//! client.qp.post_send(WorkRequest::send_inline(2, b"hello"))?;
//! let received = server.cq.wait(Duration::from_secs(5))?.success()?;
//! assert_eq!((received.wr_id, received.byte_len), (1, 5));
//! # Ok(())
//! # }
//! ```

mod defaults;
mod error;
mod queue_pair;
mod shared_receive_queue;
mod shared_send_queue;
mod work_request;

pub(crate) use defaults::{DEFAULT_DEPTH, DEFAULT_MAX_SGES};
pub use error::CreateError;
pub use ironwarp_rnic::bug::Bug;
pub use ironwarp_rnic::error::{ErrorOrigin, PostError, QpError};
pub use ironwarp_rnic::qp::{Completes, IllegalTransition, RegistrationFailure, Retries, State};
pub use ironwarp_rnic::queue::SrqStatus;
pub use ironwarp_wire::AtomicOp;
pub use queue_pair::{QueuePair, QueuePairBuilder, QueuePairInfo};
pub use shared_receive_queue::{SharedReceiveQueue, XrcDomain};
pub use shared_send_queue::SharedSendQueue;
pub use work_request::{SendRequest, WorkRequest, WriteImmRequest};
