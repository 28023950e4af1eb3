//! The receives of a program: the queue that they are posted to, which belongs to a queue pair or is shared, and their results.

use super::request::Slot;
use super::verb::Verb;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{ReceiveRequest, SharedReceiveQueue};
use std::sync::Arc;

/// Where the queue pairs of a run take receives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Each from its own queue.
    Own,
    /// All from one shared queue.
    Shared,
    /// Each message from the shared queue that it names (XRC).
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

/// A queue of receives and its model.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) number: usize,
    /// The shared queue, unless the queue belongs to a queue pair.
    pub(super) shared: Option<Arc<SharedReceiveQueue>>,
    pub(super) domain: Domain,
    posted: Vec<(Slot, Fate)>,
    /// The limit event was requested and has not arrived.
    pub(super) limited: bool,
}

/// The state of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Posted,
    Done,
    /// Its queue pair was reset: it must never complete.
    Gone,
}

impl Supply {
    pub(super) fn new(number: usize, shared: Option<Arc<SharedReceiveQueue>>, domain: Domain) -> Self {
        Self { number, shared, domain, posted: Vec::new(), limited: false }
    }

    /// Number of receives that have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.posted.iter().filter(|(_, fate)| *fate == Fate::Posted).count()
    }

    /// Number of posted receives that are available for further messages.
    pub(super) fn ready(&self) -> usize {
        self.shared.as_ref().map_or_else(|| self.outstanding(), |queue| queue.query().posted)
    }

    /// Posts a receive for this memory to the shared queue or to the queue pair.
    pub(super) fn post(&mut self, slot: Slot, qp: &Qp) -> Result<(), PostError> {
        let id = (self.number as u64) << 32 | self.posted.len() as u64;
        let request = ReceiveRequest { id, buffers: slot.sges(&mut Rng::new(slot.span.addr)) };
        // A message that waits for it may complete it before the call returns.
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

    /// Completes a receive. Returns its memory.
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

    /// Discards receives because the queue pair was reset.
    pub(super) fn forget(&mut self) {
        for (_, fate) in &mut self.posted {
            if *fate == Fate::Posted {
                *fate = Fate::Gone;
            }
        }
    }
}
