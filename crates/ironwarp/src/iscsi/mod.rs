//! Queue pairs in iSCSI mode (requirement M13): the initiator's end of an iSCSI connection. The tags of such a queue pair are
//! initiator task tags, and the memory of a command dies with it.
//!
//! A program logs in on a plain socket, which then becomes the queue pair
//! ([`IscsiQueuePairBuilder::create`]). It posts commands with the memory that they transfer. The adapter registers the
//! memory under the task tag of the command, places the target's data in it and answers R2Ts from it. When the target
//! completes the command, the memory is deregistered, and a receive completes with the target's PDU and the [`CommandId`].
//! A command that is [aborted](IscsiQueuePair::abort) loses its memory at once: data that the target sends late goes nowhere.
//!
//! Most programs use the crate `ironwarp-iscsi`, which does the login and has functions to read and write blocks.

mod builder;
mod queue_pair;
mod request;

pub use builder::IscsiQueuePairBuilder;
pub use ironwarp_rnic::error::IscsiFault;
pub use ironwarp_rnic::iscsi::{CommandEnded, CommandId, PduRequest, SessionParameters};
pub use ironwarp_wire::iscsi::{BadPdu, Command, Digests, HEADER_LEN};
pub use queue_pair::IscsiQueuePair;
pub use request::CommandRequest;
