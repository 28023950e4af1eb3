//! A run: two programs at work, what they do to their adapters meanwhile, and the turns in which all that happens.

use super::coverage::Trait;
use super::line::Drain;
use super::plan::Plan;
use super::program::Program;
use super::rules::{Mischief, Rules, some_config, some_path, some_terms};
use super::watch::Watch;
use super::{Outcome, pick};
use crate::trace::Trace;
use crate::world::{End, World};
use ironwarp_rnic::connect::{Agreed, Setup, Terms};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::fault::{FaultPlan, Rng};
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::Status;
use std::time::Duration;

/// How many steps the plan of a line has, in its first life and in its second.
const STEPS: [usize; 2] = [24, 6];
/// Longer than any path or fault takes, shorter than the time a peer has to close.
const DULL: Duration = Duration::from_millis(10);
/// No run takes more turns: it would be one that gets nowhere.
const TURNS: u32 = 1_000_000;

/// What may go wrong in a run, from nothing to the worst.
const PLANS: [&str; 4] = [
    "none",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.2",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.1,cut@0.02",
];

/// Two programs, connected, with work before them.
pub(super) struct Scene {
    pub(super) world: World,
    pub(super) programs: [Program; 2],
    setup: Setup,
    pub(super) mischief: Mischief,
    /// How many receives of shared queues, and completions, each program lost by resets.
    pub(super) lost: [usize; 2],
    /// How many operations on the counters were posted, in all lives.
    pub(super) counts: [usize; 2],
    done: Outcome,
    pub(super) rng: Rng,
}

