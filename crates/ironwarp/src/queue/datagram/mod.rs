//! Datagram queue pairs (requirement P2): they have no connection. Each request names its destination, and each message
//! is one datagram.

mod builder;
mod queue_pair;
mod request;

pub use builder::DatagramQueuePairBuilder;
pub use queue_pair::DatagramQueuePair;
pub use request::DatagramRequest;
