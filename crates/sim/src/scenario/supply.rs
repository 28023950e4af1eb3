//! Where the receives of a program come from: a queue of one queue pair's, or one that is shared. And what became of each.

use super::request::{Slot, Verb};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{ReceiveRequest, SharedReceiveQueue};
use std::sync::Arc;

/// Which queues the queue pairs of a run receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Each from its own.
    Own,
    /// All from one.
    Shared,
    /// Each message from the one that it names (XRC).
    Named,
}

impl Receiving {
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::Shared, Self::Named];

    pub(super) const fn verb(self) -> Verb {
        match self {
            Self::Own => Verb::Receive,
            Self::Shared => Verb::ReceiveShared,
            Self::Named => Verb::ReceiveNamed,
        }
    }
}

/// A queue of receives, and the model of it.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) number: usize,
    /// The queue, unless it is a queue pair's own.
    pub(super) shared: Option<Arc<SharedReceiveQueue>>,
    pub(super) domain: Domain,
    posted: Vec<(Slot, Fate)>,
    /// The event of the limit was asked for, and has not come.
    pub(super) limited: bool,
}

/// What became of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Posted,
    Done,
    /// Its queue pair was reset: it must never be heard of again.
    Gone,
}

impl Supply {
    pub(super) fn new(number: usize, shared: Option<Arc<SharedReceiveQueue>>, domain: Domain) -> Self {
        Self { number, shared, domain, posted: Vec::new(), limited: false }
    }

    /// How many receives did not come back.
    pub(super) fn outstanding(&self) -> usize {
        self.posted.iter().filter(|(_, fate)| *fate == Fate::Posted).count()
    }

    /// How many messages to come have a receive.
    pub(super) fn ready(&self) -> usize {
        self.shared.as_ref().map_or_else(|| self.outstanding(), |queue| queue.query().posted)
    }

    /// Posts a receive for this memory, to the queue or to the queue pair that it is of.
    pub(super) fn post(&mut self, slot: Slot, qp: &Qp) -> Result<(), PostError> {
        let id = (self.number as u64) << 32 | self.posted.len() as u64;
        let request = ReceiveRequest { id, buffers: slot.sges(&mut Rng::new(slot.span.addr)) };
        // A message that waits for it may be here, and complete, before the call returns.
        self.posted.push((slot, Fate::Posted));
        let posted = match &self.shared {
            Some(queue) => queue.post(request),
            None => qp.post_receive(request),
        };
        if posted.is_err() {
            self.posted.pop();
        }
        posted
    }

    /// A receive came back. Returns its memory.
    pub(super) fn take(&mut self, id: u64, in_order: bool) -> Slot {
        let index = usize::try_from(id & 0xffff_ffff).expect("an index");
        let (_, fate) = self.posted[index];
        assert_eq!(fate, Fate::Posted, "receive {index} of {}: once", self.number);
        if in_order {
            let first = self.posted.iter().position(|(_, fate)| *fate == Fate::Posted);
            assert_eq!(first, Some(index), "receives are used in the order they were posted");
        }
        self.posted[index].1 = Fate::Done;
        self.posted[index].0
    }

    /// The queue pair was reset, and its own queue with it.
    pub(super) fn forget(&mut self) {
        for (_, fate) in &mut self.posted {
            if *fate == Fate::Posted {
                *fate = Fate::Gone;
            }
        }
    }
}
