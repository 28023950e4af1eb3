//! What a run is like: chosen at random before it begins.

use super::coverage::{Coverage, Trait};
use super::pick;
use super::supply::Receiving;
use crate::link::Path;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::{Setup, Terms};
use ironwarp_rnic::fault::{Chance, Rng};
use ironwarp_rnic::qp::State;
use std::time::Duration;

/// Settings that both programs have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How many connections there are.
    pub(super) lines: usize,
    pub(super) receiving: Receiving,
    /// Shared receive queues are of another domain than queue pairs.
    pub(super) foreign: bool,
    /// One completion queue for all.
    pub(super) one_cq: bool,
    /// The programs move their queue pairs through the states.
    pub(super) by_hand: bool,
    /// Send queues are drained now and then.
    pub(super) drains: bool,
    /// No message is longer, and every receive is as long.
    pub(super) longest: usize,
    /// Which end speaks with others of its kind as such.
    pub(super) private: [bool; 2],
    /// Both do, so a Send may have immediate data.
    pub(super) immediate: bool,
    pub(super) strict_receive: bool,
    pub(super) strict_windows: bool,
    /// A registration that is refused is tried again (requirement M7).
    pub(super) reactive: bool,
    /// Posted receives are not always found.
    pub(super) withholds: bool,
    /// The programs poll after each thing that happens.
    pub(super) prompt: bool,
    /// Whose completion queues are too small, and never polled.
    pub(super) overflow: Option<usize>,
    /// Room in the completion queues of each program.
    pub(super) room: [usize; 2],
}

/// What a program does to its adapter in the middle of a run; where it does it to one queue pair, to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mischief {
    None,
    /// Disconnects, with work under way in both directions. What it has posted itself must not be lost.
    Disconnect(usize),
    /// Takes memory away.
    TakeAway(usize),
    /// Allows its peer less.
    Revoke(usize),
    /// Posts a request that must fail.
    Crime(usize),
    /// Ends it by a step of its state.
    Move(usize, State),
    /// Its driver gives it up.
    Abort(usize),
}

impl Rules {
    pub(super) fn some(rng: &mut Rng) -> (Self, Mischief) {
        let who = usize::from(rng.below(2) == 0);
        let mischief = match rng.below(18) {
            0..=1 => Mischief::Disconnect(who),
            2..=3 => Mischief::TakeAway(who),
            4 => Mischief::Revoke(who),
            5..=10 => Mischief::Crime(who),
            11..=12 => Mischief::Move(who, State::Reset),
            13 => Mischief::Move(who, State::Error),
            14 => Mischief::Abort(who),
            _ => Mischief::None,
        };
        let overflow = (mischief == Mischief::None && rng.below(4) == 0).then_some(who);
        let private = if rng.below(2) == 0 { [true; 2] } else { [0, 1].map(|_| rng.below(2) == 0) };
        let rules = Self {
            lines: 1 + usize::try_from(rng.below(3)).expect("a small number"),
            receiving: pick(rng, &Receiving::ALL),
            foreign: rng.below(2) == 0,
            one_cq: rng.below(3) == 0,
            by_hand: rng.below(2) == 0,
            // What is drained is known by polling.
            drains: rng.below(2) == 0 && overflow.is_none(),
            longest: pick(rng, &[3000, 3000, 20_000, 100_000]),
            private,
            immediate: private == [true; 2],
            strict_receive: rng.below(8) == 0,
            strict_windows: rng.below(6) == 0,
            // What was posted before a program disconnects shall be done; and who does not poll does not hear of it.
            reactive: rng.below(2) == 0 && !matches!(mischief, Mischief::Disconnect(_)) && overflow.is_none(),
            withholds: false,
            prompt: overflow.is_none() && rng.below(2) == 0,
            overflow,
            room: [0, 1].map(|number| if overflow == Some(number) { 5 } else { 1000 }),
        };
        (rules, mischief)
    }

    /// Whether the completion queue of this program is made to overrun.
    pub(super) fn overflows(&self, program: usize) -> bool {
        self.overflow == Some(program)
    }

    /// Room for receives: less than there are messages, unless all must be there before the first comes.
    pub(super) const fn receive_depth(&self) -> usize {
        if self.strict_receive { 200 } else { super::program::DEPTH }
    }

    /// What kind of run this is.
    pub(super) fn count(&self, coverage: &mut Coverage) {
        let traits = [
            (Trait::StrictReceive, self.strict_receive),
            (Trait::StrictWindows, self.strict_windows),
            (Trait::OwnReceives, self.receiving == Receiving::Own),
            (Trait::SharedReceives, self.receiving == Receiving::Shared),
            (Trait::NamedReceives, self.receiving == Receiving::Named),
            (Trait::ForeignDomain, self.foreign && self.receiving != Receiving::Own),
            (Trait::OneCompletionQueue, self.one_cq),
            (Trait::ByHand, self.by_hand),
            (Trait::Stranger, !self.immediate),
        ];
        for (what, _) in traits.into_iter().filter(|(_, is)| *is) {
            coverage.met(what);
        }
    }
}

pub(super) fn some_path(rng: &mut Rng) -> Path {
    Path {
        capacity: pick(rng, &[700, 5000, 64 << 10, 1 << 20]),
        latency: Duration::from_nanos(rng.below(20_000)),
        split: pick(rng, &[Chance::NEVER, Chance::in_a_million(300_000), Chance::ALWAYS]),
        segment_size: pick(rng, &[536, 1448, 8948]),
    }
}

pub(super) fn some_config(rng: &mut Rng, rules: &Rules, number: usize) -> Config {
    Config {
        private: rules.private[number],
        park: pick(rng, &[1, 3000, 256 << 10]),
        strict_receive: rules.strict_receive,
        strict_windows: rules.strict_windows,
        ..Config::default()
    }
}

pub(super) fn some_terms(rng: &mut Rng, setup: Setup) -> Terms {
    let [ird, ord] = [(); 2].map(|()| pick(rng, &[1, 2, 16]));
    // Without the word for it, the ends have to know each other's depths.
    let ird = if setup == Setup::Unenhanced { 16 } else { ird };
    Terms { ird, max_ird: 16, ord, crc: rng.below(4) == 0, markers: rng.below(4) == 0 }
}
