//! Honest connections of the victim, with other adapters: their data must arrive unchanged, and they must never stall,
//! whatever a hostile process does.

use super::{TIMEOUT, wait_until};
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Data, Operation, Sge, Status, WorkRequest};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum duration of a round on a busy machine.
const STALL: Duration = Duration::from_secs(3);
/// Number of bytes written and read per round.
const LEN: usize = 3000;
/// The pause between rounds.
const REST: Duration = Duration::from_millis(2);

/// An honest connection that is used by a thread of its own.
#[derive(Debug)]
pub(crate) struct Honest {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Duration>,
    ends: [Arc<QueuePair>; 2],
    route: Route,
}

impl Honest {
    /// Connects another adapter with the victim, by this route.
    pub(crate) fn new(victim: &Arc<Engine>, route: Route) -> Self {
        let mut config = Config::default().shm(true);
        (config.lanes, config.shm) = (1, route == Route::SharedMemory);
        Self::between(Engine::new(config).unwrap(), victim, route)
    }

    /// Connects this adapter with the victim, by this route.
    pub(crate) fn between(engine: Arc<Engine>, victim: &Arc<Engine>, route: Route) -> Self {
        let ends = Ends::new(engine, victim);
        let pairs = [Arc::clone(&ends.near), Arc::clone(&ends.far)];
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                ends.round(count.load(Ordering::Relaxed));
                longest = longest.max(begin.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(REST); // its pace, not a synchronisation
            }
            longest
        });
        let honest = Self { stop, rounds, thread, ends: pairs, route };
        wait_until("the honest connection to use its route", || {
            honest.uses_route() || honest.thread.is_finished()
        });
        honest
    }

    /// Returns whether both directions use the route.
    fn uses_route(&self) -> bool {
        self.ends.iter().all(|end| end.qp().send_route() == self.route && end.qp().recv_route() == self.route)
    }

    /// Waits for `n` more rounds.
    pub(crate) fn go_on(&self, n: u64) {
        let rounds = || self.rounds.load(Ordering::Relaxed);
        let before = rounds();
        wait_until("the honest connection", || rounds() >= before + n || self.thread.is_finished());
    }

    /// Checks that the connection was not affected, and closes it.
    pub(crate) fn leave(self) {
        self.go_on(2);
        assert!(self.thread.is_finished() || self.uses_route(), "the honest connection has left its route");
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.join().expect("the honest connection failed");
        assert!(longest < STALL, "the honest connection by {} stalled for {longest:?}", self.route);
    }
}

/// Both ends. Only the near end is driven by the thread: the lane of the victim serves the far end.
#[derive(Debug)]
struct Ends {
    _engine: Arc<Engine>,
    cq: Arc<CompletionQueue>,
    near: Arc<QueuePair>,
    far: Arc<QueuePair>,
    own: Mapping,
    own_tag: Tag,
    victims: Mapping,
    victims_tag: Tag,
}

impl Ends {
    fn new(engine: Arc<Engine>, victim: &Arc<Engine>) -> Self {
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let end = |engine: &Arc<Engine>| {
            let (domain, cq) = (engine.device().allocate_domain(), engine.create_cq(64).unwrap());
            let attributes = QueuePairAttributes {
                send_depth: 8,
                receives: Receives::Own(8),
                max_sges: 1,
                completes: Completes::WhenSent,
                ..QueuePairAttributes::new(domain, &cq)
            };
            let memory = Mapping::new(4);
            let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
            let tag = engine.device().register(domain, region).unwrap();
            (engine.create_qp(attributes).unwrap(), cq, memory, tag)
        };
        let (near, cq, own, own_tag) = end(&engine);
        let (far, _, victims, victims_tag) = end(victim);
        let listener = victim.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        engine.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(Some(TIMEOUT)).expect("the honest adapter connects");
        incoming.accept(&far, victim.terms(None, None), &[]).unwrap();
        near.wait_connected(TIMEOUT).unwrap();
        far.wait_connected(TIMEOUT).unwrap();
        Self { _engine: engine, cq, near, far, own, own_tag, victims, victims_tag }
    }

    /// Writes data that is unique to this round to the victim, and reads it back.
    fn round(&self, round: u64) {
        let data: Vec<u8> = (0..LEN).map(|i| (i as u64 * 7 + round * 13).to_le_bytes()[0]).collect();
        self.own.write(0, &data);
        let to = RemoteAddr { tag: self.victims_tag, offset: self.victims.addr(PAGE) };
        self.post(1, Operation::Write(to), 0);
        self.complete(1);
        self.post(2, Operation::Read(to), 2 * PAGE);
        self.complete(2);
        assert_eq!(self.own.read(2 * PAGE, LEN), data, "the bytes that were read back");
        assert_eq!(self.victims.read(PAGE, LEN), data, "the bytes at the victim");
    }

    fn post(&self, id: u64, operation: Operation, at: usize) {
        let sge = Sge { tag: self.own_tag, addr: self.own.addr(at), len: u32::try_from(LEN).unwrap() };
        let request = WorkRequest::new(id, operation, Data::Memory(sge.into()));
        self.near.qp().post_send(vec![request]).unwrap();
    }

    fn complete(&self, id: u64) {
        let mut done = Vec::new();
        let deadline = Instant::now() + STALL;
        while done.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                self.cq.wait(Some(left)).unwrap() || !left.is_zero(),
                "the honest connection waits for {id}"
            );
            self.cq.poll(1, |completion| done.push(completion)).unwrap();
        }
        assert_eq!((done[0].status, done[0].wr_id), (Status::Success, id), "{done:?}");
    }
}
