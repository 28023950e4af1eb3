//! The walk through the states of a queue pair: every step that is legal, and every one that is not, which must change
//! nothing.

use super::coverage::Trait;
use super::line::{Drain, Fate, Line};
use super::pick;
use super::program::Program;
use super::scene::Scene;
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::qp::{IllegalTransition, State};

impl Program {
    /// A step that is not legal: it is refused, and everything is as it was.
    fn try_illegal(&mut self, line: usize, to: State) {
        let qp = &self.lines[line].qp;
        let from = qp.state();
        let (work, linked) = (qp.has_work(), qp.is_linked());
        assert_eq!(qp.modify(to), Err(IllegalTransition { from, to }));
        let context = qp.query();
        assert_eq!(
            (context.state, qp.has_work(), context.linked),
            (from, work, linked),
            "it changes nothing"
        );
        self.coverage.moved(from, to, false);
    }

    /// A step that is legal, other than a reset.
    pub(super) fn step(&mut self, line: usize, to: State) {
        let from = self.lines[line].qp.state();
        self.note(format_args!("moves line {line} from {from} to {to}"));
        let this = &mut self.lines[line];
        match (to, this.drain) {
            (State::Drained, _) => this.drain = Drain::Asked(this.posted),
            (State::ReadyToSend, Drain::Asked(_)) => {
                this.drain = Drain::No;
                self.coverage.met(Trait::DrainCutShort);
            }
            (State::ReadyToSend, _) => this.drain = Drain::No,
            _ => {}
        }
        let this = &mut self.lines[line];
        this.fate.moved |= to == State::Error;
        this.qp.modify(to).expect("it is legal");
        let now = this.qp.state();
        // What goes on may fail at once, or be refused.
        let refused = now == State::Drained && this.qp.is_refusing();
        assert!(now == to || now == State::Error || refused, "{now} instead of {to}");
        self.coverage.moved(from, to, true);
    }

    /// A step at random, which does no harm.
    pub(super) fn wander(&mut self, rng: &mut Rng, line: usize) {
        use State::{Drained, Error, Init, ReadyToReceive, Reset};
        if self.lines[line].fate.reset {
            return;
        }
        let (from, to) = (self.lines[line].qp.state(), pick(rng, &State::ALL));
        if !from.may_become(to) {
            return self.try_illegal(line, to);
        }
        match (from, to) {
            (Error, Error) => self.step(line, to),
            // What ends it, or connects it, has its own time.
            (_, Reset | Error) | (Init, ReadyToReceive) => {}
            (_, Drained) if !self.rules.drains => {}
            // It goes on once it has heard what was refused.
            _ if self.lines[line].qp.is_refusing() => {}
            _ => self.step(line, to),
        }
    }

    /// One step on the way from reset to where a connection can be made. True: it is there.
    fn rise(&mut self, rng: &mut Rng, line: usize) -> bool {
        let state = self.lines[line].qp.state();
        let next = match state {
            _ if !self.rules.by_hand => return true,
            State::ReadyToSend | State::Drained => return true,
            State::Reset => State::Init,
            State::Init => State::ReadyToReceive,
            State::ReadyToReceive => State::ReadyToSend,
            State::SendError | State::Error => State::Reset,
        };
        match (next, rng.below(8)) {
            (State::Reset, _) | (_, 0) => self.begin_anew(line),
            (_, 1) => self.step(line, State::Error),
            (State::ReadyToSend, _) => return true, // and goes on when it likes
            _ => self.step(line, next),
        }
        false
    }

    /// A queue pair that was never connected is reset.
    fn begin_anew(&mut self, line: usize) {
        self.coverage.moved(self.lines[line].qp.state(), State::Reset, true);
        self.forget_events();
        self.lines[line].qp.reset();
        let fresh = self.new_qp(line);
        let this = &mut self.lines[line];
        (this.qp, this.receives_failed, this.fate) = (fresh, 0, Fate::default());
        this.events = Default::default();
        if self.rules.receiving == Receiving::Own {
            self.supplies[line].forget();
        }
    }

    /// The steps out of a state where nothing can be broken any more.
    fn try_all(&mut self, line: usize) {
        let from = self.lines[line].qp.state();
        for to in State::ALL {
            if !from.may_become(to) {
                self.try_illegal(line, to);
            } else if (from, to) == (State::Error, State::Error) {
                self.step(line, to);
            }
        }
    }
}

impl Scene {
    /// Brings both ends of a line to where a connection can be made, by detours.
    pub(super) fn bring_up(&mut self, line: usize) {
        for who in [0, 1] {
            loop {
                let (left, right) = self.programs.split_at_mut(1);
                let (program, peer) =
                    if who == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
                let rng = &mut self.rng;
                program.wander(rng, line);
                if program.lines[line].qp.state() != State::Error {
                    match rng.below(4) {
                        0 => drop(program.post_requests(rng, line, peer)),
                        1 if !program.rules.strict_receive => drop(program.post_receive(rng, peer)),
                        _ => {}
                    }
                }
                let there = program.rise(rng, line);
                program.poll(peer);
                if there {
                    break;
                }
            }
        }
    }

    /// Resets one end of a line in the middle of whatever it does. Completions that were not polled are taken back.
    pub(super) fn reset(&mut self, who: usize, line: usize) {
        let program = &mut self.programs[who];
        let from = program.lines[line].qp.state();
        program.note(format_args!("resets line {line}"));
        let before = program.forget_events();
        let qp = program.lines[line].qp.clone();
        qp.reset();
        let after: usize = program.watches.iter().map(|watch| watch.cq.len()).sum();
        if after < before {
            program.coverage.met(Trait::Purged);
        }
        self.lost[who] += before - after + 1;
        program.coverage.moved(from, State::Reset, true);
        program.lines[line].fate.reset = true;
        if program.rules.receiving == Receiving::Own {
            program.supplies[line].forget();
        }
        if let Some(end) = self.world.end(&qp) {
            end.release();
        }
    }

    /// Every line is reset, and begins a new life under its old number.
    pub(super) fn begin_again(&mut self) {
        for line in 0..self.programs[0].lines.len() {
            for who in [0, 1] {
                self.programs[who].try_all(line);
                self.check();
                if !self.programs[who].lines[line].fate.reset {
                    self.reset(who, line);
                }
                self.check();
                let program = &mut self.programs[who];
                let (fresh, life) = (program.new_qp(line), program.lines[line].generation + 1);
                program.lines[line] = Line::new(line, fresh, life);
                program.coverage.met(Trait::Reused);
            }
        }
    }
}
