//! A run: two programs post the planned requests over their connections, and disturb their adapters meanwhile.

use super::connection::Drain;
use super::coverage::Feature;
use super::cq_model::CqModel;
use super::moving::Moves;
use super::outcome::Outcome;
use super::plan::Plan;
use super::program::Program;
use super::random::pick;
use super::routes::RouteRequests;
use super::rules::{Disturbance, Rules, random_config, random_path, random_terms};
use crate::trace::Trace;
use crate::world::{End, World};
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, MpaMode, Terms};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::{FaultPlan, Rng};
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::Status;
use std::time::Duration;

/// Number of steps in the plan of a connection: in the first generation, and in the second, after a reset.
const STEPS: [usize; 2] = [24, 6];
/// If the next event is later than this, nothing happens any more. Longer than any latency or fault, but shorter than
/// the time in which a peer must close.
const QUIET_TIME: Duration = Duration::from_millis(10);
/// Maximum number of turns of a run. A run that takes more makes no progress.
const MAX_TURNS: u32 = 1_000_000;

/// Fault plans, from no faults to the most severe.
const FAULT_PLANS: [&str; 4] = [
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
    /// What one of the programs does to its adapter during the run.
    pub(super) disturbance: Disturbance,
    /// Upper bound on the receives of shared queues that each program lost by resets.
    pub(super) lost: [usize; 2],
    /// Number of operations on the peer's counter that each program has posted, before and after resets.
    pub(super) counts: [usize; 2],
    outcome: Outcome,
    pub(super) rng: Rng,
    /// The requests to send by another route.
    pub(super) routes: RouteRequests,
    /// When programs move to another function.
    moves: Moves,
}

