//! Snapshots of a function (requirement X2): their bytes, and what happens to those that a hostile process made.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod frozen;
mod function;
mod hostile;

use function::{BOTH, Function, Nobody, SCENES, Wire, config};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::memory::{KeyMask, NotCarried, TableError, Translation};
use ironwarp_rnic::qp::{Halves, MovedObjects, Qp};
use ironwarp_rnic::queue::{Cq, FrozenCq, SharedReceiveQueue, XrcDomain};
use ironwarp_rnic::snapshot::{Snapshot, SnapshotError, VERSION};
use ironwarp_sim::Arena;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

/// The snapshot of a function with all scenes, in version 1 of the format.
const GOLDEN: &[u8] = include_bytes!("golden-1.bin");

/// Why a snapshot was refused.
#[derive(Debug)]
#[expect(dead_code, reason = "printed if a test fails")]
enum Refused {
    Snapshot(SnapshotError),
    NotCarried(NotCarried),
    Table(TableError),
    Missing,
}

/// A function that was loaded, and does not act yet.
struct Loaded {
    device: Arc<Device>,
    objects: Objects,
    cqs: Vec<FrozenCq>,
    srqs: Vec<Arc<SharedReceiveQueue>>,
    qps: Vec<(Arc<Qp>, Option<Halves>)>,
}

/// The objects of a function, by number.
#[derive(Default)]
struct Objects {
    cqs: HashMap<u32, Arc<Cq>>,
    srqs: HashMap<u32, Arc<SharedReceiveQueue>>,
}

impl MovedObjects for Objects {
    fn cq(&self, number: u32) -> Option<Arc<Cq>> {
        self.cqs.get(&number).cloned()
    }

    fn srq(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.srqs.get(&number).cloned()
    }

    fn xrc_domain(&self, srqs: &[u32]) -> Option<Arc<XrcDomain>> {
        let domain = XrcDomain::new();
        srqs.iter().try_for_each(|srq| self.srqs.get(srq).map(|srq| domain.add(srq)))?;
        Some(domain)
    }
}

/// Loads a snapshot into a new device, to which only the addresses of the arena were carried over.
fn load(bytes: &[u8], arena: &Arc<Arena>) -> Result<Loaded, Refused> {
    let mut relocate = |spans: &[Span]| {
        let carried = spans.iter().all(|span| span.addr >> 40 == 1 && span.len <= 1 << 20);
        match spans {
            _ if !carried => None,
            [one] => Translation::direct(one.addr, one.len as u64).ok(),
            spans => Translation::buffers(spans).ok(),
        }
    };
    let mut snapshot = Snapshot::decode(bytes).map_err(Refused::Snapshot)?;
    snapshot.relocate(&mut relocate).map_err(Refused::NotCarried)?;
    let Snapshot { next_domain, table, cqs, srqs, qps } = snapshot;
    let device = Device::load(config(), arena.clone(), table, next_domain, &mut relocate);
    let device = device.map_err(Refused::Table)?;
    let mut objects = Objects::default();
    for frozen in &cqs {
        objects.cqs.insert(frozen.id, Arc::new(Cq::new(frozen.id, frozen.capacity)));
    }
    let mut queues = Vec::new();
    for frozen in srqs {
        let cq = frozen.cq.and_then(|cq| objects.cq(cq));
        let srq = SharedReceiveQueue::new(frozen.id, device.events(), frozen.domain, frozen.size(), cq);
        objects.srqs.insert(frozen.id, Arc::clone(&srq));
        srq.thaw(frozen);
        queues.push(srq);
    }
    let qps = qps.into_iter().map(|qp| Qp::restore(&device, qp, &objects).ok_or(Refused::Missing));
    let qps = qps.collect::<Result<_, _>>()?;
    Ok(Loaded { device, objects, cqs, srqs: queues, qps })
}

