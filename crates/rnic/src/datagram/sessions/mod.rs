//! The state of acknowledged datagrams: `flows.rs` has that of the sending side, `senders.rs` that of the receiving side.
//! Neither has a link or a clock: `acknowledged.rs` passes both what arrives and the time, and sends what they return.

mod flows;
mod senders;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use flows::{Finished, Flows, Target, Transmission};
pub use senders::MAX_SENDERS;
pub(super) use senders::{Opening, Outcome, Peer, Senders, Verdict};

use super::request::DatagramRequest;
use crate::retry::Retries;
use crate::siphash::key_of;
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::Secret;

/// The retries of a queue pair that acknowledges datagrams, by default: 8 attempts within 3 seconds, and 7 attempts within
/// 1.3 seconds if the receiver has posted no receive.
pub const DEFAULT_RETRIES: Retries = Retries { rnr_retry: 6, rnr_timer: 22, retry_count: 7, timeout: 12 };

/// The sessions of a queue pair, as sender and as receiver.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) flows: Mutex<Flows>,
    pub(super) senders: Mutex<Senders>,
}

impl Sessions {
    /// Creates the state of a queue pair with these attributes. The secret must be random.
    pub(super) fn new(secret: Secret, retries: Retries, max_senders: usize) -> Self {
        let key = key_of(secret.0);
        Self {
            flows: Mutex::new(Flows::new(key, retries)),
            senders: Mutex::new(Senders::new(key, max_senders)),
        }
    }

    /// Returns whether something is to be sent.
    pub(super) fn has_work(&self) -> bool {
        lock(&self.flows).has_work()
    }

    /// Forgets all messages and sessions.
    pub(super) fn clear(&self) {
        lock(&self.flows).take_all();
        lock(&self.senders).clear();
    }

    /// Removes and returns all requests.
    pub(super) fn take_all(&self) -> Vec<DatagramRequest> {
        lock(&self.flows).take_all()
    }
}
