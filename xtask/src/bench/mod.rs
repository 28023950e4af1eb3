//! `bench`: bare TCP, Ironwarp, stock programs on it, UCX and libfabric, on the same operations, in one run. What comes out are
//! ratios: the machine may be faster or slower from one moment to the next, but in a round it is so for all.
//!
//! ```text
//!  group.rs       contenders that do the same, and metrics that compare them; catalogue.rs: all there are
//!  contender.rs   how one takes its turn; peers.rs: the foreign programs, wan.rs: two hosts and a bad link
//!  rounds.rs      round after round; judge.rs: which count, statistics.rs: what is made of them
//!  report.rs      the table and the JSON; picture.rs: the same as pictures, docs.rs: in docs/performance.md
//!  curves.rs      how cost grows with size, queue depth and connections
//! ```
//!
//! Both ends of our own turns are in crates/bench. A target that is missed is a result, and no failure; what could not be
//! measured is one.

mod catalogue;
mod contender;
mod curves;
mod docs;
mod group;
mod judge;
mod peers;
mod picture;
mod report;
mod rounds;
mod statistics;
mod wan;

use crate::dropin;
use crate::inside::run_inside;
use crate::shell::{Result, at, command, output, run as run_command, write_json};
use crate::workspace::Workspace;
use contender::Place;
use group::{Baseline, Group};
use rounds::{Played, play};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str =
    "bench [--quick] [--only METRIC] [--curves] [--json FILE] [--pictures DIR] [--update-docs]";

const PACKAGE: &str = "ironwarp-bench";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Of a turn, in milliseconds, before it is multiplied by the group's patience.
    millis: u64,
    rounds: usize,
    /// Of groups whose turns take longer.
    slow_rounds: usize,
    /// What repeating rounds may take in all. Each group gets its share, and what those before it have left.
    repeats: Duration,
}

const QUICK: Extent = Extent { millis: 120, rounds: 3, slow_rounds: 1, repeats: Duration::from_secs(25) };
const FULL: Extent = Extent { millis: 500, rounds: 7, slow_rounds: 5, repeats: Duration::from_secs(120) };

#[derive(Debug, Default)]
struct Options {
    quick: bool,
    curves: bool,
    only: Option<String>,
    json: Option<String>,
    pictures: Option<String>,
    update_docs: bool,
    /// Set once the job runs where it may make network namespaces.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        peers::need_tools()?;
        dropin::build(workspace, true)?;
        run_command(&mut command("cargo", &["build", "--release", "--locked", "--package", PACKAGE]))?;
        return run_inside("bench", &["--mount", "--net"], arguments);
    }
    set_up_network()?;
    let groups = selected(options.only.as_deref())?;
    let folder = workspace.target.join("bench");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let extent = if options.quick { QUICK } else { FULL };
    let start = Instant::now();
    let place = Place {
        program: workspace.target.join("release").join(PACKAGE),
        ironwarp: workspace.target.join("dropin/bin/ironwarp"),
        folder,
        networks: None,
        millis: extent.millis,
    };
    let mut found = Found::default();
    found.measure(groups, &place, extent);
    if options.curves {
        match curves::measure(&place, extent.slow_rounds) {
            Ok(curves) => found.curves = curves,
            Err(error) => found.failures.push(error),
        }
    }
    print(&found.played, start.elapsed());
    found.write(&options, workspace)
}

/// What a run has found, and what it could not measure.
#[derive(Debug, Default)]
struct Found {
    played: Vec<Played>,
    curves: Vec<curves::Curve>,
    failures: Vec<String>,
}

impl Found {
    /// A group that fails is no reason to lose the others.
    fn measure(&mut self, groups: Vec<Group>, place: &Place, extent: Extent) {
        let share = extent.repeats.div_f64(groups.len().max(1) as f64);
        let mut allowance = Duration::ZERO;
        for group in groups {
            allowance += share;
            let name = group.name;
            match play_group(group, place, extent, &mut allowance) {
                Ok(played) => self.played.push(played),
                Err(error) => {
                    println!("  {name}: cannot be measured: {error}");
                    self.failures.push(format!("{name}: {error}"));
                }
            }
        }
    }

    fn write(&self, options: &Options, workspace: &Workspace) -> Result {
        let Self { played, curves, failures } = self;
        let rows = report::rows(played);
        if let Some(file) = &options.json {
            let mut all: Vec<_> = rows.iter().map(report::Row::json).collect();
            all.extend(
                played.iter().flat_map(|one| report::lines(one).into_iter().map(|line| line.json(one))),
            );
            all.extend(curves.iter().flat_map(curves::Curve::json));
            write_json(file, &all)?;
        }
        if let Some(folder) = &options.pictures {
            write_pictures(Path::new(folder), played, curves)?;
        }
        if !failures.is_empty() {
            return Err(format!("not all could be measured:\n{}", failures.join("\n")));
        }
        if options.update_docs {
            docs::update(&workspace.root, &rows, played, curves)?;
        }
        Ok(())
    }
}

