//! `siw-bench`: compares plain TCP, Linux siw and Ironwarp in one guest, measured alternately by one program.
//!
//! The guest is emulated, so absolute times mean little and the results are ratios. A second run uses one
//! processor and a clock that counts instructions (QEMU's `icount`): a "nanosecond" is then an instruction of
//! the guest, for the kernel and both ends together, and results hardly vary.
//!
//! ```text
//!  guest/measure.c   the program: over TCP, or over the libibverbs that it finds
//!  overlay           it and the drop-in, as a second archive behind the guest's own initramfs
//! ```

use crate::arguments::Arguments;
use crate::shell::{Result, at, command, output, run as run_command, write_json};
use crate::workspace::Workspace;
use crate::{dropin, guest};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(crate) const USAGE: &str = "siw-bench [--json FILE] [--rounds N]";

/// Default number of measurements. Instructions are counted twice, to show that they hardly vary.
const ROUNDS: usize = 5;
const COUNTED: usize = 2;

/// What is measured: the guest, the name, and the command line there. Others are compared with the first of
/// each guest. In siw, checksums are a build option; in Ironwarp, a setting.
const GUESTS: [(&str, &[(&str, &str)]); 2] = [
    ("plain", &[("TCP", "measure tcp"), ("siw", "measure verbs"), ("Ironwarp", "IRONWARP_CRC=off ironwarp")]),
    ("crc", &[("TCP", "measure tcp"), ("siw, CRC", "measure verbs"), ("Ironwarp, CRC", "ironwarp")]),
];

/// The beginning of the script in the guest: a port for each run, and Ironwarp with the persona and the
/// completion semantics of siw.
const PRELUDE: &str = "
port=7000
ironwarp() { IRONWARP_SHM=off /ironwarp/bin/ironwarp run --persona iwarp -- measure verbs \"$@\"; }
turn() { port=$((port + 1)); echo \"MEASURE of $1\"; shift; eval \"$* 10.0.2.15 $port\" || exit 1; }
";

/// The clock of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Real,
    Instructions,
}

/// Measurements in order, by metric and by contender.
type Figures = BTreeMap<(String, u64), BTreeMap<&'static str, Vec<f64>>>;

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let (json_file, rounds) = parse(options)?;
    dropin::build(workspace, true)?;
    let mut rows = Vec::new();
    for (variant, ways) in GUESTS {
        guest::run(workspace, &[variant.to_owned()])?;
        let place = prepare(workspace, variant)?;
        for (clock, rounds) in [(Clock::Real, rounds), (Clock::Instructions, COUNTED)] {
            println!("  siw guest {variant}: {rounds} rounds, {}", clock.unit());
            let figures = measure(&place, ways, clock, rounds)?;
            rows.extend(table(&figures, ways[0].0, clock));
        }
    }
    for row in &rows {
        println!("{row}");
    }
    if let Some(file) = json_file {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        write_json(&file, &rows)?;
    }
    Ok(())
}

fn parse(options: &[String]) -> Result<(Option<String>, usize)> {
    let (mut json, mut rounds) = (None, ROUNDS);
    let mut arguments = Arguments::new(options, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--json" => json = Some(arguments.value()?.into()),
            "--rounds" => rounds = arguments.number()?,
            _ => return Err(arguments.unknown()),
        }
    }
    Ok((json, rounds))
}

