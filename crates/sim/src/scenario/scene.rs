//! A run: two programs at work, and what they do to their adapters meanwhile.

use super::connection::Drain;
use super::coverage::Feature;
use super::cq_model::CqModel;
use super::outcome::Outcome;
use super::plan::Plan;
use super::program::Program;
use super::random::pick;
use super::rules::{Disturbance, Rules, some_config, some_path, some_terms};
use crate::trace::Trace;
use crate::world::{End, World};
use ironwarp_rnic::connect::{Agreed, MpaMode, Terms};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::{FaultPlan, Rng};
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::Status;
use std::time::Duration;

/// Number of steps in the plan of a connection, initially and after a reset.
const STEPS: [usize; 2] = [24, 6];
/// Longer than any latency or fault, shorter than the time in which a peer must close.
const QUIET: Duration = Duration::from_millis(10);
/// Upper bound on the turns of a run. A run that exceeds it makes no progress.
const TURNS: u32 = 1_000_000;

/// Fault plans, from none to the worst.
const PLANS: [&str; 4] = [
    "none",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.2",
    "split=0.1,delay=1us..100us@0.05,stall=50us@0.01,no-receive@0.1,cut@0.02",
];

/// Two connected programs with work to do.
pub(super) struct Scene {
    pub(super) world: World,
    pub(super) programs: [Program; 2],
    setup: MpaMode,
    pub(super) disturbance: Disturbance,
    /// Number of receives of shared queues, and of completions, that each program lost by resets.
    pub(super) lost: [usize; 2],
    /// Number of operations on the counters, before and after resets.
    pub(super) counts: [usize; 2],
    done: Outcome,
    pub(super) rng: Rng,
}