impl Scene {
    pub(super) fn new(seed: u64, world: fn(FaultPlan, u64) -> World) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let (rules, mischief) = Rules::some(&mut rng);
        let plan = if rules.strict_receive { PLANS[0] } else { pick(&mut rng, &PLANS) };
        let rules = Rules { withholds: plan.contains("no-receive"), ..rules };
        let world = world(plan.parse().expect("it is a plan"), seed);
        let setup = pick(&mut rng, &[Setup::PeerToPeer, Setup::ClientServer, Setup::Unenhanced]);
        let programs = [0, 1].map(|number| {
            let completes = pick(&mut rng, &[Completes::WhenSent, Completes::WhenAcknowledged]);
            Program::new(number, some_config(&mut rng, &rules, number), completes, rules, world.timers())
        });
        let (lost, counts, done) = ([0; 2], [0; 2], Outcome::default());
        Self { world, programs, setup, mischief, lost, counts, done, rng }
    }

    pub(super) fn trace(&self) -> Trace {
        self.world.trace().clone()
    }

    pub(super) fn run(mut self) -> Outcome {
        let rules = self.programs[0].rules;
        self.live(0);
        // A completion queue that overran is no use any more.
        if rules.overflow.is_none() && self.rng.below(3) == 0 {
            self.mischief = Mischief::None;
            self.begin_again();
            self.live(1);
        }
        rules.count(&mut self.done.coverage);
        self.done.time = self.world.clock().now();
        self.done.faults = self.world.faults().report().counts;
        for program in &mut self.programs {
            program.expect_untouched();
            if program.watches.iter().any(|watch| watch.cq.overrun()) {
                program.coverage.met(Trait::Overrun);
            }
            self.done.coverage += &program.coverage;
        }
        self.done
    }

    /// One life of all lines: planned, connected, at work, over.
    fn live(&mut self, life: usize) {
        let rules = self.programs[0].rules;
        for line in 0..self.programs[0].lines.len() {
            let mut plan = Plan { rng: &mut self.rng, line, programs: &mut self.programs };
            plan.make(STEPS[life]);
            if let Mischief::Crime(who) = self.mischief
                && line == 0
            {
                plan.turn_criminal(who);
            }
        }
        for line in 0..self.programs[0].lines.len() {
            self.bring_up(line);
        }
        for program in &mut self.programs {
            program.set_trace(self.world.trace());
        }
        self.world.trace().note(0, format_args!("{rules:?}, {:?}", self.mischief));
        if rules.strict_receive {
            // All receives that will ever be needed are there before the first message is.
            self.act_at_last();
        }
        for line in 0..self.programs[0].lines.len() {
            self.connect(line);
        }
        self.play();
        self.judge();
        self.close();
        for program in &self.programs {
            for line in &program.lines {
                self.done.succeeded +=
                    line.outcomes.iter().filter(|end| **end == Some(Status::Success)).count();
                self.done.received += line.received;
            }
        }
    }

    fn connect(&mut self, line: usize) {
        let (path, setup) = (some_path(&mut self.rng), self.setup);
        let terms: [Terms; 2] = [(); 2].map(|()| some_terms(&mut self.rng, setup));
        let [left, right] = &self.programs;
        let end = |program: &'_ Program| (program.lines[line].qp.clone(), program.arena.clone());
        let [(one, here), (other, there)] = [end(left), end(right)];
        self.world.connect(path, setup, [(&one, &here, terms[0]), (&other, &there, terms[1])]);
        for program in &mut self.programs {
            let end = self.world.end(&program.lines[line].qp).expect("it is connected");
            program.lines[line].acknowledged =
                program.completes == Completes::WhenAcknowledged && is_acknowledged(end.agreed());
        }
    }

    /// Lets the programs work until nothing happens any more. Posting is part of the play: it comes at random moments.
    fn play(&mut self) {
        let eager = self.rng.below(3);
        for turn in 0.. {
            assert!(turn < TURNS, "it goes on and on");
            if self.rng.below(100) == 0 {
                self.make_mischief();
            }
            let acts = self.rng.below(8) <= eager;
            let happened = acts && self.act() || self.world.react() || self.is_dull() && self.act_at_last();
            if !happened && !self.world.step() {
                break;
            }
            // What has just completed is still there.
            if self.programs[0].rules.overflow.is_none() && self.rng.below(32) == 0 {
                let who = usize::from(self.rng.below(2) == 0);
                self.programs[who].meddle(&mut self.rng);
            }
            // Now and then more than one thing happens before a program looks.
            if self.programs[0].rules.prompt || self.rng.below(4) > 0 {
                self.check();
            }
        }
        self.check();
        let watches = self.programs.iter().flat_map(|program| &program.watches);
        watches.for_each(Watch::expect_told);
    }

    /// One of the programs does one thing.
    fn act(&mut self) -> bool {
        let who = usize::from(self.rng.below(2) == 0);
        let (program, peer) = pair(&mut self.programs, who);
        let rng = &mut self.rng;
        let line = usize::try_from(rng.below(program.lines.len() as u64)).expect("an index");
        match rng.below(16) {
            0..=6 => program.post_requests(rng, line, peer),
            7..=11 => program.post_receive(rng, peer),
            12 => program.limit(rng),
            13 => {
                self.check();
                self.programs[who].wander(&mut self.rng, line);
                true
            }
            14 if self.programs[who].rules.overflow.is_none() => {
                self.check();
                self.programs[who].arm(&mut self.rng);
                true
            }
            _ => {
                self.poll(who, line);
                true
            }
        }
    }

    /// The program polls, which drives the connection without knowing of a reason to.
    fn poll(&self, who: usize, line: usize) {
        let line = &self.programs[who].lines[line];
        if let Some(end) = self.world.end(&line.qp).filter(|_| !line.fate.reset) {
            end.poll();
        }
    }

    fn make_mischief(&mut self) {
        let line = 0;
        match self.mischief {
            Mischief::None | Mischief::Crime(_) => {}
            Mischief::Disconnect(who) => self.disconnect(who, line),
            Mischief::TakeAway(who) => self.programs[who].take_away(&mut self.rng),
            Mischief::Revoke(who) => {
                let revoked =
                    pick(&mut self.rng, &[Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC]);
                let line = &mut self.programs[who].lines[line];
                line.qp.set_rights(Rights::REMOTE - revoked);
                assert_eq!(line.qp.query().rights, Rights::REMOTE - revoked);
                line.fate.revoked = true;
                self.programs[who].coverage.met(Trait::RightsRevoked);
            }
            Mischief::Abort(who) => {
                let line = &mut self.programs[who].lines[line];
                if line.is_well() && line.qp.state() != State::Error {
                    line.fate.aborted = true;
                    line.qp.abort(Fault::TimedOut("a sign of life"));
                    self.programs[who].coverage.met(Trait::Aborted);
                }
            }
            Mischief::Move(who, to) => self.move_away(who, line, to),
        }
    }

    /// Ends the line by a step of its state.
    fn move_away(&mut self, who: usize, line: usize, to: State) {
        let (program, rng) = (&mut self.programs[who], &mut self.rng);
        if !program.lines[line].is_well() {
            return;
        }
        // From where it is drained, every other time.
        if program.rules.drains && program.lines[line].drain == Drain::No && rng.below(2) == 0 {
            return;
        }
        if to == State::Reset { self.reset(who, line) } else { program.step(line, to) }
    }

    /// Sends what was posted, and no more.
    pub(super) fn disconnect(&mut self, who: usize, line: usize) {
        let program = &mut self.programs[who];
        let this = &mut program.lines[line];
        if this.is_well() && !this.qp.is_closing() {
            this.disconnected = Some(this.posted);
            this.qp.disconnect();
            program.note(format_args!("disconnects line {line}"));
            program.coverage.met(Trait::Disconnected);
        }
    }

    /// So little happens that a program that waits any longer lets time-outs pass.
    fn is_dull(&self) -> bool {
        self.world.quiet_for().is_none_or(|time| time > DULL)
    }

    /// Whatever is left to do, now that nothing else happens.
    fn act_at_last(&mut self) -> bool {
        self.check();
        for who in [0, 1] {
            let (program, peer) = pair(&mut self.programs, who);
            let rng = &mut self.rng;
            while program.post_receive(rng, peer) {
                if !program.rules.strict_receive {
                    return true;
                }
            }
            for line in 0..program.lines.len() {
                let state = program.lines[line].qp.state();
                if state == State::ReadyToReceive && program.lines[line].qp.is_linked() {
                    program.step(line, State::ReadyToSend);
                    return true;
                }
                if program.lines[line].qp.is_linked() && program.post_requests(rng, line, peer) {
                    return true;
                }
            }
        }
        self.resume() || self.give_up_the_gone() || self.poll_at_last()
    }

    /// Who did not poll does so when nothing else is left, because others wait for what it will find.
    fn poll_at_last(&mut self) -> bool {
        let Some(who) = self.programs[0].rules.overflow else { return false };
        let (program, peer) = pair(&mut self.programs, who);
        let waiting = program.watches.iter().any(|watch| !watch.cq.is_empty());
        program.poll(peer);
        waiting
    }

    /// Queues that are drained go on. One that is not by now never will be.
    fn resume(&mut self) -> bool {
        for program in &mut self.programs {
            for line in 0..program.lines.len() {
                let qp = &program.lines[line].qp;
                if qp.state() == State::Drained && !qp.is_refusing() {
                    let gone = self.world.end(&program.lines[line].qp).is_none_or(End::is_closed);
                    assert!(gone || program.lines[line].drain == Drain::Done, "line {line} drains for ever");
                    program.step(line, State::ReadyToSend);
                    return true;
                }
            }
        }
        false
    }

    /// A peer that closed does not come back: what waits for it fails.
    fn give_up_the_gone(&mut self) -> bool {
        for program in &mut self.programs {
            for line in &mut program.lines {
                let gone = self.world.end(&line.qp).is_some_and(End::is_closed);
                if gone && line.is_well() && line.qp.has_work() && !line.fate.aborted {
                    line.fate.aborted = true;
                    line.qp.abort(Fault::Unreachable);
                    program.coverage.met(Trait::PeerGone);
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn check(&mut self) {
        for who in [0, 1] {
            let rules = self.programs[who].rules;
            // Who makes its queue overrun does not poll it.
            if !rules.overflows(who) || self.programs[who].watches.iter().any(|watch| watch.cq.overrun()) {
                let (program, peer) = pair(&mut self.programs, who);
                program.poll(peer);
            }
        }
    }
}

fn is_acknowledged(agreed: &Agreed) -> bool {
    agreed.ord > 0 && agreed.setup != Setup::Unenhanced
}

/// A program and the other.
fn pair(programs: &mut [Program; 2], who: usize) -> (&mut Program, &Program) {
    let [left, right] = programs;
    if who == 0 { (left, right) } else { (right, left) }
}