/// A network that nobody else uses has only a loopback device, and that is down. The drop-in wants an address that is none of the
/// loopback's for its device; what is measured does not use it.
fn set_up_network() -> Result {
    for line in [
        "link set lo up",
        "link add iw0 type veth peer name iw1",
        "addr add 10.79.0.1/24 dev iw0",
        "link set iw0 up",
        "link set iw1 up",
    ] {
        output(&mut command("ip", &line.split(' ').collect::<Vec<_>>()))?;
    }
    Ok(())
}

/// On this host, or across the link that the group needs.
fn play_group(group: Group, place: &Place, extent: Extent, allowance: &mut Duration) -> Result<Played> {
    let rounds = if group.patience > 1 { extent.slow_rounds } else { extent.rounds };
    let link = group.link.map(|link| wan::Wan::new(link, &place.folder)).transpose()?;
    let networks = link.as_ref().map(wan::Wan::networks);
    let place = Place { networks, millis: extent.millis * group.patience, ..place.clone() };
    let mut played = play(group, &place, rounds, allowance)?;
    played.link = link.map(|link| link.made_of());
    Ok(played)
}

/// All groups; or those of metrics whose names have this in them, with the contenders that these need.
fn selected(only: Option<&str>) -> Result<Vec<Group>> {
    let mut groups = catalogue::all();
    let Some(only) = only else { return Ok(groups) };
    let whole = groups.iter().flat_map(|group| &group.metrics).any(|metric| metric.name == only);
    for group in &mut groups {
        group.metrics.retain(|metric| if whole { metric.name == only } else { metric.name.contains(only) });
        let needed = |name: &str| {
            group.metrics.iter().any(|metric| {
                let compared = match &metric.baseline {
                    Baseline::Best(names) => names.contains(&name),
                    Baseline::Fixed(..) => false,
                };
                metric.of == name || compared
            })
        };
        group.contenders.retain(|contender| needed(contender.name));
    }
    groups.retain(|group| !group.metrics.is_empty());
    if groups.is_empty() { Err(format!("no metric is called {only}")) } else { Ok(groups) }
}

fn print(played: &[Played], took: Duration) {
    for one in played {
        println!("\n{}{}", one.group.title, one.link.map(|link| format!(" ({link})")).unwrap_or_default());
        println!(
            "  {:<40}{:>9}       {:<18}{:^20}   {:^19}",
            "", "median", "quartiles", "per CPU-second:", "completions:"
        );
        report::lines(one).iter().for_each(|line| println!("{line}"));
    }
    println!("\n{}", report::HEADING);
    report::rows(played).iter().for_each(|row| println!("{row}"));
    let attempts: Vec<_> = played.iter().flat_map(|played| &played.judged).collect();
    let repeated = attempts.iter().filter(|judged| !judged.counts).count();
    let disturbed =
        attempts.iter().filter(|judged| judged.counts && judged.disturbance.is_too_much()).count();
    println!(
        "\n{} rounds in {:.0} s; {repeated} more were repeated, because others used the machine; of those that count, {disturbed} were disturbed",
        attempts.len() - repeated,
        took.as_secs_f64()
    );
}

fn write_pictures(folder: &Path, played: &[Played], curves: &[curves::Curve]) -> Result {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let groups = played.iter().map(|played| (played.group.name, picture::bars(played)));
    let curves = curves.iter().map(|curve| (curve.name, picture::lines(curve)));
    for (name, text) in groups.chain(curves) {
        let file: PathBuf = folder.join(format!("{name}.svg"));
        fs::write(&file, text).map_err(at(&file))?;
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value: {USAGE}"));
        match word.as_str() {
            "--quick" => options.quick = true,
            "--curves" => options.curves = true,
            "--update-docs" => options.update_docs = true,
            "--inside" => options.inside = true,
            "--only" => options.only = Some(value()?),
            "--json" => options.json = Some(value()?),
            "--pictures" => options.pictures = Some(value()?),
            other => return Err(format!("unknown option {other}: {USAGE}")),
        }
    }
    if options.update_docs && options.only.is_some() {
        return Err(format!("--update-docs wants all metrics: {USAGE}"));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_metric_needs_its_own_contenders_only() {
        let groups = selected(Some("write_1m")).unwrap();
        let names: Vec<_> = groups[0].contenders.iter().map(|contender| contender.name).collect();
        assert_eq!((groups.len(), names), (1, vec!["bare TCP", "Ironwarp"]));
        assert!(selected(Some("1m")).unwrap()[0].metrics.len() > 5, "all that have it in their names");
        assert!(selected(Some("nothing")).is_err());
    }

    #[test]
    fn options_are_as_the_usage_has_them() {
        let words = ["--quick", "--json", "x.json", "--curves"].map(str::to_owned);
        let options = parse(&words).unwrap();
        assert!(options.quick && options.curves && options.json.as_deref() == Some("x.json"));
        assert!(parse(&["--json".to_owned()]).is_err());
        assert!(parse(&["--fast".to_owned()]).is_err());
        let partly = ["--update-docs", "--only", "write_1m"].map(str::to_owned);
        assert!(parse(&partly).is_err(), "the page has all metrics, or none");
    }
}
