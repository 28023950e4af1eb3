//! State transitions of queue pairs: all legal transitions, and all illegal ones, which must change nothing.

use super::connection::{Connection, Drain, Fate};
use super::coverage::Feature;
use super::program::Program;
use super::random::pick;
use super::scene::Scene;
use super::supply::{Receiving, Supply};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::qp::{IllegalTransition, State};

impl Program {
    /// Attempts an illegal transition, and checks that it is refused and changes nothing.
    fn try_illegal(&mut self, connection: usize, to: State) {
        let qp = &self.connections[connection].qp;
        let from = qp.state();
        let (work, linked) = (qp.has_work(), qp.is_linked());
        assert_eq!(qp.modify(to), Err(IllegalTransition { from, to }));
        let context = qp.query();
        assert_eq!(
            (context.state, qp.has_work(), context.linked),
            (from, work, linked),
            "a refused transition changed something"
        );
        self.coverage.record_transition(from, to, false);
    }

    /// Performs a legal transition other than a reset.
    pub(super) fn step(&mut self, connection: usize, to: State) {
        let from = self.connections[connection].qp.state();
        self.note(format_args!("moves connection {connection} from {from} to {to}"));
        let this = &mut self.connections[connection];
        match (to, this.drain) {
            (State::Drained, _) => this.drain = Drain::Requested(this.posted),
            (State::ReadyToSend, Drain::Requested(_)) => {
                this.drain = Drain::No;
                self.coverage.record(Feature::DrainCutShort);
            }
            (State::ReadyToSend, _) => this.drain = Drain::No,
            _ => {}
        }
        let this = &mut self.connections[connection];
        this.fate.moved |= to == State::Error;
        this.qp.modify(to).expect("a legal transition");
        let now = this.qp.state();
        // The queue pair may fail at once, or stay drained because a registration is refused again.
        let refused = now == State::Drained && this.qp.is_refusing();
        assert!(now == to || now == State::Error || refused, "{now} instead of {to}");
        self.coverage.record_transition(from, to, true);
    }

    /// Attempts a random transition: an illegal one, or a legal one that does not end the connection.
    pub(super) fn random_transition(&mut self, rng: &mut Rng, connection: usize) {
        use State::{Drained, Error, Init, ReadyToReceive, Reset};
        if self.connections[connection].fate.reset {
            return;
        }
        let (from, to) = (self.connections[connection].qp.state(), pick(rng, &State::ALL));
        if !from.may_become(to) {
            return self.try_illegal(connection, to);
        }
        match (from, to) {
            (Error, Error) => self.step(connection, to),
            // Transitions that end or connect the queue pair happen elsewhere.
            (_, Reset | Error) | (Init, ReadyToReceive) => {}
            (_, Drained) if !self.rules.drains => {}
            // The queue pair is moved back when the refused registration has completed.
            _ if self.connections[connection].qp.is_refusing() => {}
            _ => self.step(connection, to),
        }
    }

    /// Performs one transition towards the state in which a queue pair can be connected, or sometimes a detour. Returns
    /// whether the queue pair can be connected.
    fn advance_to_connectable(&mut self, rng: &mut Rng, connection: usize) -> bool {
        let state = self.connections[connection].qp.state();
        let next = match state {
            _ if !self.rules.manual => return true,
            State::ReadyToSend | State::Drained => return true,
            State::Reset => State::Init,
            State::Init => State::ReadyToReceive,
            State::ReadyToReceive => State::ReadyToSend,
            State::SendError | State::Error => State::Reset,
        };
        match (next, rng.below(8)) {
            (State::Reset, _) | (_, 0) => self.reset_unconnected(connection),
            (_, 1) => self.step(connection, State::Error),
            (State::ReadyToSend, _) => return true, // the last transition happens after connecting
            _ => self.step(connection, next),
        }
        false
    }

    /// Resets a queue pair that was never connected.
    fn reset_unconnected(&mut self, connection: usize) {
        self.coverage.record_transition(self.connections[connection].qp.state(), State::Reset, true);
        self.forget_events();
        self.connections[connection].qp.reset();
        let fresh = self.new_qp(connection);
        let this = &mut self.connections[connection];
        (this.qp, this.receives_failed, this.fate) = (fresh, 0, Fate::default());
        this.events = Default::default();
        if self.rules.receiving == Receiving::Own {
            self.supplies[connection].forget();
        }
    }

    /// Attempts all illegal transitions from the current state, and that from the error state to itself.
    fn try_harmless_transitions(&mut self, connection: usize) {
        let from = self.connections[connection].qp.state();
        for to in State::ALL {
            if !from.may_become(to) {
                self.try_illegal(connection, to);
            } else if (from, to) == (State::Error, State::Error) {
                self.step(connection, to);
            }
        }
    }
}

impl Scene {
    /// Brings both ends of a connection, by detours, to the state in which they can be connected.
    pub(super) fn bring_up(&mut self, connection: usize) {
        for who in [0, 1] {
            loop {
                let (left, right) = self.programs.split_at_mut(1);
                let (program, peer) =
                    if who == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
                let rng = &mut self.rng;
                program.random_transition(rng, connection);
                if program.connections[connection].qp.state() != State::Error {
                    match rng.below(4) {
                        0 => drop(program.post_requests(rng, connection, peer)),
                        1 if !program.rules.strict_receive => drop(program.post_receive(rng, peer)),
                        _ => {}
                    }
                }
                let connectable = program.advance_to_connectable(rng, connection);
                program.poll(peer);
                if connectable {
                    break;
                }
            }
        }
    }

    /// Resets one end of a connection, whatever its state. Completions that were not polled are discarded.
    pub(super) fn reset(&mut self, who: usize, connection: usize) {
        let program = &mut self.programs[who];
        let from = program.connections[connection].qp.state();
        program.note(format_args!("resets connection {connection}"));
        let before = program.forget_events();
        let qp = program.connections[connection].qp.clone();
        let ready = |program: &Program| program.supplies.iter().map(Supply::ready).sum::<usize>();
        let ready_before = ready(program);
        qp.reset();
        // Messages that had arrived were received and acknowledged, and their completions discarded.
        let taken = ready_before.saturating_sub(ready(program));
        let after: usize = program.cqs.iter().map(|model| model.cq.len()).sum();
        if after < before {
            program.coverage.record(Feature::Purged);
        }
        self.lost[who] += before - after + 1 + taken;
        program.coverage.record_transition(from, State::Reset, true);
        program.connections[connection].fate.reset = true;
        if program.rules.receiving == Receiving::Own {
            program.supplies[connection].forget();
        }
        if let Some(end) = self.world.end(&qp) {
            end.release();
        }
    }

    /// Resets every connection, and creates new queue pairs with the same numbers.
    pub(super) fn reset_all(&mut self) {
        for connection in 0..self.programs[0].connections.len() {
            for who in [0, 1] {
                self.programs[who].try_harmless_transitions(connection);
                self.poll_and_check();
                if !self.programs[who].connections[connection].fate.reset {
                    self.reset(who, connection);
                }
                self.poll_and_check();
                let program = &mut self.programs[who];
                let (fresh, generation) =
                    (program.new_qp(connection), program.connections[connection].generation + 1);
                program.connections[connection] = Connection::new(connection, fresh, generation);
                program.coverage.record(Feature::Reused);
            }
        }
    }
}
