//! Two programs do random work over a simulated link, and everything that comes of it is checked.
//!
//! One seed is one run: the settings of both adapters, the path, the faults, the requests and the order of events. What is
//! wrong is a panic; the same seed does it again.

mod program;
mod request;

use crate::link::Path;
use crate::trace::Trace;
use crate::world::World;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::{Setup, Terms};
use ironwarp_rnic::fault::{Chance, Counts, FaultPlan, Rng};
use ironwarp_rnic::qp::{Completes, State};
use program::Program;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// How many requests each program makes.
const REQUESTS: usize = 20;
/// Longer than any path or fault takes, shorter than the time a peer has to close.
const DULL: Duration = Duration::from_millis(10);
/// No run takes more steps: it would be one that gets nowhere.
const STEPS: u32 = 1_000_000;

/// What may go wrong in a run, from nothing to the worst.
const PLANS: [&str; 4] = [
    "none",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.2",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.1,cut@0.02",
];

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// How long it took, by its own clock.
    pub time: Duration,
    /// How many requests succeeded, on both sides.
    pub succeeded: usize,
    /// How many messages were received.
    pub received: usize,
    /// What went wrong on purpose.
    pub faults: Counts,
}

/// Runs one seed to its end. Panics if anything is not as it should be.
pub fn run(seed: u64) -> Outcome {
    Scene::new(seed, World::new).run()
}

/// The same, and `keep` gets the trace that is written meanwhile.
pub fn trace(seed: u64, keep: impl FnOnce(Trace)) -> Outcome {
    let scene = Scene::new(seed, World::traced);
    keep(scene.world.trace().clone());
    scene.run()
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.succeeded += other.succeeded;
        self.received += other.received;
        self.faults.splits += other.faults.splits;
        self.faults.delays += other.faults.delays;
        self.faults.stalls += other.faults.stalls;
        self.faults.cuts += other.faults.cuts;
        self.faults.withheld_receives += other.faults.withheld_receives;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, succeeded, received, faults } = self;
        let Counts { splits, delays, stalls, cuts, withheld_receives, .. } = faults;
        write!(f, "{succeeded} requests reported done and {received} messages received in {time:?}; ")?;
        write!(f, "{splits} splits, {delays} delays, {stalls} stalls, {cuts} cuts, ")?;
        write!(f, "{withheld_receives} withheld receives")
    }
}

/// Two programs, connected, with work before them.
struct Scene {
    world: World,
    programs: [Program; 2],
    mischief: Mischief,
    rng: Rng,
}

/// What a program does to its adapter in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    None,
    /// Disconnects, with work under way in both directions. What it has posted itself must not be lost.
    Disconnect(usize),
    /// Takes memory away.
    TakeAway(usize),
}

impl Mischief {
    const ALL: [Self; 6] = [
        Self::None,
        Self::None,
        Self::Disconnect(0),
        Self::Disconnect(1),
        Self::TakeAway(0),
        Self::TakeAway(1),
    ];
}

impl Scene {
    fn run(mut self) -> Outcome {
        self.play();
        self.expect_outcome();
        let faults = self.world.faults().report().counts;
        let [left, right] = &self.programs;
        left.expect_untouched(right);
        right.expect_untouched(left);
        Outcome {
            time: self.world.clock().now(),
            succeeded: left.succeeded() + right.succeeded(),
            received: left.received() + right.received(),
            faults,
        }
    }

