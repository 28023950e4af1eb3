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
    /// The receive queues that the queue pairs use.
    pub(super) receiving: Receiving,
    /// Whether shared receive queues belong to another domain than the queue pairs.
    pub(super) foreign: bool,
    /// Whether each program has one completion queue for sends and receives.
    pub(super) one_cq: bool,
    /// Whether the programs move their queue pairs through the states themselves.
    pub(super) manual: bool,
    /// Whether send queues are drained occasionally.
    pub(super) drains: bool,
    /// Maximum length of a message, and length of every receive.
    pub(super) max_len: usize,
    /// Which ends use the private protocol.
    pub(super) private: [bool; 2],
    /// Whether both ends use the private protocol, so that a Send may have immediate data.
    pub(super) immediate: bool,
    pub(super) strict_receive: bool,
    pub(super) strict_windows: bool,
    /// Whether a refused registration is retried (requirement M7).
    pub(super) reactive: bool,
    /// Whether fault injection withholds posted receives at random.
    pub(super) withholds: bool,
    /// Whether the programs poll after each event.
    pub(super) prompt: bool,
    /// The program whose completion queues are too small and never polled.
    pub(super) overflow: Option<usize>,
    /// Capacity of the completion queues of each program.
    pub(super) room: [usize; 2],
}

/// What a program does to its adapter, or to its first queue pair, during a run. The first number is that of the
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    None,
    /// Disconnects with work outstanding in both directions. The program's own posted requests must not be lost.
    Disconnect(usize),
    /// Unmaps or deregisters memory.
    TakeAway(usize),
    /// Revokes rights of its peer.
    Revoke(usize),
    /// Posts a request that must fail.
    FaultyRequest(usize),
    /// Ends the connection by a state transition.
    Move(usize, State),
    /// The driver of the queue pair aborts the connection.
    Abort(usize),
}

impl Rules {
    /// Returns random settings and a random disturbance.
    pub(super) fn random(rng: &mut Rng) -> (Self, Disturbance) {
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
            // A program learns by polling that a queue is drained, and a program with an overflow does not poll.
            drains: rng.below(2) == 0 && overflow.is_none(),
            max_len: pick(rng, &[3000, 3000, 20_000, 100_000]),
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

    /// Returns whether the completion queues of this program overrun.
    pub(super) fn overflows(&self, program: usize) -> bool {
        self.overflow == Some(program)
    }

    /// Returns the depth of receive queues: less than the number of messages, unless all receives must be posted before
    /// the first message.
    pub(super) const fn receive_depth(&self) -> usize {
        if self.strict_receive { 200 } else { DEPTH }
    }

    /// Records in the coverage which settings this run has.
    pub(super) fn record(&self, coverage: &mut Coverage) {
        let features = [
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
        for (what, _) in features.into_iter().filter(|(_, is)| *is) {
            coverage.record(what);
        }
    }
}

/// Returns a random path between two adapters.
pub(super) fn random_path(rng: &mut Rng) -> Path {
    Path {
        capacity: pick(rng, &[700, 5000, 64 << 10, 1 << 20]),
        latency: Duration::from_nanos(rng.below(20_000)),
        split: pick(rng, &[Chance::NEVER, Chance::in_a_million(300_000), Chance::ALWAYS]),
        segment_size: pick(rng, &[536, 1448, 8948]),
    }
}

/// Returns random settings for the adapter of a program, as far as the rules allow.
pub(super) fn random_config(rng: &mut Rng, rules: &Rules, number: usize) -> DeviceConfig {
    DeviceConfig {
        private: rules.private[number],
        park: pick(rng, &[1, 3000, 256 << 10]),
        strict_receive: rules.strict_receive,
        strict_windows: rules.strict_windows,
        ..DeviceConfig::default()
    }
}

/// Returns random terms for one end of a connection.
pub(super) fn random_terms(rng: &mut Rng, setup: MpaMode) -> Terms {
    let [ird, ord] = [(); 2].map(|()| pick(rng, &[1, 2, 16]));
    // In this mode the depths are not negotiated, so the IRD must be at least the largest ORD of the peer.
    let ird = if setup == MpaMode::Unenhanced { 16 } else { ird };
    Terms { ird, max_ird: 16, ord, crc: rng.below(4) == 0, markers: rng.below(4) == 0 }
}
