//! Groups of contenders that do the same, and the metrics that compare them. `catalogue.rs` and `wan.rs` have them all; `rounds.rs`
//! plays them.

use super::contender::{Contender, Figure};

/// Contenders that take turns, so that what the machine does meanwhile hits all alike.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) figure: Figure,
    /// A turn takes so many times as long as others.
    pub(super) patience: u64,
    /// The link that it needs, if it is not this host's own.
    pub(super) link: Option<Link>,
    pub(super) contenders: Vec<Contender>,
    pub(super) metrics: Vec<Metric>,
}

/// A network between two hosts that is far from ideal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// There and back.
    pub(super) round_trip_millis: u32,
    /// Of a million packets in each direction, so many are lost.
    pub(super) lost: u32,
}

/// One row of the result: a contender beside another, or beside the best of several.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) of: &'static str,
    pub(super) baseline: Baseline,
    /// What the ratio has to be, and what it should be: at least, or at most where less is better.
    pub(super) must: Option<f64>,
    pub(super) aim: Option<f64>,
}

#[derive(Clone, Debug)]
pub(super) enum Baseline {
    /// The best of these, in each round.
    Best(&'static [&'static str]),
    /// A value that is not measured, and its name.
    Fixed(f64, &'static str),
}

pub(super) fn metric(
    name: &'static str,
    of: &'static str,
    best: &'static [&'static str],
    must: impl Into<Option<f64>>,
    aim: impl Into<Option<f64>>,
) -> Metric {
    Metric { name, of, baseline: Baseline::Best(best), must: must.into(), aim: aim.into() }
}
