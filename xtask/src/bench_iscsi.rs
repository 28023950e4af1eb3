//! `bench-iscsi`: compares the processor time that a read costs the iSCSI initiator with libiscsi's, in one run. Both read from
//! the same tgtd on loopback, without digests: libiscsi has none.
//!
//! The processor time is that of the whole process, from its start to its end, and does not include tgtd. The results that
//! count are ratios: the speed of the machine varies, but less within a round.

use crate::arguments::Arguments;
use crate::bench::judge::Load;
use crate::bench::statistics::spread;
use crate::setup;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use ironwarp_testkit::tgtd::{NAME, Tgtd};
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "bench-iscsi [--rounds N] [--seconds N]";

const PROGRAM: &str = "ironwarp-bench";
const PACKAGES: &[&str] = &["libiscsi-bin", "tgt"];
/// Size of the logical unit.
const DISK: u64 = 1 << 30;
const BLOCK: usize = 512;
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 256 << 10];
/// Number of outstanding commands.
const DEPTH: &str = "32";
/// Parameters of the target, so that a read of any size is answered with one PDU.
const PARAMETERS: [(&str, &str); 4] = [
    ("MaxRecvDataSegmentLength", "262144"),
    ("MaxXmitDataSegmentLength", "262144"),
    ("FirstBurstLength", "262144"),
    ("InitialR2T", "No"),
];

/// The initiators: name, and how the commands of ours use buffers. The first is the one that the others are compared with; all
/// of its commands read to the same buffer.
const INITIATORS: [(&str, Option<&str>); 3] =
    [("libiscsi", None), ("ironwarp", Some("each")), ("ironwarp, one buffer", Some("one"))];

/// The result of one turn.
#[derive(Clone, Copy, Debug)]
struct Figures {
    iops: f64,
    /// Processor time of a read, in microseconds.
    micros: f64,
}

/// The results of one size: for each initiator, those of all rounds.
type Results = [Vec<Figures>; INITIATORS.len()];

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let (rounds, seconds) = parse(arguments)?;
    setup::install(&[], PACKAGES)?;
    run_command(&mut command("cargo", &["build", "--release", "--locked", "--package", PROGRAM]))?;
    let mut target = Tgtd::start(DISK);
    for (parameter, value) in PARAMETERS {
        target.set(parameter, value);
    }
    cache(&target.disk())?;
    let place = Place { program: workspace.target.join("release").join(PROGRAM), target, seconds };
    let mut results: [Results; SIZES.len()] = Default::default();
    let mut disturbed = 0;
    for round in 0..rounds {
        let before = Load::now()?;
        for (size, results) in SIZES.into_iter().zip(&mut results) {
            // Each round has another order.
            for turn in 0..INITIATORS.len() {
                let index = (round + turn) % INITIATORS.len();
                let (name, buffers) = INITIATORS[index];
                let figures = place.turn(size, buffers)?;
                let (kib, Figures { iops, micros }) = (size >> 10, figures);
                println!("  round {}, {kib} KiB, {name}: {iops:.0} IOPS, {micros:.2} µs", round + 1);
                results[index].push(figures);
            }
        }
        let disturbance = before.until(&Load::now()?);
        let (foreign, steal) = (disturbance.foreign * 100.0, disturbance.steal * 100.0);
        println!("  round {}: other processes used {foreign:.0} %, {steal:.0} % were stolen", round + 1);
        disturbed += usize::from(disturbance.is_too_much());
    }
    println!("\n{}", table(&results));
    println!("{rounds} rounds, of which {disturbed} were disturbed by other processes");
    Ok(())
}

/// Where turns take place.
struct Place {
    program: PathBuf,
    target: Tgtd,
    /// Duration of a turn.
    seconds: u32,
}

impl Place {
    fn turn(&self, size: usize, buffers: Option<&str>) -> Result<Figures> {
        let before = Load::now()?;
        let (iops, commands) = match buffers {
            None => self.libiscsi(size)?,
            Some(buffers) => self.ironwarp(size, buffers)?,
        };
        let processor = before.seconds_of_children(&Load::now()?);
        Ok(Figures { iops, micros: processor / commands * 1e6 })
    }

    /// Runs iscsi-perf. Returns the commands for each second, and their number.
    fn libiscsi(&self, size: usize) -> Result<(f64, f64)> {
        let (blocks, seconds) = ((size / BLOCK).to_string(), self.seconds.to_string());
        let url = format!("iscsi://{}/{NAME}/1", self.target.addr());
        let words = ["-m", DEPTH, "-b", &blocks, "-t", &seconds, &url];
        let printed = output(&mut command("iscsi-perf", &words))?;
        let iops = average(&printed).ok_or_else(|| format!("iscsi-perf printed no average:\n{printed}"))?;
        Ok((iops, iops * f64::from(self.seconds)))
    }

