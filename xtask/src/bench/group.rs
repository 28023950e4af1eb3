//! Groups of contenders that do the same, and the metrics that compare them.

use super::contender::Contender;
use super::turn::Figure;

/// Contenders that alternate, so that disturbances of the machine affect all of them.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) figure: Figure,
    /// Factor for the duration of a turn.
    pub(super) patience: u64,
    /// The link between two hosts, or `None` on this host.
    pub(super) link: Option<Link>,
    pub(super) contenders: Vec<Contender>,
    pub(super) metrics: Vec<Metric>,
}

/// A network between two hosts that is far from ideal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Round-trip time.
    pub(super) round_trip_millis: u32,
    /// Lost packets per million, in each direction.
    pub(super) lost: u32,
}

/// A row of the results: a contender compared with another, or with the best of several.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) of: &'static str,
    pub(super) baseline: Baseline,
    /// The required and the desired ratio: minimums, or maximums where less is better.
    pub(super) must: Option<f64>,
    pub(super) aim: Option<f64>,
}

#[derive(Clone, Debug)]
pub(super) enum Baseline {
    /// The best of these contenders, in each round.
    Best(Vec<&'static str>),
    /// A fixed value, and its name.
    Fixed(f64, &'static str),
    /// For a contender beside busy neighbours: its value without them, multiplied by the factor by which bare
    /// TCP's changes.
    Quiet { own: &'static str, bare_quiet: &'static str, bare_busy: &'static str },
}

impl Baseline {
    /// The contenders that it needs.
    pub(super) fn contenders(&self) -> Vec<&'static str> {
        match self {
            Self::Best(names) => names.clone(),
            Self::Fixed(..) => Vec::new(),
            Self::Quiet { own, bare_quiet, bare_busy } => vec![own, bare_quiet, bare_busy],
        }
    }
}

impl Metric {
    pub(super) fn needs(&self, contender: &str) -> bool {
        self.of == contender || self.baseline.contenders().contains(&contender)
    }
}

impl Group {
    /// Removes contenders, and the metrics that need them. A metric that compares with the best of several
    /// compares with those that are left.
    pub(super) fn remove(&mut self, removed: impl Fn(&str) -> bool) {
        self.contenders.retain(|contender| !removed(contender.name));
        self.metrics.retain_mut(|metric| {
            if let Baseline::Best(names) = &mut metric.baseline {
                names.retain(|name| !removed(name));
                return !names.is_empty() && !removed(metric.of);
            }
            !removed(metric.of) && !metric.baseline.contenders().into_iter().any(&removed)
        });
    }
}

pub(super) fn metric(
    name: &'static str,
    of: &'static str,
    best: &[&'static str],
    must: impl Into<Option<f64>>,
    aim: impl Into<Option<f64>>,
) -> Metric {
    Metric { name, of, baseline: Baseline::Best(best.to_vec()), must: must.into(), aim: aim.into() }
}
