//! Datagram queue pairs (requirement P2): they have no connection. Each request names its destination, and each message
//! is one datagram of up to 4096 bytes, which may be lost. With
//! [`Completes::WhenAcknowledged`](crate::queue::Completes::WhenAcknowledged), a message is sent again until the receiver
//! has it ([`DatagramQueuePairBuilder::completes`]).
//!
//! [`ProtectionDomain::datagram_queue_pair`](crate::ProtectionDomain::datagram_queue_pair) creates a
//! [`DatagramQueuePair`], and has an example.

mod builder;
mod info;
mod queue_pair;
mod request;

pub use builder::DatagramQueuePairBuilder;
pub use info::DatagramQueuePairInfo;
pub use ironwarp_rnic::datagram::{AddressHandle, DEFAULT_RETRIES, Destination, DropCounts, Grh};
pub use queue_pair::DatagramQueuePair;
pub use request::DatagramRequest;
