//! Datagram queue pairs: each request names its destination, and each message is one datagram (requirement P2).

mod builder;
mod queue_pair;
mod request;

pub use builder::DatagramQueuePairBuilder;
pub use queue_pair::DatagramQueuePair;
pub use request::DatagramRequest;
