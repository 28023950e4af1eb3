//! Rows beside busy neighbours. Each compares how much a contender changes beside them with how much bare TCP
//! does, in the same round.

use super::contender::{Contender, name};
use super::group::{Baseline, Group, Metric, metric};
use super::ring;
use super::turn::Figure;

/// What the name of a row beside neighbours begins with.
pub(super) const PREFIX: &str = "busy_";

/// The groups with such rows, the figure that shows the change, and the rows over TCP. Their twins over the
/// ring follow them.
const ROWS: [(&str, Figure, &[&str]); 4] = [
    ("send_8b_polled", Figure::MeanLatency, &["send_8b_polled", "send_8b_polled_acked"]),
    ("send_8b_blocking", Figure::MeanLatency, &["send_8b_blocking", "send_8b_asleep"]),
    ("bulk", Figure::Bandwidth, &["write_1m"]),
    ("events", Figure::Rate, &["events_each"]),
];

/// A contender may change at most 1.5 times as much as bare TCP.
fn must(figure: Figure) -> f64 {
    if figure.less_is_better() { 1.5 } else { 0.667 }
}

/// The groups beside neighbours, made of those without.
pub(super) fn groups(quiet: &[Group]) -> Vec<Group> {
    ROWS.iter()
        .filter_map(|(of, figure, rows)| {
            let group = quiet.iter().find(|group| group.name == *of)?;
            Some(busy(group, *figure, rows))
        })
        .collect()
}

fn busy(group: &Group, figure: Figure, rows: &[&str]) -> Group {
    let chosen =
        |metric: &&Metric| rows.contains(&metric.name.strip_prefix(ring::PREFIX).unwrap_or(metric.name));
    let chosen: Vec<_> = group.metrics.iter().filter(chosen).collect();
    let needed = |contender: &&Contender| chosen.iter().any(|metric| metric.needs(contender.name));
    let contenders: Vec<_> = group.contenders.iter().filter(needed).collect();
    let bare = contenders.iter().find(|contender| contender.is_bare()).map_or("", |bare| bare.name);
    let bare_busy = Contender::busy_name(bare);
    let row = |quiet: &&Metric| Metric {
        name: name(format!("{PREFIX}{}", quiet.name)),
        of: Contender::busy_name(quiet.of),
        baseline: Baseline::Quiet { own: quiet.of, bare_quiet: bare, bare_busy },
        must: Some(must(figure)),
        aim: None,
    };
    let mut metrics: Vec<_> = chosen.iter().map(row).collect();
    metrics.push(metric(name(format!("{PREFIX}bare_{}", group.name)), bare_busy, &[bare], None, None));
    Group {
        name: name(format!("{PREFIX}{}", group.name)),
        title: name(format!("{}, beside busy neighbours", group.title)),
        figure,
        // Many time slices of the scheduler must pass in a turn.
        patience: 2,
        link: None,
        contenders: contenders.iter().flat_map(|one| [(*one).clone(), one.beside_neighbours()]).collect(),
        metrics,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contender::ours;
    use super::*;

    #[test]
    fn each_row_and_its_twin_are_measured_with_and_without_neighbours() {
        let mut group = Group {
            name: "bulk",
            title: "1 MiB",
            figure: Figure::Bandwidth,
            patience: 1,
            link: None,
            contenders: vec![ours("bare", "transport=bare"), ours("Ironwarp", ""), ours("Read", "")],
            metrics: vec![
                metric("write_1m", "Ironwarp", &["bare"], 0.9, 1.0),
                metric("read_1m", "Read", &["bare"], 0.9, 1.0),
            ],
        };
        group.contenders.push(group.contenders[1].over_ring());
        group.metrics.push(metric("shm_write_1m", "Ironwarp, ring", &["bare"], 1.6, 1.8));
        let made = groups(&[group]);
        let names: Vec<_> = made[0].contenders.iter().map(|contender| contender.name).collect();
        assert_eq!(
            names,
            ["bare", "bare, busy", "Ironwarp", "Ironwarp, busy", "Ironwarp, ring", "Ironwarp, ring, busy"]
        );
        let rows: Vec<_> = made[0]
            .metrics
            .iter()
            .map(|row| (row.name, row.of, row.baseline.contenders(), row.must))
            .collect();
        let beside = |own| vec![own, "bare", "bare, busy"];
        assert_eq!(
            rows,
            [
                ("busy_write_1m", "Ironwarp, busy", beside("Ironwarp"), Some(0.667)),
                ("busy_shm_write_1m", "Ironwarp, ring, busy", beside("Ironwarp, ring"), Some(0.667)),
                ("busy_bare_bulk", "bare, busy", vec!["bare"], None),
            ]
        );
        assert_eq!(must(Figure::MeanLatency), 1.5);
    }
}
