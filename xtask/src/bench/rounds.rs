//! Runs the rounds of a group. In each round, every contender takes a turn.

use super::contender::{Output, Sample};
use super::group::{Baseline, Group, Metric};
use super::judge::{Judged, Load, REPEATS};
use super::statistics::Summary;
use super::turn::Place;
use crate::shell::Result;
use std::time::{Duration, Instant};

/// The results of a group.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) group: Group,
    /// For each round, the samples of all contenders in the order of the group.
    pub(super) rounds: Vec<Vec<Sample>>,
    pub(super) judged: Vec<Judged>,
    /// How the link between two hosts is implemented, if there is one.
    pub(super) link: Option<&'static str>,
}

/// Runs all rounds. Repetitions reduce `allowance`; when it is used up, no round is repeated, so that the run
/// ends in time.
pub(super) fn run_rounds(
    group: Group,
    place: &Place,
    rounds: usize,
    allowance: &mut Duration,
) -> Result<Measured> {
    let (mut samples, mut judged) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("  {}: round {round} of {rounds}", group.name);
        let turns = || take_turns(&group, place, round);
        let unread = attempts(round, &mut judged, allowance, Load::now, turns)?;
        let read = group.contenders.iter().zip(&unread);
        samples.push(
            read.map(|(contender, turn)| contender.read(turn, group.figure, place)).collect::<Result<_>>()?,
        );
    }
    Ok(Measured { group, rounds: samples, judged, link: None })
}

/// Repeats a round while the machine is disturbed. Discards the output of disturbed rounds unparsed.
fn attempts<T>(
    round: usize,
    judged: &mut Vec<Judged>,
    allowance: &mut Duration,
    mut load: impl FnMut() -> Result<Load>,
    mut turns: impl FnMut() -> Result<T>,
) -> Result<T> {
    for attempt in 0.. {
        let (before, start) = (load()?, Instant::now());
        let unread = turns()?;
        let disturbance = before.until(&load()?);
        let counts = !disturbance.is_too_much() || attempt == REPEATS || allowance.is_zero();
        judged.push(Judged { round, disturbance, counts });
        if counts {
            return Ok(unread);
        }
        *allowance = allowance.saturating_sub(start.elapsed());
    }
    Err("no attempt counted".into())
}

/// Each round begins with another contender, so that the order varies.
fn take_turns(group: &Group, place: &Place, round: usize) -> Result<Vec<Output>> {
    let len = group.contenders.len();
    let mut turns: Vec<Option<Output>> = (0..len).map(|_| None).collect();
    for step in 0..len {
        let which = (step + round) % len;
        turns[which] = Some(group.contenders[which].take_turn(place)?);
    }
    Ok(turns.into_iter().flatten().collect())
}

/// A metric of a finished group.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) value: Summary,
    pub(super) ratio: Summary,
    /// Values by round.
    pub(super) ratios: Vec<f64>,
}

impl Measured {
    fn index(&self, name: &str) -> Option<usize> {
        self.group.contenders.iter().position(|contender| contender.name == name)
    }

    pub(super) fn values(&self, name: &str) -> Vec<f64> {
        self.samples(name).into_iter().map(|sample| sample.value).collect()
    }

    /// Summary of all rounds.
    pub(super) fn samples(&self, name: &str) -> Vec<Sample> {
        let Some(index) = self.index(name) else { return Vec::new() };
        self.rounds.iter().map(|round| round[index]).collect()
    }

    /// How two contenders compare, by round.
    pub(super) fn ratios(&self, of: &str, to: &str) -> Vec<f64> {
        self.values(of).into_iter().zip(self.values(to)).map(|(of, to)| of / to).collect()
    }

