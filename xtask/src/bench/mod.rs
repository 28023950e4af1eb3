//! `bench`: compares bare TCP, Ironwarp, stock programs on it, UCX and libfabric on the same operations in
//! one run. The results are ratios, because the speed of the machine varies, but within a round it is the
//! same for all.
//!
//! ```text
//!  group.rs       contenders and metrics; catalogue.rs: all groups; selection.rs: which of them to measure
//!  ring.rs        rows over shared memory; busy.rs: rows beside busy neighbours
//!  turn.rs        what is measured, and where
//!  contender.rs   how one takes its turn; peers.rs: other projects' programs, neighbours.rs: processes that
//!                 compute meanwhile, wan.rs: two hosts and a bad link
//!  rounds.rs      runs rounds; judge.rs: which count, statistics.rs: summaries
//!  report.rs      the table and the JSON; picture.rs: pictures, docs.rs: docs/performance.md
//!  curves.rs      how cost grows with size, queue depth and connections
//! ```
//!
//! Both ends of our own turns are in crates/bench. Missing a target is a result, not a failure; what could
//! not be measured is a failure.

mod busy;
mod catalogue;
mod contender;
mod curves;
mod docs;
mod group;
pub(crate) mod judge;
mod neighbours;
mod peers;
mod picture;
mod report;
mod ring;
mod rounds;
mod selection;
pub(crate) mod statistics;
mod turn;
mod wan;

use crate::arguments::Arguments;
use crate::dropin;
use crate::inside::run_inside;
use crate::shell::{Result, at, command, output, run as run_command, write_json};
use crate::workspace::Workspace;
use group::Group;
use rounds::{Measured, run_rounds};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use turn::Place;

pub(crate) const USAGE: &str =
    "bench [--quick] [--only METRIC] [--curves] [--json FILE] [--pictures DIR] [--update-docs]";

const PACKAGE: &str = "ironwarp-bench";

/// How much to measure.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Duration of a turn in milliseconds, before it is multiplied by the group's factor.
    millis: u64,
    rounds: usize,
    /// Number of rounds of groups with longer turns.
    slow_rounds: usize,
    /// Total time for repeating rounds. Each group gets its share, and what previous groups have left.
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
    /// Set if the job can create network namespaces.
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
    let mut groups = selection::selected(options.only.as_deref(), options.quick)?;
    let absent = selection::remove_absent(&mut groups, &peers::Offered::now()?);
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
    let mut results = Results { absent, ..Results::default() };
    results.measure(groups, &place, extent);
    if options.curves {
        match curves::measure(&place, extent.slow_rounds) {
            Ok(curves) => results.curves = curves,
            Err(error) => results.failures.push(error),
        }
    }
    results.print(start.elapsed());
    results.write(&options, workspace)
}

/// The results of a run, and what could not be measured.
#[derive(Debug, Default)]
struct Results {
    measured: Vec<Measured>,
    curves: Vec<curves::Curve>,
    /// The contenders that the installed packages do not have, with the reasons.
    absent: Vec<String>,
    failures: Vec<String>,
}

impl Results {
    /// Continues with other groups if one fails.
    fn measure(&mut self, groups: Vec<Group>, place: &Place, extent: Extent) {
        let share = extent.repeats.div_f64(groups.len().max(1) as f64);
        let mut allowance = Duration::ZERO;
        for group in groups {
            allowance += share;
            let (name, start) = (group.name, Instant::now());
            match measure_group(group, place, extent, &mut allowance) {
                Ok(measured) => {
                    println!("  {name}: {:.0} s", start.elapsed().as_secs_f64());
                    self.measured.push(measured);
                }
                Err(error) => {
                    println!("  {name}: failed: {error}");
                    self.failures.push(format!("{name}: {error}"));
                }
            }
        }
    }

    fn print(&self, took: Duration) {
        let Self { measured, absent, .. } = self;
        for one in measured {
            println!(
                "\n{}{}",
                one.group.title,
                one.link.map(|link| format!(" ({link})")).unwrap_or_default()
            );
            println!(
                "  {:<40}{:>9}          {:<18}{:^20}   {:^19}",
                "", "median", "quartiles", "per CPU-second:", "completions:"
            );
            report::lines(one).iter().for_each(|line| println!("{line}"));
        }
        println!("\n{}", report::HEADING);
        report::rows(measured).iter().for_each(|row| println!("{row}"));
        absent.iter().for_each(|absent| println!("not measured: {absent}"));
        let attempts: Vec<_> = measured.iter().flat_map(|measured| &measured.judged).collect();
        let repeated = attempts.iter().filter(|judged| !judged.counts).count();
        let disturbed =
            attempts.iter().filter(|judged| judged.counts && judged.disturbance.is_too_much()).count();
        println!(
            "\n{} rounds in {:.0} s; {repeated} more were repeated because other processes used the machine; of those that count, {disturbed} were disturbed",
            attempts.len() - repeated,
            took.as_secs_f64()
        );
    }

    fn write(&self, options: &Options, workspace: &Workspace) -> Result {
        let Self { measured, curves, absent, failures } = self;
        let rows = report::rows(measured);
        if let Some(file) = &options.json {
            let mut all: Vec<_> = rows.iter().map(report::Row::json).collect();
            all.extend(
                measured.iter().flat_map(|one| report::lines(one).into_iter().map(|line| line.json(one))),
            );
            all.extend(curves.iter().flat_map(curves::Curve::json));
            all.extend(absent.iter().map(|absent| json!({ "absent": absent })));
            write_json(file, &all)?;
        }
        if let Some(folder) = &options.pictures {
            picture::write(Path::new(folder), measured, curves)?;
        }
        if !failures.is_empty() {
            return Err(format!("some groups failed:\n{}", failures.join("\n")));
        }
        if options.update_docs {
            docs::update(&workspace.root, &rows, measured, curves, absent)?;
        }
        Ok(())
    }
}

/// Sets up the network namespace: the loopback interface, which is down at first, and an interface with
/// another address, which the drop-in needs for its device but the measurements do not use.
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

/// Measures a group on this host, or across the link that it needs.
fn measure_group(group: Group, place: &Place, extent: Extent, allowance: &mut Duration) -> Result<Measured> {
    let rounds = if group.patience > 1 { extent.slow_rounds } else { extent.rounds };
    let link = group.link.map(|link| wan::Wan::new(link, &place.folder)).transpose()?;
    let networks = link.as_ref().map(wan::Wan::networks);
    let place = Place { networks, millis: extent.millis * group.patience, ..place.clone() };
    let mut measured = run_rounds(group, &place, rounds, allowance)?;
    measured.link = link.map(|link| link.made_of());
    Ok(measured)
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--quick" => options.quick = true,
            "--curves" => options.curves = true,
            "--update-docs" => options.update_docs = true,
            "--inside" => options.inside = true,
            "--only" => options.only = Some(arguments.value()?.into()),
            "--json" => options.json = Some(arguments.value()?.into()),
            "--pictures" => options.pictures = Some(arguments.value()?.into()),
            _ => return Err(arguments.unknown()),
        }
    }
    if options.update_docs && options.only.is_some() {
        return Err(format!("--update-docs needs all metrics; usage: cargo xtask {USAGE}"));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

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
