//! Writes the figures in docs/performance.md between two markers, and the pictures next to it.

use super::curves::Curve;
use super::report::{Row, lines};
use super::rounds::Measured;
use super::{busy, picture, ring};
use crate::shell::{Result, at};
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/performance.md";
/// The folder of the pictures, next to the page.
const FOLDER: &str = "performance";
const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

pub(super) fn update(
    root: &Path,
    rows: &[Row<'_>],
    measured: &[Measured],
    curves: &[Curve],
    absent: &[String],
) -> Result {
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).map_err(at(&page))?;
    let text = replaced(&text, &figures(rows, measured, curves, absent))
        .ok_or_else(|| format!("{PAGE}: markers are missing"))?;
    picture::write(&root.join("docs").join(FOLDER), measured, curves)?;
    fs::write(&page, text).map_err(at(&page))
}

/// Explains the rows whose names begin with a prefix.
const PREFIXES: [(&str, &str); 2] = [
    (
        ring::PREFIX,
        "the same as the row without `shm_`, over a ring in shared memory (`IRONWARP_SHM=on`). All other rows have \
         `IRONWARP_SHM=off`. UCX and libfabric use shared memory in these rows, too.",
    ),
    (
        busy::PREFIX,
        "beside processes that compute, one for each processor; latencies are means. The ratio compares busy ÷ quiet \
         of the row with busy ÷ quiet of bare TCP in the same round.",
    ),
];

fn figures(rows: &[Row<'_>], measured: &[Measured], curves: &[Curve], absent: &[String]) -> String {
    let attempts = || measured.iter().flat_map(|measured| &measured.judged);
    let (all, repeated) = (attempts().count(), attempts().filter(|judged| !judged.counts).count());
    let disturbed = attempts().filter(|judged| judged.counts && judged.disturbance.is_too_much()).count();
    let mut text = format!(
        "{} rounds of one run; {repeated} more were repeated, and {disturbed} of those that count were disturbed.\n\n",
        all - repeated
    );
    text +=
        "| metric | median | beside | ratio (quartiles) | must | aim | |\n|---|---|---|---|---|---|---|\n";
    rows.iter().for_each(|row| text += &format!("{}\n", row.markdown()));
    for link in measured.iter().filter_map(|measured| measured.link).take(1) {
        text += &format!("\nThe `wan_*` links: {link}.\n");
    }
    for (prefix, meaning) in PREFIXES {
        if rows.iter().any(|row| row.metric.name.starts_with(prefix)) {
            text += &format!("\n`{prefix}*`: {meaning}\n");
        }
    }
    absent.iter().for_each(|absent| text += &format!("\nNot measured: {absent}.\n"));
    text += "\nBytes or messages per second of processor time, at the client and at the server:\n\n";
    text += "| group | who | client | server |\n|---|---|---|---|\n";
    let lines = measured.iter().flat_map(lines);
    lines.filter_map(|line| line.markdown()).for_each(|row| text += &format!("{row}\n"));
    let groups = measured.iter().map(|measured| (measured.group.title, measured.group.name));
    for (title, name) in groups.chain(curves.iter().map(|curve| (curve.title, curve.name))) {
        text += &format!("\n![{title}]({FOLDER}/{name}.svg)\n");
    }
    text
}

/// Replaces only what is between the markers.
fn replaced(page: &str, figures: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, behind) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{figures}\n{END}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::super::report::rows;
    use super::super::rounds::tests::measured;
    use super::super::turn::Figure;
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = replaced(&page, "new").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\n\nnew\n{END}\nb\n"));
        assert_eq!(replaced(&once, "new").unwrap(), once);
        assert_eq!(replaced("no markers", "new"), None);
    }

    #[test]
    fn rows_are_explained_only_if_they_are_there() {
        let page = |name, absent: &[String]| {
            let mut all = [measured(Figure::Latency, &["a", "b", "c"], &[&[1.0, 2.0, 3.0]])];
            all[0].group.metrics[0].name = name;
            figures(&rows(&all), &all, &[], absent)
        };
        let plain = page("m", &[]);
        assert!(plain.contains("| `m` |") && !plain.contains("`shm_*`") && !plain.contains("Not measured"));
        let twin = page("shm_m", &["bulk, x: no transport".into()]);
        assert!(twin.contains("| `shm_m` |") && twin.contains("\n`shm_*`: ") && !twin.contains("`busy_*`"));
        assert!(twin.contains("\nNot measured: bulk, x: no transport.\n"));
        assert!(page("busy_shm_m", &[]).contains("\n`busy_*`: "));
    }

    #[test]
    fn the_page_has_the_markers() {
        assert!(replaced(include_str!("../../../docs/performance.md"), "").is_some());
    }
}
