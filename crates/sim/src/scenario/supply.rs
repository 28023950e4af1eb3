//! A supply: a receive queue, which belongs to a queue pair or is shared, with a model of its receives.

use super::request::Slot;
use super::verb::Verb;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{ReceiveRequest, SharedReceiveQueue};
use std::sync::Arc;

/// The receive queues that the queue pairs of a run use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Each queue pair has its own receive queue.
    Own,
    /// All queue pairs use one shared receive queue.
    Shared,
    /// Each message names the shared receive queue that it uses (XRC).
    Named,
}

impl Receiving {
    /// All kinds.
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::Shared, Self::Named];

    /// Returns the verb under which receives of this kind are counted.
    pub(super) const fn verb(self) -> Verb {
        match self {
            Self::Own => Verb::Receive,
            Self::Shared => Verb::ReceiveShared,
            Self::Named => Verb::ReceiveNamed,
        }
    }
}

/// A queue of receives and its model.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) number: usize,
    /// The shared queue, unless the queue belongs to a queue pair.
    pub(super) shared: Option<Arc<SharedReceiveQueue>>,
    pub(super) domain: Domain,
    /// All receives that were posted, in order.
    posted: Vec<(Slot, Fate)>,
    /// Whether the limit event was requested and has not arrived.
    pub(super) limited: bool,
}

/// The state of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Posted,
    Done,
    /// The queue pair of the receive was reset: the receive must not complete any more.
    Gone,
}

impl Supply {
    pub(super) fn new(number: usize, shared: Option<Arc<SharedReceiveQueue>>, domain: Domain) -> Self {
        Self { number, shared, domain, posted: Vec::new(), limited: false }
    }

    /// Returns the number of receives that have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.posted.iter().filter(|(_, fate)| *fate == Fate::Posted).count()
    }

    /// Returns the number of posted receives that are available for further messages.
    pub(super) fn ready(&self) -> usize {
        self.shared.as_ref().map_or_else(|| self.outstanding(), |queue| queue.query().posted)
    }

    /// Posts a receive for this memory to the shared queue or to the queue pair.
    pub(super) fn post(&mut self, slot: Slot, qp: &Qp) -> Result<(), PostError> {
        let id = (self.number as u64) << 32 | self.posted.len() as u64;
        let request = ReceiveRequest { id, buffers: slot.sges(&mut Rng::new(slot.span.addr)) };
        // A message that waits for a receive may complete this one before the call returns.
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

    /// Records the completion of a receive, and returns its memory. With `in_order`, checks that it is the oldest
    /// receive.
    pub(super) fn take(&mut self, id: u64, in_order: bool) -> Slot {
        let index = usize::try_from(id & 0xffff_ffff).expect("an index");
        let (_, fate) = self.posted[index];
        assert_eq!(fate, Fate::Posted, "receive {index} of {} completed twice", self.number);
        if in_order {
            let first = self.posted.iter().position(|(_, fate)| *fate == Fate::Posted);
            assert_eq!(first, Some(index), "receives completed out of order");
        }
        self.posted[index].1 = Fate::Done;
        self.posted[index].0
    }

    /// Records that the queue pair was reset, which discards all outstanding receives.
    pub(super) fn forget(&mut self) {
        for (_, fate) in &mut self.posted {
            if *fate == Fate::Posted {
                *fate = Fate::Gone;
            }
        }
    }
}
