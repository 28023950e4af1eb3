//! The settings of a run, which are chosen at random before it begins.

use super::coverage::{Coverage, Feature};
use super::random::pick;
use super::supply::Receiving;
use crate::link::Path;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{MpaMode, Terms};
use ironwarp_rnic::fault::{Chance, Rng};
use ironwarp_rnic::qp::State;
use std::time::Duration;

/// Capacity of the queues: less than the number of requests.
pub(super) const DEPTH: usize = 6;
/// Settings of both programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Number of connections.
    pub(super) connections: usize,
    pub(super) receiving: Receiving,
    /// Shared receive queues belong to a different domain than the queue pairs.
    pub(super) foreign: bool,
    /// One completion queue for all.
    pub(super) one_cq: bool,
    /// The programs move their queue pairs through the states themselves.
    pub(super) manual: bool,
    /// Send queues are drained occasionally.
    pub(super) drains: bool,
    /// Maximum length of a message, and length of every receive.
    pub(super) longest: usize,
    /// Which ends use the private protocol.
    pub(super) private: [bool; 2],
    /// Both ends use the private protocol, so a Send may have immediate data.
    pub(super) immediate: bool,
    pub(super) strict_receive: bool,
    pub(super) strict_windows: bool,
    /// A refused registration is retried (requirement M7).
    pub(super) reactive: bool,
    /// Posted receives are withheld at random.
    pub(super) withholds: bool,
    /// The programs poll after each event.
    pub(super) prompt: bool,
    /// The program whose completion queues are too small and never polled.
    pub(super) overflow: Option<usize>,
    /// Capacity of the completion queues of each program.
    pub(super) room: [usize; 2],
}

/// What a program does to its adapter during a run, or to its first queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    None,
    /// Disconnects with work outstanding in both directions. Its own posted requests must not be lost.
    Disconnect(usize),
    /// Unmaps or deregisters memory.
    TakeAway(usize),
    /// Revokes rights of its peer.
    Revoke(usize),
    /// Posts a request that must fail.
    FaultyRequest(usize),
    /// Ends the connection by a state transition.
    Move(usize, State),
    /// Its driver aborts the connection.
    Abort(usize),
}

impl Rules {
    pub(super) fn some(rng: &mut Rng) -> (Self, Disturbance) {
        let who = usize::from(rng.below(2) == 0);
        let disturbance = match rng.below(18) {
            0..=1 => Disturbance::Disconnect(who),
            2..=3 => Disturbance::TakeAway(who),
            4 => Disturbance::Revoke(who),
            5..=10 => Disturbance::FaultyRequest(who),
            11..=12 => Disturbance::Move(who, State::Reset),
            13 => Disturbance::Move(who, State::Error),
            14 => Disturbance::Abort(who),
            _ => Disturbance::None,
        };
        let overflow = (disturbance == Disturbance::None && rng.below(4) == 0).then_some(who);
        let private = if rng.below(2) == 0 { [true; 2] } else { [0, 1].map(|_| rng.below(2) == 0) };
        let rules = Self {
            connections: 1 + usize::try_from(rng.below(3)).expect("a small number"),
            receiving: pick(rng, &Receiving::ALL),
            foreign: rng.below(2) == 0,
            one_cq: rng.below(3) == 0,
            manual: rng.below(2) == 0,
            // Polling tells when the queue is drained.
            drains: rng.below(2) == 0 && overflow.is_none(),
            longest: pick(rng, &[3000, 3000, 20_000, 100_000]),
            private,
            immediate: private == [true; 2],
            strict_receive: rng.below(8) == 0,
            strict_windows: rng.below(6) == 0,
            // Requests posted before a disconnect must be done, and a program that does not poll cannot retry.
            reactive: rng.below(2) == 0
                && !matches!(disturbance, Disturbance::Disconnect(_))
                && overflow.is_none(),
            withholds: false,
            prompt: overflow.is_none() && rng.below(2) == 0,
            overflow,
            room: [0, 1].map(|number| if overflow == Some(number) { 5 } else { 1000 }),
        };
        (rules, disturbance)
    }

    /// Whether the completion queues of this program overrun.
    pub(super) fn overflows(&self, program: usize) -> bool {
        self.overflow == Some(program)
    }

    /// Capacity for receives: less than the number of messages, unless all must be posted before the first message.
    pub(super) const fn receive_depth(&self) -> usize {
        if self.strict_receive { 200 } else { DEPTH }
    }

    /// Counts the settings of this run.
    pub(super) fn count(&self, coverage: &mut Coverage) {
        let traits = [
            (Feature::StrictReceive, self.strict_receive),
            (Feature::StrictWindows, self.strict_windows),
            (Feature::OwnReceives, self.receiving == Receiving::Own),
            (Feature::SharedReceives, self.receiving == Receiving::Shared),
            (Feature::NamedReceives, self.receiving == Receiving::Named),
            (Feature::ForeignDomain, self.foreign && self.receiving != Receiving::Own),
            (Feature::OneCompletionQueue, self.one_cq),
            (Feature::Manual, self.manual),
            (Feature::ForeignPeer, !self.immediate),
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

pub(super) fn some_config(rng: &mut Rng, rules: &Rules, number: usize) -> DeviceConfig {
    DeviceConfig {
        private: rules.private[number],
        park: pick(rng, &[1, 3000, 256 << 10]),
        strict_receive: rules.strict_receive,
        strict_windows: rules.strict_windows,
        ..DeviceConfig::default()
    }
}

pub(super) fn some_terms(rng: &mut Rng, setup: MpaMode) -> Terms {
    let [ird, ord] = [(); 2].map(|()| pick(rng, &[1, 2, 16]));
    // Without the IRD/ORD word, the ends must know each other's depths.
    let ird = if setup == MpaMode::Unenhanced { 16 } else { ird };
    Terms { ird, max_ird: 16, ord, crc: rng.below(4) == 0, markers: rng.below(4) == 0 }
}
