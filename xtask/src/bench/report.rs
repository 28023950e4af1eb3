//! The results of a run: a table, and JSON.

use super::group::{Baseline, Metric};
use super::rounds::Measured;
use super::statistics::Summary;
use super::turn::Figure;
use serde_json::{Value, json};
use std::fmt;

/// A line of the table, and an object of the JSON.
#[derive(Debug)]
pub(super) struct Row<'p> {
    measured: &'p Measured,
    pub(super) metric: &'p Metric,
    value: Summary,
    ratio: Summary,
    ratios: Vec<f64>,
}

/// How a figure compares with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Missed,
    Met,
    Aim,
    /// It has no target.
    Open,
}

impl Verdict {
    fn of(figure: Figure, ratio: f64, must: Option<f64>, aim: Option<f64>) -> Self {
        let reached = |wanted: f64| if figure.less_is_better() { ratio <= wanted } else { ratio >= wanted };
        match (must.map(reached), aim.map(reached)) {
            (Some(false), _) => Self::Missed,
            (_, Some(true)) => Self::Aim,
            (Some(true), _) => Self::Met,
            (None, _) => Self::Open,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Met => "met",
            Self::Aim => "aim",
            Self::Open => "",
        }
    }
}

pub(super) fn rows(measured: &[Measured]) -> Vec<Row<'_>> {
    let metrics = measured
        .iter()
        .flat_map(|measured| measured.group.metrics.iter().map(move |metric| (measured, metric)));
    metrics
        .map(|(measured, metric)| {
            let compared = measured.compare(metric);
            Row { measured, metric, value: compared.value, ratio: compared.ratio, ratios: compared.ratios }
        })
        .collect()
}

impl Row<'_> {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict::of(self.measured.group.figure, self.ratio.median, self.metric.must, self.metric.aim)
    }

    fn baseline(&self) -> String {
        match &self.metric.baseline {
            Baseline::Best(names) => names.join(" or "),
            Baseline::Fixed(_, name) => (*name).to_owned(),
            Baseline::Quiet { bare_quiet, .. } => {
                let [own, bare] = self.changes().unwrap_or_default().map(digits);
                format!("{bare_quiet}'s change (busy ÷ quiet: {own}, {bare_quiet}: {bare})")
            }
        }
    }

    /// For a row beside busy neighbours: busy ÷ quiet, of this contender and of bare TCP.
    fn changes(&self) -> Option<[f64; 2]> {
        let Baseline::Quiet { own, bare_quiet, bare_busy } = self.metric.baseline else { return None };
        let change = |busy, quiet| Summary::of(self.measured.ratios(busy, quiet)).median;
        Some([change(self.metric.of, own), change(bare_busy, bare_quiet)])
    }

    /// The targets of the ratio.
    fn wanted(&self, limit: Option<f64>) -> String {
        let sign = if self.measured.group.figure.less_is_better() { '≤' } else { '≥' };
        limit.map(|limit| format!("{sign} {limit}")).unwrap_or_default()
    }

    /// The row in docs/performance.md.
    pub(super) fn markdown(&self) -> String {
        let Self { metric, value, ratio, .. } = self;
        let unit = self.measured.group.figure.unit();
        let [low, high] = ratio.quartiles;
        format!(
            "| `{}` | {} {unit} | {} | {} ({}–{}) | {} | {} | {} |",
            metric.name,
            digits(value.median),
            self.baseline(),
            digits(ratio.median),
            digits(low),
            digits(high),
            self.wanted(metric.must),
            self.wanted(metric.aim),
            self.verdict().word(),
        )
    }

    pub(super) fn json(&self) -> Value {
        let Self { measured, metric, value, ratio, ratios } = self;
        let judged: Vec<_> = measured.judged.iter().map(super::judge::Judged::json).collect();
        json!({
            "metric": metric.name,
            "value": value.median,
            "unit": measured.group.figure.unit(),
            "baseline": self.baseline(),
            "ratio": ratio.median,
            "spread": ratio.quartiles,
            "better": if measured.group.figure.less_is_better() { "less" } else { "more" },
            "must": metric.must,
            "aim": metric.aim,
            "met": self.verdict().word(),
            "busy_to_quiet": self.changes().map(|[own, bare]| json!({ "own": own, "bare": bare })),
            "of": metric.of,
            "group": measured.group.name,
            "link": measured.link,
            "rounds": ratios,
            "repeated": measured.judged.iter().filter(|judged| !judged.counts).count(),
            "attempts": judged,
        })
    }
}

pub(super) const HEADING: &str =
    "metric                                  value                 ratio  quartiles         must     aim";

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, value, ratio, .. } = self;
        let quartiles = ratio.quartiles.map(digits).join("–");
        write!(
            f,
            "{:<32}{:>14} {:<8}",
            metric.name,
            digits(value.median),
            self.measured.group.figure.unit()
        )?;
        write!(f, "{:>8} × {quartiles:<16}", digits(ratio.median))?;
        let (must, aim) = (self.wanted(metric.must), self.wanted(metric.aim));
        write!(f, "{must:<9}{aim:<9}{:<8}× {}", self.verdict().word(), self.baseline())
    }
}

/// A contender: its result, and its efficiency.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: &'static str,
    group: &'static str,
    figure: Figure,
    pub(super) value: Summary,
    /// Medians per second of CPU time, at the client and at the server.
    bytes: [f64; 2],
    messages: [f64; 2],
}

