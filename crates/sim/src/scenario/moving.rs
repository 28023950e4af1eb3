//! Moves a program to another function (requirement X2): freezes all of its objects, stores them as bytes, drops them, and
//! restores them in another device. The links stay, and the peer must notice nothing.

use super::coverage::Feature;
use super::program::Program;
use crate::world::World;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{KeyMask, Translation};
use ironwarp_rnic::qp::{MovedObjects, Qp};
use ironwarp_rnic::queue::{Cq, SharedReceiveQueue, XrcDomain};
use ironwarp_rnic::snapshot::Snapshot;
use std::collections::HashMap;
use std::sync::Arc;

/// When programs move, chosen independently of everything else, so that the other choices of a seed stay as they are.
#[derive(Debug)]
pub(super) struct Moves {
    rng: Rng,
    /// A program moves in one of this many turns. Zero if it never does.
    odds: u64,
}

impl Moves {
    /// Chooses at random how often programs move: in half of the runs not at all.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 5);
        let odds = [0, 0, 10, 100][usize::try_from(rng.below(4)).expect("an index")];
        Self { rng, odds }
    }

    /// Returns the program that moves in this turn, if one does.
    pub(super) fn next(&mut self) -> Option<usize> {
        (self.odds > 0 && self.rng.below(self.odds) == 0).then(|| usize::from(self.rng.below(2) == 0))
    }
}

/// The objects of a function, by number.
struct Objects {
    cqs: HashMap<u32, Arc<Cq>>,
    srqs: HashMap<u32, Arc<SharedReceiveQueue>>,
    xrc: Arc<XrcDomain>,
}

impl MovedObjects for Objects {
    fn cq(&self, number: u32) -> Option<Arc<Cq>> {
        self.cqs.get(&number).cloned()
    }

    fn srq(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.srqs.get(&number).cloned()
    }

    fn xrc_domain(&self, _: &[u32]) -> Option<Arc<XrcDomain>> {
        Some(Arc::clone(&self.xrc))
    }
}

impl Program {
    /// Moves the program to another function, in the middle of whatever its adapter does.
    pub(super) fn move_to_another_function(&mut self, world: &mut World) {
        self.note(format_args!("moves to another function"));
        self.check_events(); // asynchronous events belong to the function
        for model in &mut self.cqs {
            model.prepare_move(&self.timers); // so does moderation
        }
        let bytes = self.freeze();
        self.restore(&bytes, world);
        self.coverage.record(Feature::MovedFunction);
    }

    /// Freezes all objects, and returns the snapshot.
    fn freeze(&mut self) -> Vec<u8> {
        let qps = self.connections.iter().map(|connection| connection.qp.freeze().expect("movable"));
        let qps: Vec<_> = qps.collect();
        let srqs = self.supplies.iter().filter_map(|supply| supply.shared.as_ref());
        let srqs: Vec<_> = srqs.map(|srq| srq.freeze()).collect();
        let cqs: Vec<_> = self.cqs.iter().map(|model| model.cq.freeze()).collect();
        self.device.snapshot(&cqs, &srqs, &qps, KeyMask::default()).expect("no registration in progress")
    }

    /// Replaces all objects by those of the snapshot.
    fn restore(&mut self, bytes: &[u8], world: &mut World) {
        let mut snapshot = Snapshot::decode(bytes).expect("a valid snapshot");
        // The arena is shared with the former function, as a memfd would be.
        let mut same = |spans: &[Span]| match spans {
            [one] => Translation::direct(one.addr, one.len as u64).ok(),
            spans => Translation::buffers(spans).ok(),
        };
        snapshot.relocate(&mut same).expect("all memory is in the arena");
        let Snapshot { next_domain, table, cqs, srqs, qps } = snapshot;
        let config = self.device.config().clone();
        self.device =
            Device::load(config, self.arena.clone(), table, next_domain, &mut same).expect("a valid table");
        self.open_events();
        let mut objects = Objects { cqs: HashMap::new(), srqs: HashMap::new(), xrc: XrcDomain::new() };
        for (frozen, model) in cqs.into_iter().zip(&mut self.cqs) {
            let cq = Arc::new(Cq::new(frozen.id, frozen.capacity));
            objects.cqs.insert(frozen.id, Arc::clone(&cq));
            model.replace(cq, frozen);
        }
        let shared = self.supplies.iter_mut().filter_map(|supply| supply.shared.as_mut());
        for (frozen, place) in srqs.into_iter().zip(shared) {
            let cq = frozen.cq.and_then(|cq| objects.cq(cq));
            let srq =
                SharedReceiveQueue::new(frozen.id, self.device.events(), frozen.domain, frozen.size(), cq);
            objects.srqs.insert(frozen.id, Arc::clone(&srq));
            objects.xrc.add(&srq);
            srq.thaw(frozen);
            *place = srq;
        }
        self.set_xrc_domain(&objects.xrc);
        for (frozen, connection) in qps.into_iter().zip(&mut self.connections) {
            let (qp, halves) = Qp::restore(&self.device, frozen, &objects).expect("all objects are there");
            let before = connection.replace(Arc::clone(&qp));
            world.replace(&before, &qp, halves);
        }
    }
}
