//! Queue pairs, completion queues, control queues and shared queues, and the requests that programs post to them.

mod completion_handler;
mod completion_queue;
mod control_queue;
mod datagram;
mod defaults;
mod queue_pair;
mod shared_receive_queue;
mod shared_send_queue;
mod work_request;

pub use completion_handler::CompletionHandler;
pub use completion_queue::CompletionQueue;
pub use control_queue::{ControlQueue, Pending};
pub use datagram::{DatagramQueuePair, DatagramQueuePairBuilder, DatagramRequest};
pub use queue_pair::{QueuePair, QueuePairBuilder, QueuePairInfo};
pub use shared_receive_queue::{SharedReceiveQueue, XrcDomain};
pub use shared_send_queue::SharedSendQueue;
pub use work_request::{SendRequest, WorkRequest, WriteImmRequest};