pub(super) fn lines(measured: &Measured) -> Vec<Line> {
    let contenders = measured.group.contenders.iter();
    contenders
        .map(|contender| {
            let samples = measured.samples(contender.name);
            let median =
                |read: fn(&super::contender::Sample) -> f64| Summary::of(samples.iter().map(read)).median;
            Line {
                name: contender.name,
                group: measured.group.name,
                figure: measured.group.figure,
                value: Summary::of(measured.values(contender.name)),
                bytes: [median(|sample| sample.bytes[0]), median(|sample| sample.bytes[1])],
                messages: [median(|sample| sample.messages[0]), median(|sample| sample.messages[1])],
            }
        })
        .collect()
}

impl Line {
    pub(super) fn json(&self, judged: &Measured) -> Value {
        let base = judged.group.contenders.first().map_or("", |contender| contender.name);
        let ratios =
            judged.values(self.name).into_iter().zip(judged.values(base)).map(|(own, base)| own / base);
        let ratio = Summary::of(ratios);
        json!({
            "metric": format!("{}: {}", self.group, self.name),
            "value": self.value.median,
            "unit": self.figure.unit(),
            "baseline": base,
            "ratio": ratio.median,
            "spread": ratio.quartiles,
            "value_spread": self.value.quartiles,
            "bytes_per_cpu_second": { "client": self.bytes[0], "server": self.bytes[1] },
            "completions_per_cpu_second": { "client": self.messages[0], "server": self.messages[1] },
        })
    }

    /// A row of efficiencies, or `None` unless the group moves as much as possible in one direction.
    pub(super) fn markdown(&self) -> Option<String> {
        let Self { name, group, figure, bytes, messages, .. } = self;
        let moved = match figure {
            Figure::Bandwidth => bytes.map(|it| format!("{} GB", digits(it / 1e9))),
            Figure::Rate => messages.map(|it| format!("{} M", digits(it / 1e6))),
            Figure::Latency | Figure::MeanLatency | Figure::Memory | Figure::Wakes | Figure::Switches => {
                return None;
            }
        };
        Some(format!("| {group} | {name} | {} | {} |", moved[0], moved[1]))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, figure, value, bytes, messages, .. } = self;
        let quartiles = value.quartiles.map(digits).join("–");
        write!(f, "  {name:<40}{:>9} {:<8} {quartiles:<18}", digits(value.median), figure.unit())?;
        if *figure != Figure::Memory {
            let [bytes, messages] = [bytes.map(|it| digits(it / 1e9)), messages.map(|it| digits(it / 1e6))];
            write!(f, "{:>8} {:>8} GB   {:>8} {:>8} M", bytes[0], bytes[1], messages[0], messages[1])?;
        }
        Ok(())
    }
}

/// Rounds to three significant digits.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounds::tests::measured;
    use super::*;

    #[test]
    fn the_json_has_what_it_promises() {
        let all = [measured(Figure::Bandwidth, &["a", "b", "c"], &[&[1.0, 2.0, 1.0], &[3.0, 4.0, 1.0]])];
        let row = rows(&all)[0].json();
        assert_eq!(
            (&row["metric"], &row["unit"], &row["baseline"]),
            (&json!("m"), &json!("GB/s"), &json!("b or c"))
        );
        assert_eq!((&row["value"], &row["ratio"]), (&json!(2.0), &json!(0.625)));
        assert_eq!(row["spread"], json!([0.5625, 0.6875]));
        assert_eq!((&row["rounds"], &row["met"]), (&json!([0.5, 0.75]), &json!("met")));
        let line = lines(&all[0])[1].json(&all[0]);
        assert_eq!(
            (&line["metric"], &line["value"], &line["baseline"]),
            (&json!("g: b"), &json!(3.0), &json!("a"))
        );
        assert_eq!(line["bytes_per_cpu_second"], json!({ "client": 4.0, "server": 2.0 }));
    }

    #[test]
    fn targets_are_met_from_the_right_side() {
        let verdict = |figure, ratio| {
            Verdict::of(figure, ratio, Some(1.0), Some(if figure == Figure::Rate { 2.0 } else { 0.5 }))
        };
        assert_eq!(
            [0.9, 1.0, 2.0].map(|ratio| verdict(Figure::Rate, ratio)),
            [Verdict::Missed, Verdict::Met, Verdict::Aim]
        );
        assert_eq!(
            [0.5, 1.0, 1.1].map(|ratio| verdict(Figure::Latency, ratio)),
            [Verdict::Aim, Verdict::Met, Verdict::Missed]
        );
        assert_eq!(Verdict::of(Figure::Rate, 0.5, None, Some(0.9)), Verdict::Open);
    }

    #[test]
    fn a_busy_row_says_how_much_it_and_bare_tcp_change() {
        let mut all = [measured(
            Figure::Bandwidth,
            &["own busy", "own", "bare", "bare busy"],
            &[&[3.0, 6.0, 10.0, 8.0]],
        )];
        let metric = &mut all[0].group.metrics[0];
        metric.baseline = Baseline::Quiet { own: "own", bare_quiet: "bare", bare_busy: "bare busy" };
        metric.must = Some(0.667);
        let row = &rows(&all)[0];
        assert_eq!(row.verdict(), Verdict::Missed, "half, where bare TCP keeps four fifths");
        assert!(row.markdown().contains("| bare's change (busy ÷ quiet: 0.500, bare: 0.800) | 0.625 "));
        assert_eq!(row.json()["busy_to_quiet"], json!({ "own": 0.5, "bare": 0.8 }));
    }

    #[test]
    fn three_digits_are_enough() {
        assert_eq!(
            [1234.5, 12.345, 1.2345, 0.123_45, 0.0].map(digits),
            ["1234", "12.3", "1.23", "0.123", "0"]
        );
    }
}