/// Prepares a guest with the program and the drop-in.
fn prepare(workspace: &Workspace, variant: &str) -> Result<PathBuf> {
    let from = workspace.target.join("siw-guest").join(variant);
    let place = workspace.target.join("siw-guest").join(format!("{variant}-bench"));
    let root = place.join("root");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(root.join("bin")).map_err(at(&root))?;
    let program = root.join("bin/measure");
    let source = workspace.root.join("guest/measure.c");
    let mut compile = command("cc", &["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    output(compile.arg(&program).arg(&source).args(["-lrdmacm", "-libverbs"]))?;
    let dropin = workspace.target.join("dropin");
    run_command(command("cp", &["-a"]).arg(&dropin).arg(root.join("ironwarp")))?;
    for file in [dropin.join("bin/ironwarp"), dropin.join("lib/ironwarp/libibverbs.so.1")] {
        let listed = output(command("ldd", &[]).arg(&file))?;
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            run_command(command("install", &["-D", library]).arg(root.join(&library[1..])))?;
        }
    }
    let names = output(command("find", &["."]).current_dir(&root))?;
    let mut archive = command("cpio", &["--quiet", "-o", "-H", "newc", "-R", "0:0"]);
    let failed = |error: std::io::Error| format!("cpio: {error}");
    let mut archive =
        archive.current_dir(&root).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut list = archive.stdin.take().ok_or("cpio has no input")?;
    list.write_all(names.as_bytes()).map_err(failed)?;
    drop(list);
    let overlay = archive.wait_with_output().map_err(failed)?.stdout;
    let initramfs = from.join("initramfs.cpio");
    let both = [fs::read(&initramfs).map_err(at(&initramfs))?, overlay].concat();
    fs::write(place.join("initramfs.cpio"), both).map_err(at(&place))?;
    for file in ["vmlinux", "stamp"] {
        fs::hard_link(from.join(file), place.join(file)).map_err(at(&from))?;
    }
    Ok(place)
}

/// Boots the guest once and measures all contenders in it.
fn measure(place: &Path, ways: &[(&'static str, &str)], clock: Clock, rounds: usize) -> Result<Figures> {
    let turns: Vec<_> = ways.iter().map(|(name, how)| format!("turn '{name}' '{how}'\n")).collect();
    let commands = format!("{PRELUDE}{}", turns.concat().repeat(rounds));
    let mut boot = command("guest/boot", &[]);
    boot.arg(place).arg(commands).env("GUEST_SECONDS", "600");
    if clock == Clock::Instructions {
        boot.env("GUEST_CLOCK", "instructions");
    }
    let console = output(&mut boot)?;
    let (mut figures, mut whose) = (Figures::new(), None);
    for line in console.lines().filter_map(|line| line.strip_prefix("MEASURE ")) {
        if let Some(name) = line.strip_prefix("of ") {
            whose = ways.iter().map(|(known, _)| *known).find(|known| *known == name);
            continue;
        }
        let words: Vec<_> = line.split(' ').collect();
        let (Some(name), [what, size, value]) = (whose, &words[..]) else {
            return Err(format!("unexpected line {line:?} from the guest:\n{console}"));
        };
        let (Ok(size), Ok(value)) = (size.parse(), value.parse()) else {
            return Err(format!("unexpected line {line:?} from the guest:\n{console}"));
        };
        figures.entry(((*what).to_owned(), size)).or_default().entry(name).or_default().push(value);
    }
    match figures.values().flat_map(BTreeMap::values).all(|values| values.len() == rounds) {
        true if !figures.is_empty() => Ok(figures),
        _ => Err(format!("measurements are missing:\n{console}")),
    }
}

/// One line of the result.
struct Row {
    what: String,
    size: u64,
    name: &'static str,
    clock: Clock,
    median: f64,
    /// Ratio to plain TCP in the same round, of bandwidths or of times: median, minimum and maximum.
    ratio: [f64; 3],
}

fn table(figures: &Figures, base: &str, clock: Clock) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((what, size), by) in figures {
        let Some(bare) = by.get(base) else { continue };
        for (&name, values) in by {
            // More is better for a stream, less for a round trip.
            let ratios = values.iter().zip(bare).map(|(own, bare)| match what.as_str() {
                "stream" => bare / own,
                _ => own / bare,
            });
            let ratios = sorted(ratios);
            let ratio = [middle(&ratios), ratios[0], ratios[ratios.len() - 1]];
            let median = middle(&sorted(values.iter().copied()));
            rows.push(Row { what: what.clone(), size: *size, name, clock, median, ratio });
        }
    }
    rows
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn middle(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

impl Clock {
    fn unit(self) -> &'static str {
        match self {
            Self::Real => "ns",
            Self::Instructions => "instructions",
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, size, name, clock, median, ratio: [ratio, least, most] } = self;
        let unit = clock.unit();
        write!(f, "  {what:6} {size:>8} B  {name:14} {median:12.0} {unit:12}")?;
        write!(f, "  {ratio:6.2} x TCP  ({least:.2} to {most:.2})")
    }
}

impl Row {
    fn json(&self) -> serde_json::Value {
        let Self { what, size, name, clock, median, ratio: [ratio, least, most] } = self;
        json!({
            "metric": format!("{what}_{size}"), "of": name, "value": median, "unit": clock.unit(),
            "baseline": "TCP", "ratio": ratio, "spread": [least, most],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round_and_more_is_better_for_streams() {
        let mut figures = Figures::new();
        let by = figures.entry(("stream".into(), 4096)).or_default();
        by.insert("TCP", vec![10.0, 100.0, 1000.0]);
        by.insert("siw", vec![5.0, 100.0, 2000.0]);
        let rows = table(&figures, "TCP", Clock::Real);
        let siw = rows.iter().find(|row| row.name == "siw").unwrap();
        assert_eq!((siw.median, siw.ratio), (100.0, [1.0, 0.5, 2.0]));
    }
}
