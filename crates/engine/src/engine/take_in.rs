//! Moves a connection from one function of an adapter to another (requirement X2), in the middle of whatever it does.

use super::Engine;
use crate::steering::LeaveError;
use crate::verbs::cq::CompletionQueue;
use crate::verbs::error::ConnectError;
use crate::verbs::queue_pair::{PairNotMovable, QueuePair};
use ironwarp_rnic::memory::{Domain, RegionNotMovable};
use ironwarp_rnic::qp::{FrozenQp, MovedObjects, Qp};
use ironwarp_rnic::queue::{Cq, SharedReceiveQueue, XrcDomain};
use ironwarp_rnic::quota::{QuotaExceeded, Resource};
use ironwarp_wire::Tag;
use std::sync::Arc;
use std::time::Instant;

/// Why a connection cannot move to another function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeInError {
    /// The functions belong to two adapters.
    #[error("the functions belong to two adapters: hand the adapter over instead")]
    OtherAdapter,
    /// The queue pair cannot move.
    #[error(transparent)]
    QueuePair(#[from] PairNotMovable),
    /// It receives from a shared receive queue.
    #[error("queue pair {0:#08x} cannot move: it uses a shared receive queue")]
    SharedReceiveQueue(u32),
    /// Its stream is in shared memory, and has not left that in time.
    #[error(transparent)]
    SharedMemory(#[from] LeaveError),
    /// A region cannot move.
    #[error(transparent)]
    Region(#[from] RegionNotMovable),
    /// The function has reached its quota of queue pairs.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The connection could not be added to its lane.
    #[error(transparent)]
    Connection(#[from] ConnectError),
}

/// The completion queues of the queue pair.
struct Queues<'a>([&'a Arc<CompletionQueue>; 2]);

impl MovedObjects for Queues<'_> {
    fn cq(&self, number: u32) -> Option<Arc<Cq>> {
        self.0.iter().map(|cq| cq.cq()).find(|cq| cq.id() == number).cloned()
    }

    fn srq(&self, _: u32) -> Option<Arc<SharedReceiveQueue>> {
        None
    }

    fn xrc_domain(&self, _: &[u32]) -> Option<Arc<XrcDomain>> {
        None
    }
}

impl Engine {
    /// Moves a queue pair of the function `from`, with its connection and the regions with these tags, to this function, into
    /// `domain` and to these completion queues, for sends and receives. Numbers and tags stay, and the peer notices
    /// nothing. Completions that were not polled stay where they are. If this fails, nothing has moved.
    ///
    /// A connection on one host leaves shared memory first, at most until the deadline.
    pub fn take_in(
        &self,
        from: &Self,
        pair: &Arc<QueuePair>,
        (domain, tags): (Domain, &[Tag]),
        cqs: [&Arc<CompletionQueue>; 2],
        deadline: Instant,
    ) -> Result<Arc<QueuePair>, TakeInError> {
        if !Arc::ptr_eq(&self.shared, &from.shared) {
            return Err(TakeInError::OtherAdapter);
        }
        pair.leave_shared_memory(deadline)?;
        pair.wait_until_movable(deadline)?;
        self.device().account().charge(Resource::QueuePairs, 1)?; // dropping the queue pair releases it
        let uncharge = || self.device().account().release(Resource::QueuePairs, 1);
        let (former, frozen, image) = pair.freeze().inspect_err(|_| uncharge())?;
        let moved = match frozen.srqs() {
            [] => from.move_regions(tags, pair.qp().attributes().domain, self, domain).map_err(Into::into),
            _ => Err(TakeInError::SharedReceiveQueue(pair.id())),
        };
        if let Err(error) = moved {
            uncharge();
            former.thaw(frozen);
            return Err(error);
        }
        let restored = self.restore_here(frozen, domain, cqs);
        let (number, index) = (pair.pass_number_on(), self.shared.next_qp_index());
        let queues = cqs.map(Arc::clone);
        let socket = former.socket();
        former.surrender(); // before the new one acts
        let here = QueuePair::restore(number, index, self.device(), restored, queues, image, socket)?;
        self.function.objects().add_pair(&here.pair);
        here.activate();
        Ok(here.pair)
    }

    /// Creates the device's queue pair from the state of one that was frozen.
    fn restore_here(
        &self,
        mut frozen: FrozenQp,
        domain: Domain,
        cqs: [&Arc<CompletionQueue>; 2],
    ) -> (Arc<Qp>, Option<ironwarp_rnic::qp::Halves>) {
        frozen.rehome(domain, cqs.map(|cq| cq.cq().id()));
        Qp::restore(self.device(), frozen, &Queues(cqs)).expect("it names these queues only")
    }

    /// Moves regions to another function: all of them, or none.
    fn move_regions(
        &self,
        tags: &[Tag],
        from: Domain,
        other: &Self,
        to: Domain,
    ) -> Result<(), RegionNotMovable> {
        let (here, there) = (self.device().table(), other.device().table());
        for (index, tag) in tags.iter().enumerate() {
            if let Err(error) = here.move_region(*tag, there, to) {
                for moved in &tags[..index] {
                    // It was here a moment ago, so there is room for it, unless the program has taken that meanwhile.
                    if let Err(error) = there.move_region(*moved, here, from) {
                        tracing::error!(%error, "failed to move a region back");
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