impl Scene {
    pub(super) fn new(seed: u64, world: fn(FaultPlan, u64) -> World) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let (rules, disturbance) = Rules::some(&mut rng);
        let plan = if rules.strict_receive { PLANS[0] } else { pick(&mut rng, &PLANS) };
        let rules = Rules { withholds: plan.contains("no-receive"), ..rules };
        let world = world(plan.parse().expect("a valid plan"), seed);
        let setup = pick(&mut rng, &[MpaMode::PeerToPeer, MpaMode::ClientServer, MpaMode::Unenhanced]);
        let programs = [0, 1].map(|number| {
            let completes = pick(&mut rng, &[Completes::WhenSent, Completes::WhenAcknowledged]);
            Program::new(number, some_config(&mut rng, &rules, number), completes, rules, world.timers())
        });
        let (lost, counts, done) = ([0; 2], [0; 2], Outcome::default());
        Self { world, programs, setup, disturbance, lost, counts, done, rng }
    }

    pub(super) fn trace(&self) -> Trace {
        self.world.trace().clone()
    }

    pub(super) fn run(mut self) -> Outcome {
        let rules = self.programs[0].rules;
        self.live(0);
        // A completion queue that overran is unusable.
        if rules.overflow.is_none() && self.rng.below(3) == 0 {
            self.disturbance = Disturbance::None;
            self.begin_again();
            self.live(1);
        }
        rules.count(&mut self.done.coverage);
        self.done.time = self.world.clock().now();
        self.done.faults = self.world.faults().report().counts;
        for program in &mut self.programs {
            program.expect_untouched();
            if program.cqs.iter().any(|model| model.cq.has_overrun()) {
                program.coverage.met(Feature::Overrun);
            }
            self.done.coverage += &program.coverage;
        }
        self.done
    }

    /// Plans, connects, runs and ends all connections once.
    fn live(&mut self, life: usize) {
        let rules = self.programs[0].rules;
        for connection in 0..self.programs[0].connections.len() {
            let mut plan = Plan { rng: &mut self.rng, connection, programs: &mut self.programs };
            plan.make(STEPS[life]);
            if let Disturbance::FaultyRequest(who) = self.disturbance
                && connection == 0
            {
                plan.inject_defect(who);
            }
        }
        for connection in 0..self.programs[0].connections.len() {
            self.bring_up(connection);
        }
        for program in &mut self.programs {
            program.set_trace(self.world.trace());
        }
        self.world.trace().note(0, format_args!("{rules:?}, {:?}", self.disturbance));
        if rules.strict_receive {
            // All receives are posted before the first message.
            self.finish_work();
        }
        for connection in 0..self.programs[0].connections.len() {
            self.connect(connection);
        }
        self.play();
        self.judge();
        self.close();
        for program in &self.programs {
            for connection in &program.connections {
                self.done.succeeded +=
                    connection.outcomes.iter().filter(|end| **end == Some(Status::Success)).count();
                self.done.received += connection.received;
            }
        }
    }

    fn connect(&mut self, connection: usize) {
        let (path, setup) = (some_path(&mut self.rng), self.setup);
        let terms: [Terms; 2] = [(); 2].map(|()| some_terms(&mut self.rng, setup));
        let [left, right] = &self.programs;
        let end = |program: &'_ Program| (program.connections[connection].qp.clone(), program.arena.clone());
        let [(one, here), (other, there)] = [end(left), end(right)];
        self.world.connect(path, setup, [(&one, &here, terms[0]), (&other, &there, terms[1])]);
        for program in &mut self.programs {
            let end = self.world.end(&program.connections[connection].qp).expect("connected");
            program.connections[connection].acknowledged =
                program.completes == Completes::WhenAcknowledged && is_acknowledged(end.agreed());
        }
    }

    /// Lets the programs work until nothing happens any more. They post at random moments.
    fn play(&mut self) {
        let eager = self.rng.below(3);
        for turn in 0.. {
            assert!(turn < TURNS, "no progress");
            if self.rng.below(100) == 0 {
                self.disturb();
            }
            let acts = self.rng.below(8) <= eager;
            let happened = acts && self.act() || self.world.react() || self.is_quiet() && self.finish_work();
            if !happened && !self.world.step() {
                break;
            }
            // Recent completions have not been polled yet.
            if self.programs[0].rules.overflow.is_none() && self.rng.below(32) == 0 {
                let who = usize::from(self.rng.below(2) == 0);
                self.programs[who].change_cq(&mut self.rng);
            }
            // Sometimes several events happen before a program polls.
            if self.programs[0].rules.prompt || self.rng.below(4) > 0 {
                self.check();
            }
        }
        self.check();
        let cqs = self.programs.iter().flat_map(|program| &program.cqs);
        cqs.for_each(CqModel::expect_told);
    }

    /// Performs one action of one program.
    fn act(&mut self) -> bool {
        let who = usize::from(self.rng.below(2) == 0);
        let (program, peer) = pair(&mut self.programs, who);
        let rng = &mut self.rng;
        let connection = usize::try_from(rng.below(program.connections.len() as u64)).expect("an index");
        match rng.below(16) {
            0..=6 => program.post_requests(rng, connection, peer),
            7..=11 => program.post_receive(rng, peer),
            12 => program.limit(rng),
            13 => {
                self.check();
                self.programs[who].random_transition(&mut self.rng, connection);
                true
            }
            14 if self.programs[who].rules.overflow.is_none() => {
                self.check();
                self.programs[who].arm(&mut self.rng);
                true
            }
            _ => {
                self.poll(who, connection);
                true
            }
        }
    }

    /// Polls, which drives the connection without a reason.
    fn poll(&self, who: usize, connection: usize) {
        let connection = &self.programs[who].connections[connection];
        if let Some(end) = self.world.end(&connection.qp).filter(|_| !connection.fate.reset) {
            end.poll();
        }
    }

    fn disturb(&mut self) {
        let connection = 0;
        match self.disturbance {
            Disturbance::None | Disturbance::FaultyRequest(_) => {}
            Disturbance::Disconnect(who) => self.disconnect(who, connection),
            Disturbance::TakeAway(who) => self.programs[who].take_away(&mut self.rng),
            Disturbance::Revoke(who) => {
                let revoked =
                    pick(&mut self.rng, &[Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC]);
                let connection = &mut self.programs[who].connections[connection];
                connection.qp.set_rights(Rights::REMOTE - revoked);
                assert_eq!(connection.qp.query().rights, Rights::REMOTE - revoked);
                connection.fate.revoked = true;
                self.programs[who].coverage.met(Feature::RightsRevoked);
            }
            Disturbance::Abort(who) => {
                let connection = &mut self.programs[who].connections[connection];
                if connection.is_well() && connection.qp.state() != State::Error {
                    connection.fate.aborted = true;
                    connection.qp.abort(QpError::TimedOut("a sign of life"));
                    self.programs[who].coverage.met(Feature::Aborted);
                }
            }
            Disturbance::Move(who, to) => self.move_away(who, connection, to),
        }
    }

    /// Ends the connection by a state transition.
    fn move_away(&mut self, who: usize, connection: usize, to: State) {
        let (program, rng) = (&mut self.programs[who], &mut self.rng);
        if !program.connections[connection].is_well() {
            return;
        }
        // Half of the time, from the drained state.
        if program.rules.drains && program.connections[connection].drain == Drain::No && rng.below(2) == 0 {
            return;
        }
        if to == State::Reset { self.reset(who, connection) } else { program.step(connection, to) }
    }

    /// Disconnects after sending what was posted.
    pub(super) fn disconnect(&mut self, who: usize, connection: usize) {
        let program = &mut self.programs[who];
        let this = &mut program.connections[connection];
        if this.is_well() && !this.qp.is_closing() {
            this.disconnected = Some(this.posted);
            this.qp.disconnect();
            program.note(format_args!("disconnects connection {connection}"));
            program.coverage.met(Feature::Disconnected);
        }
    }

    /// Whether so little happens that waiting any longer would let timeouts expire.
    fn is_quiet(&self) -> bool {
        self.world.quiet_for().is_none_or(|time| time > QUIET)
    }

    /// Does what is left to do, now that nothing else happens.
    fn finish_work(&mut self) -> bool {
        self.check();
        for who in [0, 1] {
            let (program, peer) = pair(&mut self.programs, who);
            let rng = &mut self.rng;
            while program.post_receive(rng, peer) {
                if !program.rules.strict_receive {
                    return true;
                }
            }
            for connection in 0..program.connections.len() {
                let state = program.connections[connection].qp.state();
                if state == State::ReadyToReceive && program.connections[connection].qp.is_linked() {
                    program.step(connection, State::ReadyToSend);
                    return true;
                }
                if program.connections[connection].qp.is_linked()
                    && program.post_requests(rng, connection, peer)
                {
                    return true;
                }
            }
        }
        self.resume() || self.fail_waiting_for_closed_peers() || self.poll_all()
    }

    /// Polls the programs that have not, when nothing else is left, because others wait for them.
    fn poll_all(&mut self) -> bool {
        let Some(who) = self.programs[0].rules.overflow else { return false };
        let (program, peer) = pair(&mut self.programs, who);
        let waiting = program.cqs.iter().any(|model| !model.cq.is_empty());
        program.poll(peer);
        waiting
    }

    /// Resumes drained queues. One that is not drained by now never will be.
    fn resume(&mut self) -> bool {
        for program in &mut self.programs {
            for connection in 0..program.connections.len() {
                let qp = &program.connections[connection].qp;
                if qp.state() == State::Drained && !qp.is_refusing() {
                    let gone = self.world.end(&program.connections[connection].qp).is_none_or(End::is_closed);
                    assert!(
                        gone || program.connections[connection].drain == Drain::Done,
                        "connection {connection} does not drain"
                    );
                    program.step(connection, State::ReadyToSend);
                    return true;
                }
            }
        }
        false
    }

    /// Fails requests that wait for a peer that has closed.
    fn fail_waiting_for_closed_peers(&mut self) -> bool {
        for program in &mut self.programs {
            for connection in &mut program.connections {
                let gone = self.world.end(&connection.qp).is_some_and(End::is_closed);
                if gone && connection.is_well() && connection.qp.has_work() && !connection.fate.aborted {
                    connection.fate.aborted = true;
                    connection.qp.abort(QpError::Unreachable);
                    program.coverage.met(Feature::PeerGone);
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn check(&mut self) {
        for who in [0, 1] {
            let rules = self.programs[who].rules;
            // A program whose queues overrun does not poll them.
            if !rules.overflows(who) || self.programs[who].cqs.iter().any(|model| model.cq.has_overrun()) {
                let (program, peer) = pair(&mut self.programs, who);
                program.poll(peer);
            }
        }
    }
}

fn is_acknowledged(agreed: &Agreed) -> bool {
    agreed.ord > 0 && agreed.mode != MpaMode::Unenhanced
}

/// Returns a program and its peer.
fn pair(programs: &mut [Program; 2], who: usize) -> (&mut Program, &Program) {
    let [left, right] = programs;
    if who == 0 { (left, right) } else { (right, left) }
}