    fn new(seed: u64, world: fn(FaultPlan, u64) -> World) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let plan = pick(&mut rng, &PLANS);
        let mut world = world(plan.parse().expect("it is a plan"), seed);
        let setup = pick(&mut rng, &[Setup::PeerToPeer, Setup::ClientServer, Setup::Unenhanced]);
        let mut programs = [0, 1].map(|number| {
            let completes = pick(&mut rng, &[Completes::WhenSent, Completes::WhenAcknowledged]);
            Program::new(number, some_config(&mut rng), completes)
        });
        let terms = [some_terms(&mut rng, setup), some_terms(&mut rng, setup)];
        let path = some_path(&mut rng);
        let [left, right] = &mut programs;
        left.plan(&mut rng, REQUESTS, right);
        right.plan(&mut rng, REQUESTS, left);
        world.connect(path, setup, [(&left.qp, &left.arena, terms[0]), (&right.qp, &right.arena, terms[1])]);
        for (program, end) in programs.iter_mut().zip(world.ends()) {
            program.connected(end.agreed(), plan.contains("no-receive"), world.trace());
        }
        let mischief = pick(&mut rng, &Mischief::ALL);
        Self { world, programs, mischief, rng }
    }

    /// Lets the programs work until nothing happens any more. Posting is part of the play: it comes at random moments.
    fn play(&mut self) {
        let eager = self.rng.below(3);
        for step in 0.. {
            assert!(step < STEPS, "it goes on and on");
            if self.rng.below(100) == 0 {
                self.make_mischief();
            }
            let acts = self.rng.below(8) <= eager;
            let happened = acts && self.act() || self.world.react() || self.is_dull() && self.act_at_last();
            if !happened && !self.world.step() {
                break;
            }
            self.check();
        }
    }

    /// One of the programs does one thing.
    fn act(&mut self) -> bool {
        let who = usize::from(self.rng.below(2) == 0);
        let program = &mut self.programs[who];
        match self.rng.below(8) {
            0..=3 => program.post_requests(&mut self.rng),
            4..=6 => program.post_receive(),
            _ => {
                self.world.ends()[who].poll();
                true
            }
        }
    }

    fn make_mischief(&mut self) {
        match self.mischief {
            Mischief::None => {}
            Mischief::Disconnect(who) => self.programs[who].disconnect(),
            Mischief::TakeAway(who) => self.programs[who].take_away(&mut self.rng),
        }
    }

    /// So little happens that a program that waits any longer lets time-outs pass.
    fn is_dull(&self) -> bool {
        self.world.quiet_for().is_none_or(|time| time > DULL)
    }

    /// Whatever is left to do, now that nothing else happens.
    fn act_at_last(&mut self) -> bool {
        let rng = &mut self.rng;
        self.programs.iter_mut().any(|program| program.post_receive() || program.post_requests(rng))
    }

    fn check(&mut self) {
        let [left, right] = &mut self.programs;
        left.poll(right);
        right.poll(left);
    }

    fn expect_outcome(&mut self) {
        let [left, right] = &self.programs;
        let cut = self.world.faults().report().counts.cuts > 0;
        let ended = left.qp.state() == State::Error;
        assert_eq!(right.qp.state() == State::Error, ended, "both know, or none");
        if ended {
            self.expect_given_back();
        }
        let closer = match self.mischief {
            Mischief::Disconnect(who) if ended && !cut => &self.programs[who],
            _ => {
                let reason = cut || left.took_away() || right.took_away();
                assert!(reason || !ended, "{:?} {:?}", left.qp.fault(), right.qp.fault());
                if !ended {
                    self.expect_done();
                    self.close();
                }
                return;
            }
        };
        let other = if std::ptr::eq(closer, left) { right } else { left };
        closer.expect_all_done(other);
    }

    /// Everything was posted, went well, and both are still connected.
    fn expect_done(&self) {
        let [left, right] = &self.programs;
        let states = [left.qp.state(), right.qp.state()];
        assert_eq!(states, [State::ReadyToSend; 2], "nothing will ever happen again, {:?}", self.mischief);
        for (program, peer) in [(left, right), (right, left)] {
            program.expect_all_posted();
            program.expect_all_done(peer);
        }
    }

    /// The connection is over, and everybody got everything back.
    fn expect_given_back(&self) {
        for (program, end) in self.programs.iter().zip(self.world.ends()) {
            let fault = program.qp.fault();
            assert!(end.is_ended() && end.is_closed(), "it should be closed: {fault:?} {:?}", self.mischief);
            assert!(!end.is_aborted(), "the peer closes in time: {fault:?} {:?}", self.mischief);
            program.expect_all_given_back();
        }
    }

    /// One of them disconnects, or both do.
    fn close(&mut self) {
        let who = self.rng.below(3);
        let closes = |number: usize| who == 2 || who == number as u64;
        for (number, program) in self.programs.iter_mut().enumerate() {
            if closes(number) {
                program.disconnect();
            }
        }
        self.world.run();
        for (number, program) in self.programs.iter().enumerate() {
            let end = &self.world.ends()[number];
            let fault = program.qp.fault().map(ToString::to_string);
            let by = if closes(number) { "this end" } else { "the peer" };
            assert_eq!(fault, Some(format!("{by} closed the connection")));
            assert!(end.is_ended() && end.is_closed() && !end.is_aborted());
        }
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    let index = usize::try_from(rng.below(from.len() as u64)).expect("an index");
    from[index]
}

fn some_path(rng: &mut Rng) -> Path {
    Path {
        capacity: pick(rng, &[700, 5000, 64 << 10, 1 << 20]),
        latency: Duration::from_nanos(rng.below(20_000)),
        split: pick(rng, &[Chance::NEVER, Chance::in_a_million(300_000), Chance::ALWAYS]),
        segment_size: pick(rng, &[536, 1448, 8948]),
    }
}

fn some_config(rng: &mut Rng) -> Config {
    Config { private: rng.below(4) > 0, park: pick(rng, &[1, 3000, 256 << 10]), ..Config::default() }
}

fn some_terms(rng: &mut Rng, setup: Setup) -> Terms {
    let [ird, ord] = [(); 2].map(|()| pick(rng, &[1, 2, 16]));
    // Without the word for it, the ends have to know each other's depths.
    let ird = if setup == Setup::Unenhanced { 16 } else { ird };
    Terms { ird, max_ird: 16, ord, crc: rng.below(4) == 0, markers: rng.below(4) == 0 }
}
