//! A snapshot of a function from a hostile process, and a hostile peer. The snapshot is refused, or its connections are
//! driven, posted to and ended, without a panic and without an access to memory that was not carried over.
#![no_main]
#![allow(clippy::unwrap_used, reason = "a fuzz target: every panic is a finding")]

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use ironwarp_rnic::memory::Translation;
use ironwarp_rnic::qp::{MovedObjects, Qp, Ready, StreamDriver};
use ironwarp_rnic::queue::{
    Cq, Data, Operation, ReceiveRequest, Sges, SharedReceiveQueue, WorkRequest, XrcDomain,
};
use ironwarp_rnic::snapshot::Snapshot;
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The memory that was carried over, and the place of the first byte.
const BASE: u64 = 1 << 40;
const LEN: usize = 64 << 10;
const BOTH: Ready = Ready { readable: true, writable: true, ended: false };
/// A table with more slots takes long to load.
const MAX_SLOTS: u32 = 1 << 16;

// The first two bytes: how many bytes at the end the peer sends, and in how large pieces the link takes and returns bytes.
fuzz_target!(|input: &[u8]| {
    let [sent, piece, input @ ..] = input else { return };
    let (snapshot, sent) = input.split_at(input.len().saturating_sub((*sent).into()));
    run(snapshot, sent, usize::from(*piece) + 1);
});

fn run(snapshot: &[u8], sent: &[u8], piece: usize) {
    let mut snapshot = match Snapshot::decode(snapshot) {
        Ok(snapshot) => snapshot,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    if snapshot.table.slots() > MAX_SLOTS || snapshot.relocate(&mut relocate).is_err() {
        return;
    }
    let Snapshot { next_domain, table, cqs, srqs, qps } = snapshot;
    let memory = Arc::new(Memory(Mutex::new(vec![0; LEN])));
    let config = DeviceConfig { shared_memory: true, park: 2048, ..DeviceConfig::default() };
    let Ok(device) = Device::load(config, Arc::<Memory>::clone(&memory), table, next_domain, &mut relocate)
    else {
        return;
    };
    let mut objects = Objects::default();
    for frozen in cqs {
        let cq = Arc::new(Cq::new(frozen.id, frozen.capacity));
        objects.cqs.insert(frozen.id, Arc::clone(&cq));
        cq.thaw(frozen);
    }
    for frozen in srqs {
        let cq = frozen.cq.and_then(|cq| objects.cq(cq));
        let srq = SharedReceiveQueue::new(frozen.id, device.events(), frozen.domain, frozen.size(), cq);
        objects.srqs.insert(frozen.id, Arc::clone(&srq));
        srq.thaw(frozen);
    }
    let mut restored = Vec::new();
    for frozen in qps {
        let Some((qp, halves)) = Qp::restore(&device, frozen, &objects) else { return };
        let wire =
            Wire { memory: Arc::clone(&memory), piece, state: Mutex::new((sent.to_vec(), 0, 3 * piece)) };
        let wire = Arc::new(wire);
        if let Some(halves) = halves {
            let link: Arc<dyn Link> = Arc::<Wire>::clone(&wire);
            qp.resume(halves, &link, Arc::new(Nobody));
        }
        restored.push((qp, wire));
    }
    for (qp, wire) in &restored {
        drive(qp, wire);
    }
    assert!(restored.iter().all(|(qp, _)| qp.freeze().is_ok()));
    for cq in objects.cqs.values() {
        let _ = cq.poll(64, |_| ());
    }
}

/// Drives a queue pair in every way, and ends it.
fn drive(qp: &Arc<Qp>, wire: &Wire) {
    qp.drive(BOTH);
    qp.acknowledge();
    let send = Operation::Send { invalidate: None };
    let _ = qp.post_send([WorkRequest::new(1, send, Data::Memory(Sges::default()))]);
    let _ = qp.post_receive(ReceiveRequest { id: 2, buffers: Sges::default() });
    wire.state.lock().unwrap().2 = usize::MAX;
    for _ in 0..4 {
        qp.drive(BOTH);
    }
    let _ = qp.query();
    qp.abort(QpError::Moved);
    qp.drive(BOTH);
}

/// Translates memory that was carried over to the same addresses.
fn relocate(spans: &[Span]) -> Option<Translation> {
    spans.iter().try_for_each(|span| range(span).map(|_| ())).ok()?;
    match spans {
        [one] => Translation::direct(one.addr, one.len as u64).ok(),
        spans => Translation::buffers(spans).ok(),
    }
}

/// Returns the bytes of the memory that a span has.
fn range(span: &Span) -> Result<Range<usize>, Unmapped> {
    let start = usize::try_from(span.addr.checked_sub(BASE).ok_or(Unmapped)?).map_err(|_| Unmapped)?;
    let end = start.checked_add(span.len).filter(|end| *end <= LEN).ok_or(Unmapped)?;
    Ok(start..end)
}

/// The memory that was carried over. Any other access is a finding.
#[derive(Debug)]
struct Memory(Mutex<Vec<u8>>);

impl Host for Memory {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        let memory = self.0.lock().unwrap();
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&memory[range(span).expect("memory that was carried over")]);
            into = rest;
        }
        assert!(into.is_empty());
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let mut memory = self.0.lock().unwrap();
        for span in to {
            let (front, rest) = from.split_at(span.len);
            memory[range(span).expect("memory that was carried over")].copy_from_slice(front);
            from = rest;
        }
        assert!(from.is_empty());
        Ok(())
    }

    fn is_mapped(&self, span: Span) -> bool {
        range(&span).is_ok()
    }
}

/// A link with the bytes of the peer, how many of them were received, and how many bytes it takes.
#[derive(Debug)]
struct Wire {
    memory: Arc<Memory>,
    piece: usize,
    state: Mutex<(Vec<u8>, usize, usize)>,
}

impl Link for Wire {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut state = self.state.lock().unwrap();
        let n = pieces.iter().map(Piece::len).sum::<usize>().min(state.2);
        state.2 -= n;
        if n == 0 { Err(LinkError::WouldBlock) } else { Ok(n) }
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut state = self.state.lock().unwrap();
        let (bytes, at, _) = &mut *state;
        let room = own.len() + host.iter().map(|span| span.len).sum::<usize>();
        let n = room.min(self.piece).min(bytes.len() - *at);
        if n == 0 {
            return Err(LinkError::WouldBlock);
        }
        let mut data = &bytes[*at..*at + n];
        for span in host {
            let (front, rest) = data.split_at(span.len.min(data.len()));
            let _ = self.memory.scatter(front, &[Span { len: front.len(), ..*span }]);
            data = rest;
        }
        own[..data.len()].copy_from_slice(data);
        *at += n;
        Ok(n)
    }

    fn arrived(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.0.len() - state.1
    }

    /// Accepts every route. All of them have the same bytes.
    fn switch_recv(&self, _: Route, unread: &[u8]) -> bool {
        self.state.lock().unwrap().1 -= unread.len();
        true
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
struct Nobody;
impl StreamDriver for Nobody {
    fn schedule(&self) {}
    fn on_first_message(&self) {}
    fn on_stream_ended(&self, _: &Arc<QpError>) {}
    fn on_link_closed(&self) {}
    fn on_peer_not_ready(&self) {}
}

/// The objects of the function, by number.
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