    /// Runs our initiator. Returns the same.
    fn ironwarp(&self, size: usize, buffers: &str) -> Result<(f64, f64)> {
        let (address, size) = (self.target.addr().to_string(), size.to_string());
        let millis = (self.seconds * 1000).to_string();
        let words = ["iscsi", &address, NAME, &size, DEPTH, &millis, buffers];
        let printed = output(&mut command(&self.program.to_string_lossy(), &words))?;
        let value = |key: &str| {
            let word = printed.split_whitespace().find_map(|word| word.strip_prefix(key));
            word.and_then(|value| value.parse::<f64>().ok()).ok_or_else(|| format!("no {key} in: {printed}"))
        };
        let (seconds, commands) = (value("seconds=")?, value("commands=")?);
        Ok((commands / seconds, commands))
    }
}

/// Reads a file once, so that its pages are in the kernel's cache.
fn cache(path: &Path) -> Result {
    let mut file = File::open(path).map_err(at(path))?;
    io::copy(&mut file, &mut io::sink()).map(drop).map_err(at(path))
}

/// Reads the output of iscsi-perf: it overwrites a line each second, and the last one has the average of the whole run.
fn average(printed: &str) -> Option<f64> {
    let last = printed.split('\r').next_back()?.strip_prefix("iops average ")?;
    last.split(' ').next()?.parse().ok().filter(|iops| *iops > 0.0)
}

const HEADING: &str = "\
| read | initiator | IOPS | ratio to libiscsi | processor time of a read, µs | ratio to libiscsi |
|---|---|---|---|---|---|
";

/// Writes the table in Markdown: medians over the rounds, with minimum and maximum. Ratios are those of single rounds.
fn table(results: &[Results; SIZES.len()]) -> String {
    let mut text = HEADING.to_owned();
    for (size, results) in SIZES.into_iter().zip(results) {
        for ((name, _), rounds) in INITIATORS.into_iter().zip(results) {
            let values = |of: fn(&Figures) -> f64| spread(rounds.iter().map(of).collect(), 2);
            let iops = spread(rounds.iter().map(|one| one.iops).collect(), 0);
            let ratios = |of: fn(&Figures) -> f64| {
                spread(rounds.iter().zip(&results[0]).map(|(own, base)| of(own) / of(base)).collect(), 2)
            };
            let cells = [iops, ratios(|one| one.iops), values(|one| one.micros), ratios(|one| one.micros)];
            let _ = writeln!(text, "| {} KiB | {name} | {} |", size >> 10, cells.join(" | "));
        }
    }
    text
}

fn parse(arguments: &[String]) -> Result<(usize, u32)> {
    let (mut rounds, mut seconds) = (5, 3);
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--rounds" => rounds = arguments.number()?,
            "--seconds" => seconds = arguments.number()?,
            _ => return Err(arguments.unknown()),
        }
    }
    match rounds == 0 || !(1..=3600).contains(&seconds) {
        true => Err(format!("--rounds must be at least 1, --seconds 1 to 3600; usage: cargo xtask {USAGE}")),
        false => Ok((rounds, seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_of_the_whole_run_counts() {
        let printed = "iscsi-perf version 0.1\n\nconnected\n\r00:00:01 - lba 8, iops current 9 (0 MB/s), iops average 9 \
            (0 MB/s), in_flight 32, busy 0        \riops average 41785 (163 MB/s)      \nfinished.\n";
        assert_eq!(average(printed), Some(41785.0));
        assert_eq!(average("connected\n\r00:00:01 - lba 8, iops average 9 (0 MB/s)"), None);
        assert_eq!(average("\riops average 0 (0 MB/s)"), None);
    }

    #[test]
    fn ratios_are_those_of_single_rounds() {
        let rounds = |micros: [f64; 3]| micros.map(|micros| Figures { iops: 10.0, micros }).to_vec();
        let one = [rounds([2.0, 10.0, 4.0]), rounds([1.0, 1.0, 1.0]), rounds([4.0, 20.0, 8.0])];
        let text = table(&[one.clone(), one.clone(), one]);
        let first =
            "| 4 KiB | ironwarp | 10 (10–10) | 1.00 (1.00–1.00) | 1.00 (1.00–1.00) | 0.25 (0.10–0.50) |";
        assert_eq!(text.lines().nth(3), Some(first));
        assert!(text.lines().last().unwrap().ends_with("| 8.00 (4.00–20.00) | 2.00 (2.00–2.00) |"), "{text}");
    }

    #[test]
    fn options_are_as_the_usage_has_them() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&words("--rounds 2 --seconds 1")), Ok((2, 1)));
        assert!(parse(&words("--rounds 0")).is_err());
        assert!(parse(&words("--depth 1")).is_err());
    }
}
