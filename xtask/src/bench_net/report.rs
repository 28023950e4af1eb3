//! The table of results.

use super::measure::Figures;
use super::tunnel::Tunnel;
use crate::bench::statistics::spread;
use std::fmt::Write;

/// The results of one tunnel, in the order of rounds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) tunnel: Tunnel,
    pub(super) rounds: Vec<Figures>,
    /// Why there are no results, or not all.
    pub(super) missing: Option<String>,
}

const HEADING: &str = "\
| path | Gbit/s | ratio to bare | bytes per CPU second, ratio to bare | ping, µs |
|---|---|---|---|---|
";

/// Writes the table in Markdown: medians over the rounds, with minimum and maximum. Ratios are those of single rounds.
pub(super) fn table(rows: &[Row]) -> String {
    let bare: &[Figures] =
        rows.iter().find(|row| row.tunnel == Tunnel::Bare).map_or(&[], |bare| &bare.rounds);
    let mut text = HEADING.to_owned();
    for Row { tunnel, rounds, missing } in rows {
        let name = tunnel.name();
        if let Some(why) = missing {
            let _ = writeln!(text, "| {name} | {why} | | | |");
            continue;
        }
        let values = |of: fn(&Figures) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
        let ratios = |of: fn(&Figures) -> f64| {
            rounds.iter().zip(bare).map(|(own, bare)| of(own) / of(bare)).collect::<Vec<_>>()
        };
        let cells = [
            spread(values(Figures::gigabits), 2),
            spread(ratios(Figures::gigabits), 2),
            spread(ratios(|one| one.bytes_per_cpu), 2),
            spread(values(|one| one.micros), 0),
        ];
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tunnel: Tunnel, gigabits: &[f64]) -> Row {
        let round = |&mean: &f64| Figures {
            directions: [mean - 0.5, mean + 0.5],
            bytes_per_cpu: mean * 1e8,
            micros: 100.0,
        };
        Row { tunnel, rounds: gigabits.iter().map(round).collect(), missing: None }
    }

    #[test]
    fn ratios_are_those_of_single_rounds() {
        let rows = [row(Tunnel::Bare, &[2.0, 10.0, 4.0]), row(Tunnel::Vde, &[1.0, 1.0, 1.0])];
        let lines: Vec<_> = table(&rows).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "| bare | 4.00 (2.00–10.00) | 1.00 (1.00–1.00) | 1.00 (1.00–1.00) | 100 (100–100) |",
                "| vde | 1.00 (1.00–1.00) | 0.25 (0.10–0.50) | 0.25 (0.10–0.50) | 100 (100–100) |",
            ]
        );
    }

    #[test]
    fn a_path_that_is_not_available_has_a_row_and_without_bare_there_are_no_ratios() {
        let missing = Some("not available: no vxlan".to_owned());
        let rows = [Row { missing, ..row(Tunnel::SlirpVxlan, &[]) }, row(Tunnel::Slirp, &[3.0])];
        let lines: Vec<_> = table(&rows).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "| slirp4netns-vxlan | not available: no vxlan | | | |",
                "| slirp4netns | 3.00 (3.00–3.00) | – | – | 100 (100–100) |",
            ]
        );
    }
}