    /// Each ratio compares values of one round; the metric is the median of the ratios.
    pub(super) fn compare(&self, metric: &Metric) -> Compared {
        let values = self.values(metric.of);
        let bases: Vec<f64> = match &metric.baseline {
            Baseline::Fixed(value, _) => vec![*value; values.len()],
            Baseline::Quiet { own, bare_quiet, bare_busy } => {
                let changes = self.ratios(bare_busy, bare_quiet);
                self.values(own).into_iter().zip(changes).map(|(own, change)| own * change).collect()
            }
            Baseline::Best(names) => {
                let all: Vec<Vec<f64>> = names.iter().map(|name| self.values(name)).collect();
                let better = if self.group.figure.less_is_better() { f64::min } else { f64::max };
                let best = |round: usize| all.iter().map(|values| values[round]).reduce(better);
                (0..values.len()).map(|round| best(round).unwrap_or(f64::NAN)).collect()
            }
        };
        let ratios: Vec<f64> = values.iter().zip(bases).map(|(value, base)| value / base).collect();
        Compared { value: Summary::of(values), ratio: Summary::of(ratios.iter().copied()), ratios }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::contender::ours;
    use super::super::group::metric;
    use super::super::turn::Figure;
    use super::*;

    /// A finished group with these values of its contenders, by round.
    pub(in super::super) fn measured(figure: Figure, names: &[&'static str], rounds: &[&[f64]]) -> Measured {
        let contenders = names.iter().map(|name| ours(name, "")).collect();
        let metrics = vec![metric("m", names[0], &["b", "c"], 0.5, 1.0)];
        let group = Group { name: "g", title: "G", figure, patience: 1, link: None, contenders, metrics };
        let sample = |value: &f64| Sample { value: *value, bytes: [4.0, 2.0], messages: [2.0, 1.0] };
        let rounds = rounds.iter().map(|round| round.iter().map(sample).collect()).collect();
        Measured { group, rounds, judged: Vec::new(), link: None }
    }

    #[test]
    fn ratios_are_of_one_round_and_of_the_best() {
        // The machine is ten times as fast in the second round, which does not change the ratio.
        let measured = measured(
            Figure::Bandwidth,
            &["a", "b", "c"],
            &[&[1.0, 2.0, 1.0], &[10.0, 10.0, 20.0], &[3.0, 1.0, 1.0]],
        );
        let compared = measured.compare(&measured.group.metrics[0]);
        assert_eq!(compared.ratios, [0.5, 0.5, 3.0]);
        assert_eq!((compared.ratio.median, compared.value.median), (0.5, 3.0));
    }

    #[test]
    fn the_best_has_the_least_where_less_is_better() {
        let measured = measured(Figure::Latency, &["a", "b", "c"], &[&[4.0, 2.0, 1.0]]);
        assert_eq!(measured.compare(&measured.group.metrics[0]).ratios, [4.0]);
    }

    #[test]
    fn busy_rows_are_compared_with_how_bare_tcp_changes() {
        let names = ["own busy", "own", "bare", "bare busy"];
        // Three times as slow as when quiet, while bare TCP is twice as slow; then as slow as bare TCP.
        let mut measured =
            measured(Figure::MeanLatency, &names, &[&[3.0, 1.0, 5.0, 10.0], &[8.0, 2.0, 10.0, 40.0]]);
        let metric = &mut measured.group.metrics[0];
        metric.baseline = Baseline::Quiet { own: names[1], bare_quiet: names[2], bare_busy: names[3] };
        let compared = measured.compare(&measured.group.metrics[0]);
        assert_eq!((compared.value.median, compared.ratios), (5.5, vec![1.5, 1.0]));
        assert_eq!(measured.ratios(names[0], names[1]), [3.0, 4.0]);
    }

    /// Runs a round with these shares of foreign CPU time, and returns which attempt counted.
    fn attempt(foreign: &[u64], mut allowance: Duration) -> (usize, Vec<Judged>) {
        let (mut judged, mut looked, mut turn) = (Vec::new(), 0, 0);
        let mut busy = 0;
        let load = || {
            // Read before and after each attempt, which takes 1,000 ticks.
            if looked % 2 == 1 {
                busy += foreign[looked / 2];
            }
            looked += 1;
            let idle = looked as u64 / 2 * 1000 - busy;
            let machine = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n");
            Ok(Load::for_test(&machine))
        };
        let turns = || {
            turn += 1;
            Ok(turn)
        };
        let counted = attempts(1, &mut judged, &mut allowance, load, turns).unwrap();
        (counted, judged)
    }

    #[test]
    fn a_round_is_repeated_while_others_work_and_three_times_at_most() {
        assert_eq!(attempt(&[0], Duration::MAX).0, 1);
        assert_eq!(attempt(&[500, 500, 10], Duration::MAX).0, 3);
        let (counted, judged) = attempt(&[500; 4], Duration::MAX);
        assert_eq!((counted, judged.len()), (4, 4));
        assert_eq!(
            judged.iter().map(|judged| judged.counts).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        assert!(judged[3].disturbance.is_too_much());
        assert_eq!(attempt(&[500], Duration::ZERO).0, 1, "there is no time to repeat it");
    }
}
