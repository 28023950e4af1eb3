//! `startup`: measures how much longer programs take to start and end under `ironwarp run`: one that uses no
//! verbs, and one that opens the device. Runs of a release build with and without the drop-in alternate; the
//! result is the difference of the medians. It is wall time, so the machine should be idle. On busy machines
//! the test `startup_makes_few_system_calls` stands in for this.

use crate::dropin;
use crate::shell::{Result, command};
use crate::workspace::Workspace;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "startup [--runs N]";

const RUNS: usize = 301;

/// Programs, and by how much each may be slower.
const PROGRAMS: [(&str, Duration); 2] =
    [("true", Duration::from_micros(1500)), ("ibv_devinfo", Duration::from_micros(2500))];

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let runs = match options {
        [] => RUNS,
        [option, runs] if option == "--runs" => {
            runs.parse().map_err(|_| format!("invalid number of runs `{runs}`"))?
        }
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    let ironwarp = dropin::build(workspace, true)?.command;
    println!("medians of {runs} starts, with quartiles, in µs");
    println!("program       bare               ironwarp run       difference");
    let mut findings = Vec::new();
    for (program, most) in PROGRAMS {
        let (mut bare, mut under) = (Vec::new(), Vec::new());
        for _ in 0..runs.max(1) {
            // Without a device it fails, but only after it has loaded the libraries and searched for devices.
            bare.push(time(&mut command(program, &[]))?);
            under.push(time(Command::new(&ironwarp).args(["run", "--", program]).stdin(Stdio::null()))?);
        }
        let (bare, under) = (Spread::of(bare), Spread::of(under));
        let more = under.median.saturating_sub(bare.median);
        println!("{program:<12}  {bare}  {under}  {}", more.as_micros());
        if more > most {
            findings.push(format!(
                "{program} takes {} µs longer, maximum is {}",
                more.as_micros(),
                most.as_micros()
            ));
        }
    }
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}

/// Returns the time from start to end.
fn time(command: &mut Command) -> Result<Duration> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    command.status().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(began.elapsed())
}

/// Median and quartiles of many times.
struct Spread {
    median: Duration,
    quartiles: [Duration; 2],
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 4];
        Self { median: at(2), quartiles: [at(1), at(3)] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, third] = self.quartiles.map(|time| time.as_micros());
        write!(f, "{:>5} ({first:>5}–{third:>5})", self.median.as_micros())
    }
}