impl Loaded {
    /// Gives the streams links without bytes. Returns the links.
    fn resume(&mut self, arena: &Arc<Arena>) -> Vec<Arc<Wire>> {
        let mut wires = Vec::new();
        for (qp, halves) in &mut self.qps {
            let wire = Arc::new(Wire::new(arena));
            let link: Arc<dyn Link> = wire.clone();
            if let Some(halves) = halves.take() {
                qp.resume(halves, &link, Arc::new(Nobody));
            }
            wires.push(wire);
        }
        wires
    }

    /// Drives all queue pairs with a peer that sends zeros, and ends them. Panics if the adapter has a bug.
    fn drive(mut self, arena: &Arc<Arena>) {
        let wires = self.resume(arena);
        for frozen in std::mem::take(&mut self.cqs) {
            self.objects.cqs[&frozen.id].thaw(frozen);
        }
        for ((qp, _), wire) in self.qps.iter().zip(&wires) {
            for zeros in [0, 7, 100, 2000] {
                wire.inbox.lock().unwrap().extend(std::iter::repeat_n(0, zeros));
                qp.drive(BOTH);
                qp.acknowledge();
            }
            qp.abort(QpError::Moved);
            assert!(!matches!(qp.error().map(|error| &**error), Some(QpError::Bug(_))), "{:?}", qp.error());
        }
        for cq in self.objects.cqs.values() {
            let _ = cq.poll(64, |_| ());
        }
    }
}

/// Version 1 is what this release stores, byte by byte.
///
/// If this fails, a type of the snapshot has changed. Two releases that differ in that must not understand each other:
/// raise `VERSION`, and replace the golden file by the bytes that the test has written, under the new number.
#[test]
fn the_bytes_of_a_snapshot_change_only_with_its_version() {
    assert_eq!(VERSION, 1);
    let bytes = Function::new(&SCENES).store();
    if bytes != GOLDEN {
        let path = format!("{}/golden-{VERSION}.bin", env!("CARGO_TARGET_TMPDIR"));
        fs::write(&path, &bytes).unwrap();
        let at = bytes.iter().zip(GOLDEN).position(|(new, old)| new != old);
        panic!("a type of the snapshot has changed, first at byte {at:?}: {path} has the new bytes");
    }
}

#[test]
fn a_snapshot_that_was_loaded_and_stored_again_has_the_same_bytes() {
    let arena = Function::new(&[]).arena;
    let mut loaded = load(GOLDEN, &arena).unwrap();
    loaded.resume(&arena);
    let qps: Vec<_> = loaded.qps.iter().map(|(qp, _)| qp.freeze().unwrap()).collect();
    let srqs: Vec<_> = loaded.srqs.iter().map(|srq| srq.freeze()).collect();
    let again = loaded.device.snapshot(&loaded.cqs, &srqs, &qps, KeyMask::default()).unwrap();
    assert_eq!(again.iter().zip(GOLDEN).position(|(new, old)| new != old), None);
    assert_eq!(again.len(), GOLDEN.len());
}

/// Otherwise the golden file proves little.
#[test]
fn the_golden_file_has_objects_in_every_state() {
    let snapshot = format!("{:?}", Snapshot::decode(GOLDEN).unwrap());
    let states = [
        "retired: 1",
        "free: [",
        "one_touch: true",
        "claimed_by: 1",
        "armed: Some(Next)",
        "armed: Some(Solicited)",
        "event: true",
        "status: Flushed",
        "cause: Some(",
        "limit: 1",
        "Inline(",
        "Register {",
        "unsent: Some(",
        "AtomicDone {",
        "ReadRequest {",
        "OutstandingRead { kind: Read",
        "OutstandingRead { kind: Atomic(",
        "response_in_progress: true",
        "message: Send {",
        "message: Write(",
        "waiting: Some(",
        "Park([",
        "Shared(1)",
        "Named([2])",
        "halves: Halves { tx: None, rx: None }",
    ];
    for state in states {
        assert!(snapshot.contains(state), "{state} is missing: {snapshot}");
    }
}
