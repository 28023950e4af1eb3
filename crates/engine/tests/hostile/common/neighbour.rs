//! The neighbour: a well-behaved connection between two queue pairs of the victim's adapter. Its data must
//! arrive unchanged, and it must never stall, whatever other peers do to the adapter.

use super::TIMEOUT;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum duration of a round.
const STALL: Duration = Duration::from_secs(2);
/// Number of bytes transferred per round by each of Write, Send and Read.
const LEN: usize = 3000;
/// Offsets in the memory. Each buffer has a page of its own.
const OUT: usize = 0;
const WRITTEN: usize = PAGE;
const SENT: usize = 2 * PAGE;
const FETCHED: usize = 3 * PAGE;

/// The results of a neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeighbourResult {
    pub(crate) rounds: u64,
    pub(crate) longest: Duration,
}

/// A neighbour that runs in a thread of its own.
#[derive(Debug)]
pub(crate) struct Neighbour {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<NeighbourResult>,
}

impl Neighbour {
    /// Starts a neighbour, which pauses for `rest` between rounds.
    pub(crate) fn new(engine: &Arc<Engine>, rest: Duration) -> Self {
        let home = Home::new(engine);
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut fared = NeighbourResult { rounds: 0, longest: Duration::ZERO };
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                home.round(fared.rounds);
                fared.rounds += 1;
                count.store(fared.rounds, Ordering::Relaxed);
                fared.longest = fared.longest.max(begin.elapsed());
                std::thread::sleep(rest); // its pace, not a synchronisation
            }
            fared
        });
        Self { stop, rounds, thread }
    }

    /// Number of rounds completed so far.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits for at least one more round, stops the neighbour and checks its results.
    pub(crate) fn leave(self) -> NeighbourResult {
        let (before, deadline) = (self.rounds(), Instant::now() + TIMEOUT);
        while self.rounds() == before && Instant::now() < deadline && !self.thread.is_finished() {
            std::thread::yield_now();
        }
        self.stop.store(true, Ordering::Relaxed);
        let fared = self.thread.join().expect("the neighbour failed");
        assert!(fared.rounds > before, "the neighbour made no progress");
        assert!(fared.longest < STALL, "the neighbour stalled: {fared:?}");
        fared
    }
}

/// Two connected queue pairs of one adapter that share a completion queue, so that one thread drives both.
#[derive(Debug)]
struct Home {
    cq: Arc<CompletionQueue>,
    near: Arc<QueuePair>,
    far: Arc<QueuePair>,
    memory: Mapping,
    tag: Tag,
}

impl Home {
    fn new(engine: &Arc<Engine>) -> Self {
        let domain = engine.device().allocate_domain();
        let cq = engine.create_cq(64).unwrap();
        let qp = || {
            let pair = engine.create_qp(QueuePairAttributes {
                send_depth: 8,
                receives: Receives::Own(8),
                max_sges: 1,
                completes: Completes::WhenSent,
                ..QueuePairAttributes::new(domain, &cq)
            });
            pair.unwrap()
        };
        let (near, far) = (qp(), qp());
        let memory = Mapping::new(4);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = engine.device().register(domain, region).unwrap();
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        engine.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(Some(TIMEOUT)).expect("the neighbour connects");
        incoming.accept(&far, engine.terms(None, None), &[]).unwrap();
        near.wait_connected(TIMEOUT).unwrap();
        far.wait_connected(TIMEOUT).unwrap();
        Self { cq, near, far, memory, tag }
    }

    /// A Write and a Send in one direction and a Read back, with data that is unique to this round.
    fn round(&self, round: u64) {
        let data: Vec<u8> = (0..LEN).map(|i| (i as u64 * 7 + round * 13).to_le_bytes()[0]).collect();
        self.memory.write(OUT, &data);
        self.far.qp().post_receive(ReceiveRequest { id: 1, buffers: self.sge(SENT).into() }).unwrap();
        let addr = |at| RemoteAddr { tag: self.tag, offset: self.memory.addr(at) };
        let send = Operation::Send { invalidate: None };
        self.post(vec![(2, Operation::Write(addr(WRITTEN)), OUT), (3, send, OUT)]);
        self.complete(&[1, 2, 3]);
        assert_eq!(self.memory.read(WRITTEN, LEN), data, "the neighbour's Write");
        assert_eq!(self.memory.read(SENT, LEN), data, "the neighbour's Send");
        self.post(vec![(4, Operation::Read(addr(WRITTEN)), FETCHED)]);
        self.complete(&[4]);
        assert_eq!(self.memory.read(FETCHED, LEN), data, "the neighbour's Read");
    }

    fn sge(&self, at: usize) -> Sge {
        Sge { tag: self.tag, addr: self.memory.addr(at), len: u32::try_from(LEN).unwrap() }
    }

    fn post(&self, requests: Vec<(u64, Operation, usize)>) {
        let request = |(id, operation, at)| {
            let data = Data::Memory(self.sge(at).into());
            WorkRequest::new(id, operation, data)
        };
        self.near.qp().post_send(requests.into_iter().map(request)).unwrap();
    }

    fn complete(&self, ids: &[u64]) {
        let mut done = Vec::new();
        while done.len() < ids.len() {
            assert!(self.cq.wait(Some(STALL)).unwrap(), "the neighbour waits for {ids:?}, got {done:?}");
            self.cq
                .poll(8, |completion| {
                    assert_eq!(completion.status, Status::Success, "{completion:?}");
                    done.push(completion.wr_id);
                })
                .unwrap();
        }
        done.sort_unstable();
        assert_eq!(done, ids);
    }
}