impl Scene {
    /// Chooses the settings of a run at random, and creates both programs. `world` creates the world, with or without a
    /// trace.
    pub(super) fn new(seed: u64, world: fn(FaultPlan, u64) -> World) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let (rules, disturbance) = Rules::random(&mut rng);
        let plan = if rules.strict_receive { FAULT_PLANS[0] } else { pick(&mut rng, &FAULT_PLANS) };
        let rules = Rules { withholds: plan.contains("no-receive"), ..rules };
        let world = world(plan.parse().expect("a valid plan"), seed);
        let setup = pick(&mut rng, &[MpaMode::PeerToPeer, MpaMode::ClientServer, MpaMode::Unenhanced]);
        let routes = RouteRequests::random(seed);
        let mut tag_rng = Rng::stream(seed, 4);
        let tag_instances = [(); 2].map(|()| pick(&mut tag_rng, &[1, 2, 256, 256]));
        let programs = [0, 1].map(|number| {
            let completes = pick(&mut rng, &[Completes::WhenSent, Completes::WhenAcknowledged]);
            let config = random_config(&mut rng, &rules, number);
            let shared_memory = routes.announces[number];
            let config = DeviceConfig { shared_memory, tag_instances: tag_instances[number], ..config };
            Program::new(number, config, completes, rules, world.timers())
        });
        let (lost, counts, outcome) = ([0; 2], [0; 2], Outcome::default());
        let moves = Moves::random(seed);
        Self { world, programs, setup, disturbance, lost, counts, outcome, rng, routes, moves }
    }

    /// Returns the trace of the run.
    pub(super) fn trace(&self) -> Trace {
        self.world.trace().clone()
    }

    /// Runs one generation of connections, or two. Panics if a check fails.
    pub(super) fn run(mut self) -> Outcome {
        let rules = self.programs[0].rules;
        self.run_generation(0);
        // An overrun completion queue cannot be used for a second generation.
        if rules.overflow.is_none() && self.rng.below(3) == 0 {
            self.disturbance = Disturbance::None;
            self.reset_all();
            self.run_generation(1);
        }
        rules.record(&mut self.outcome.coverage);
        for end in self.world.ends() {
            let [to_tcp, to_shared] = end.followed();
            self.outcome.coverage.record_if(Feature::SharedMemory, to_shared > 0);
            self.outcome.coverage.record_if(Feature::BackToTcp, to_tcp > 0);
            self.outcome.coverage.record_if(Feature::Offered, end.offers() > 0);
        }
        self.outcome.time = self.world.clock().now();
        self.outcome.faults = self.world.faults().report().counts;
        for program in &mut self.programs {
            program.expect_untouched();
            let retired = program.device.table().usage().retired;
            program.coverage.record_if(Feature::Retired, retired > 0);
            if program.cqs.iter().any(|model| model.cq.has_overrun()) {
                program.coverage.record(Feature::Overrun);
            }
            self.outcome.coverage += &program.coverage;
        }
        self.outcome
    }

    /// Plans the requests of all connections, connects them, runs them until nothing happens, checks and disconnects
    /// them.
    fn run_generation(&mut self, generation: usize) {
        let rules = self.programs[0].rules;
        for connection in 0..self.programs[0].connections.len() {
            let mut plan = Plan { rng: &mut self.rng, connection, programs: &mut self.programs };
            plan.plan_steps(STEPS[generation]);
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
        self.run_until_idle();
        self.expect_left();
        self.check_connections();
        self.disconnect_all();
        for program in &self.programs {
            for connection in &program.connections {
                self.outcome.succeeded +=
                    connection.outcomes.iter().filter(|end| **end == Some(Status::Success)).count();
                self.outcome.received += connection.received;
            }
        }
    }

    /// Connects the queue pairs of one connection over a random path.
    fn connect(&mut self, connection: usize) {
        let (path, setup) = (random_path(&mut self.rng), self.setup);
        let terms: [Terms; 2] = [(); 2].map(|()| random_terms(&mut self.rng, setup));
        let [left, right] = &self.programs;
        let objects =
            |program: &'_ Program| (program.connections[connection].qp.clone(), program.arena.clone());
        let [(left_qp, left_memory), (right_qp, right_memory)] = [objects(left), objects(right)];
        self.world.connect(
            path,
            setup,
            [(&left_qp, &left_memory, terms[0]), (&right_qp, &right_memory, terms[1])],
        );
        for program in &mut self.programs {
            let end = self.world.end(&program.connections[connection].qp).expect("connected");
            program.connections[connection].acknowledged =
                program.completes == Completes::WhenAcknowledged && is_acknowledged(end.agreed());
        }
    }

    /// Lets the programs post, poll and disturb their adapters at random moments, until nothing happens any more.
    fn run_until_idle(&mut self) {
        let eager = self.rng.below(3);
        for turn in 0.. {
            assert!(turn < MAX_TURNS, "no progress");
            if self.rng.below(100) == 0 {
                self.disturb();
            }
            self.request_route();
            if let Some(who) = self.moves.next() {
                self.programs[who].move_to_another_function(&mut self.world);
            }
            let acts = self.rng.below(8) <= eager;
            let progressed =
                acts && self.perform_action() || self.world.react() || self.is_quiet() && self.finish_work();
            if !progressed && !self.world.step() {
                break;
            }
            // Completions that were not polled are in the queue now, which makes the change more difficult.
            if self.programs[0].rules.overflow.is_none() && self.rng.below(32) == 0 {
                let who = usize::from(self.rng.below(2) == 0);
                self.programs[who].change_cq(&mut self.rng);
            }
            // Sometimes several events happen before a program polls.
            if self.programs[0].rules.prompt || self.rng.below(4) > 0 {
                self.poll_and_check();
            }
        }
        self.poll_and_check();
        let cqs = self.programs.iter().flat_map(|program| &program.cqs);
        cqs.for_each(CqModel::expect_timers_expired);
    }

    /// Lets a random program perform a random action. Returns false if the action was not possible.
    fn perform_action(&mut self) -> bool {
        let who = usize::from(self.rng.below(2) == 0);
        let (program, peer) = pair(&mut self.programs, who);
        let rng = &mut self.rng;
        let connection = usize::try_from(rng.below(program.connections.len() as u64)).expect("an index");
        match rng.below(16) {
            0..=6 => program.post_requests(rng, connection, peer),
            7..=11 => program.post_receive(rng, peer),
            12 => program.request_limit_event(rng),
            13 => {
                self.poll_and_check();
                self.programs[who].random_transition(&mut self.rng, connection);
                true
            }
            14 if self.programs[who].rules.overflow.is_none() => {
                self.poll_and_check();
                self.programs[who].arm(&mut self.rng);
                true
            }
            _ => {
                self.drive_connection(who, connection);
                true
            }
        }
    }

    /// Has a random end of a random connection send by a random route, in some turns.
    fn request_route(&mut self) {
        if let Some(connection) = self.routes.next(self.programs[0].connections.len()) {
            let qps = self.programs.each_ref().map(|program| &*program.connections[connection].qp);
            self.routes.act(qps, self.world.trace());
        }
        if let Some((connection, who)) = self.routes.next_to_leave(self.programs[0].connections.len()) {
            let qp = &self.programs[who].connections[connection].qp;
            self.routes.leave(connection, who, qp, self.world.trace());
        }
    }

    /// Checks that both ends of each connection that was to leave shared memory have done so, unless it has ended.
    fn expect_left(&mut self) {
        for connection in self.routes.take_leaving() {
            let qps = self.programs.each_ref().map(|program| &*program.connections[connection].qp);
            if qps.iter().any(|qp| qp.error().is_some()) {
                continue;
            }
            for qp in qps {
                assert!(qp.has_left_shared_memory() && qp.is_on_tcp(), "{} has not left", qp.id());
            }
            self.outcome.coverage.record(Feature::LeftSharedMemory);
        }
    }

    /// Drives a connection without an event, as a polling program does.
    fn drive_connection(&self, who: usize, connection: usize) {
        let connection = &self.programs[who].connections[connection];
        if let Some(end) = self.world.end(&connection.qp).filter(|_| !connection.fate.reset) {
            end.poll();
        }
    }

    /// Performs the disturbance of the run, on the first connection. Most disturbances can occur only once.
    fn disturb(&mut self) {
        let connection = 0;
        match self.disturbance {
            Disturbance::None | Disturbance::FaultyRequest(_) => {}
            Disturbance::Disconnect(who) => self.disconnect(who, connection),
            Disturbance::TakeAway(who) => self.programs[who].revoke_memory(&mut self.rng),
            Disturbance::Revoke(who) => {
                let revoked =
                    pick(&mut self.rng, &[Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC]);
                let connection = &mut self.programs[who].connections[connection];
                connection.qp.set_rights(Rights::REMOTE - revoked);
                assert_eq!(connection.qp.query().rights, Rights::REMOTE - revoked);
                connection.fate.revoked = true;
                self.programs[who].coverage.record(Feature::RightsRevoked);
            }
            Disturbance::Abort(who) => {
                let connection = &mut self.programs[who].connections[connection];
                if connection.is_well() && connection.qp.state() != State::Error {
                    connection.fate.aborted = true;
                    connection.qp.abort(QpError::TimedOut("a sign of life"));
                    self.programs[who].coverage.record(Feature::Aborted);
                }
            }
            Disturbance::Move(who, to) => self.end_by_transition(who, connection, to),
        }
    }

    /// Ends a connection by a transition to this state.
    fn end_by_transition(&mut self, who: usize, connection: usize, to: State) {
        let (program, rng) = (&mut self.programs[who], &mut self.rng);
        if !program.connections[connection].is_well() {
            return;
        }
        // In half of the cases, wait until the queue pair is drained, to make the transition from that state.
        if program.rules.drains && program.connections[connection].drain == Drain::No && rng.below(2) == 0 {
            return;
        }
        if to == State::Reset { self.reset(who, connection) } else { program.step(connection, to) }
    }

    /// Disconnects one end of a connection. Posted requests must still be sent.
    pub(super) fn disconnect(&mut self, who: usize, connection: usize) {
        let program = &mut self.programs[who];
        let this = &mut program.connections[connection];
        if this.is_well() && !this.qp.is_closing() {
            this.disconnected = Some(this.posted);
            this.qp.disconnect();
            program.note(format_args!("disconnects connection {connection}"));
            program.coverage.record(Feature::Disconnected);
        }
    }

    /// Returns whether the next event, if there is one, is so late that it must be a timeout.
    fn is_quiet(&self) -> bool {
        self.world.time_to_next_event().is_none_or(|time| time > QUIET_TIME)
    }

    /// Performs one remaining action: posts what was not posted, and resumes or fails what waits. Called when nothing
    /// else happens. Returns false if nothing remains.
    fn finish_work(&mut self) -> bool {
        self.poll_and_check();
        for who in [0, 1] {
            let (program, peer) = pair(&mut self.programs, who);
            let rng = &mut self.rng;
            while program.post_receive(rng, peer) {
                // In strict mode all receives are posted at once, before the connection is made.
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
        self.resume() || self.fail_waiting_for_closed_peers() || self.poll_overflowing()
    }

    /// Polls the program that lets its completion queues overrun, because the other may wait for it. Returns whether
    /// there were completions.
    fn poll_overflowing(&mut self) -> bool {
        let Some(who) = self.programs[0].rules.overflow else { return false };
        let (program, peer) = pair(&mut self.programs, who);
        let waiting = program.cqs.iter().any(|model| !model.cq.is_empty());
        program.poll(peer);
        waiting
    }

    /// Resumes a drained send queue, after checking that draining has finished. Returns false if no queue is drained.
    fn resume(&mut self) -> bool {
        for program in &mut self.programs {
            for connection in 0..program.connections.len() {
                let qp = &program.connections[connection].qp;
                if qp.state() == State::Drained && !qp.is_refusing() {
                    let closed =
                        self.world.end(&program.connections[connection].qp).is_none_or(End::is_closed);
                    assert!(
                        closed || program.connections[connection].drain == Drain::Done,
                        "connection {connection} does not drain"
                    );
                    program.step(connection, State::ReadyToSend);
                    return true;
                }
            }
        }
        false
    }

    /// Aborts a connection whose requests wait for a peer that has closed. Returns false if there is none.
    fn fail_waiting_for_closed_peers(&mut self) -> bool {
        for program in &mut self.programs {
            for connection in &mut program.connections {
                let closed = self.world.end(&connection.qp).is_some_and(End::is_closed);
                if closed && connection.is_well() && connection.qp.has_work() && !connection.fate.aborted {
                    connection.fate.aborted = true;
                    connection.qp.abort(QpError::Unreachable);
                    program.coverage.record(Feature::PeerGone);
                    return true;
                }
            }
        }
        false
    }

    /// Polls the completion queues of both programs, and checks all completions and events.
    pub(super) fn poll_and_check(&mut self) {
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

/// Returns whether requests on a connection with these parameters can be acknowledged.
fn is_acknowledged(agreed: &Agreed) -> bool {
    agreed.ord > 0 && agreed.mode != MpaMode::Unenhanced
}

/// Returns a program and its peer.
fn pair(programs: &mut [Program; 2], who: usize) -> (&mut Program, &Program) {
    let [left, right] = programs;
    if who == 0 { (left, right) } else { (right, left) }
}
