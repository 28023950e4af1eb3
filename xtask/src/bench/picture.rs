//! Results as pictures in SVG: bars for a group, lines for a curve.

use super::curves::Curve;
use super::report::{digits, lines as lines_of};
use super::rounds::Measured;
use super::statistics::Summary;
use crate::shell::{Result, at};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const WIDTH: f64 = 760.0;
/// Widths of the names at the left and of the figures at the right.
const LEFT: f64 = 270.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 24.0;
const TOP: f64 = 40.0;

/// Colours of ours and of all others, which colour-blind readers can distinguish.
const OURS: &str = "#1f6f8b";
const OTHERS: &str = "#9aa5b1";
const SERIES: [&str; 4] = ["#9aa5b1", OURS, "#d1603d", "#5b8c5a"];

/// Writes a picture of each group and each curve.
pub(super) fn write(folder: &Path, measured: &[Measured], curves: &[Curve]) -> Result {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let groups = measured.iter().map(|measured| (measured.group.name, bars(measured)));
    let curves = curves.iter().map(|curve| (curve.name, lines(curve)));
    for (name, text) in groups.chain(curves) {
        let file = folder.join(format!("{name}.svg"));
        fs::write(&file, text).map_err(at(&file))?;
    }
    Ok(())
}

/// The medians of a group, with whiskers at the quartiles.
pub(super) fn bars(measured: &Measured) -> String {
    let lines = lines_of(measured);
    let most = lines.iter().map(|line| line.value.quartiles[1].max(line.value.median)).fold(0.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most.max(f64::MIN_POSITIVE);
    let figure = measured.group.figure;
    let better = if figure.less_is_better() { "less is better" } else { "more is better" };
    let mut svg = frame(
        TOP + BAR * lines.len() as f64 + 10.0,
        &format!("{} ({}, {better})", measured.group.title, figure.unit()),
    );
    for (index, line) in lines.iter().enumerate() {
        let Summary { median, quartiles: [low, high] } = line.value;
        let (y, middle) = (TOP + BAR * index as f64, TOP + BAR * (index as f64 + 0.5));
        let colour = if line.name.starts_with("Ironwarp") { OURS } else { OTHERS };
        text(&mut svg, LEFT - 8.0, middle + 4.0, "end", line.name);
        let _ = writeln!(
            svg,
            r#"<rect x="{LEFT}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
            y + 4.0,
            median * scale,
            BAR - 8.0
        );
        let (from, to) = (LEFT + low * scale, LEFT + high * scale);
        let _ =
            writeln!(svg, r#"<path d="M{from:.1} {middle:.1}H{to:.1}" stroke="black" stroke-width="2"/>"#);
        text(&mut svg, LEFT + high.max(median) * scale + 6.0, middle + 4.0, "start", &digits(median));
    }
    svg + "</svg>\n"
}

const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 60.0;

/// Both axes are logarithmic: sizes and rates span many powers of ten.
pub(super) fn lines(curve: &Curve) -> String {
    let points = || curve.series.iter().flat_map(|one| &one.points);
    let of_x = || points().map(|(x, _)| (*x as f64).log10());
    let of_y = || points().map(|(_, summary)| summary.median.log10());
    let (x0, x1) = (of_x().fold(f64::MAX, f64::min), of_x().fold(f64::MIN, f64::max));
    let (y0, y1) = (of_y().fold(f64::MAX, f64::min).floor(), of_y().fold(f64::MIN, f64::max).ceil());
    let at_x = |x: f64| MARGIN + (x - x0) / (x1 - x0).max(1e-9) * (WIDTH - 2.0 * MARGIN);
    let at_y = |y: f64| HEIGHT - MARGIN - (y - y0) / (y1 - y0).max(1e-9) * (HEIGHT - 2.0 * MARGIN - TOP);
    let mut svg = frame(HEIGHT, &format!("{} ({})", curve.title, curve.figure.unit()));
    let (bottom, right) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    let mut power = y0;
    while power <= y1 {
        let y = at_y(power);
        let _ = writeln!(svg, r##"<path d="M{MARGIN} {y:.1}H{right}" stroke="#dddddd"/>"##);
        text(&mut svg, MARGIN - 6.0, y + 4.0, "end", &digits(10_f64.powf(power)));
        power += 1.0;
    }
    for (x, _) in curve.series.first().map(|one| one.points.as_slice()).unwrap_or_default() {
        text(&mut svg, at_x((*x as f64).log10()), bottom + 16.0, "middle", &x.to_string());
    }
    text(&mut svg, WIDTH / 2.0, HEIGHT - 18.0, "middle", curve.axis);
    for (index, one) in curve.series.iter().enumerate() {
        let colour = SERIES[index % SERIES.len()];
        let places = one.points.iter().map(|(x, y)| (at_x((*x as f64).log10()), at_y(y.median.log10())));
        let path: Vec<String> = places.clone().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            path.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
        }
        let y = TOP + 4.0 + 16.0 * index as f64;
        let _ = writeln!(
            svg,
            r#"<rect x="{}" y="{:.1}" width="12" height="12" fill="{colour}"/>"#,
            MARGIN + 8.0,
            y - 10.0
        );
        text(&mut svg, MARGIN + 26.0, y, "start", one.name);
    }
    svg + "</svg>\n"
}

/// The beginning of a picture, white, with its heading.
fn frame(height: f64, heading: &str) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(svg, "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>");
    let _ = writeln!(svg, r#"<text x="10" y="22" font-size="15">{}</text>"#, escaped(heading));
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(what));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::curves::Series;
    use super::super::rounds::tests::measured;
    use super::super::turn::Figure;
    use super::*;

    #[test]
    fn a_group_is_a_bar_for_each_contender() {
        let svg = bars(&measured(Figure::Latency, &["Ironwarp", "b", "c"], &[&[2.0, 4.0, 1.0]]));
        assert_eq!(svg.matches("<rect x=").count(), 3);
        assert!(
            svg.contains(&format!(r#"width="200.0" height="16.0" fill="{OURS}""#)),
            "half as long as the longest: {svg}"
        );
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("less is better"));
    }

    #[test]
    fn a_curve_is_a_line_for_each_series() {
        let summary = |median| Summary { median, quartiles: [median, median] };
        let series = |name| Series {
            name,
            points: vec![(1, summary(1.0)), (10, summary(10.0)), (100, summary(100.0))],
        };
        let curve = Curve {
            name: "c",
            title: "a < b",
            axis: "x",
            figure: Figure::Rate,
            series: vec![series("one"), series("two")],
        };
        let svg = lines(&curve);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 6));
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
    }
}
