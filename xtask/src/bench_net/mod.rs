//! `bench-net`: compares the I/O unit with other ways to connect containers on two machines without root, in one run. The
//! results that count are ratios: the speed of the machine varies, but less within a round.
//!
//! ```text
//!   container ─ tunnel ─ machine "left" ═ veth ═ machine "right" ─ tunnel ─ container
//!
//!  network.rs     the machines and containers
//!  tunnel.rs      the tunnels; forwarder.c: the one that all are compared with
//!  measure.rs     what is measured and checked
//!  report.rs      the table
//! ```
//!
//! The CPU time is that of the forwarding processes. What the kernel does for them in other threads is not included.

mod measure;
mod network;
mod report;
mod tunnel;

use crate::arguments::Arguments;
use crate::inside::run_inside;
use crate::setup;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use measure::{Figures, Turn};
use network::Machines;
use report::Row;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use tunnel::{Programs, Tunnel};

pub(crate) const USAGE: &str = "bench-net [--rounds N] [--seconds N] [--paths NAME,…]";

const PACKAGE: &str = "ironwarp-net";
/// Commands with the packages that contain them, and packages whose commands cannot be asked for their version.
const TOOLS: &[(&str, &str)] =
    &[("iperf3", "iperf3"), ("slirp4netns", "slirp4netns"), ("vde_switch", "vde2"), ("dpipe", "vde2")];
const PACKAGES: &[&str] = &["iproute2", "iputils-ping", "socat"];

#[derive(Debug)]
struct Options {
    rounds: usize,
    /// Duration of each direction of a turn.
    seconds: u32,
    tunnels: Vec<Tunnel>,
    /// Set if the job can create network namespaces.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        setup::install(TOOLS, PACKAGES)?;
        run_command(&mut command("cargo", &["build", "--release", "--locked", "--package", PACKAGE]))?;
        return run_inside("bench-net", &["--net"], arguments);
    }
    let place = Place::new(workspace)?;
    let rows = place.measure(&options);
    println!("\n{}", report::table(&rows));
    for row in &rows {
        println!("- {}: {}", row.tunnel.name(), row.tunnel.about());
    }
    let failed: Vec<_> = rows
        .iter()
        .filter(|row| row.missing.as_deref() == Some(FAILED))
        .map(|row| row.tunnel.name())
        .collect();
    if failed.is_empty() {
        fs::remove_dir_all(&place.folder).map_err(at(&place.folder))
    } else {
        Err(format!("failed paths: {}; logs are in {}", failed.join(", "), place.folder.display()))
    }
}

/// The entry of a tunnel that did not work.
const FAILED: &str = "failed";

/// Where turns take place.
struct Place {
    folder: PathBuf,
    programs: Programs,
    machines: Machines,
}

impl Place {
    fn new(workspace: &Workspace) -> Result<Self> {
        // Sockets are in this folder, so its name must be short.
        let folder = env::temp_dir().join(format!("ironwarp-bench-net-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let programs = Programs {
            forwarder: folder.join("forwarder"),
            ironwarp_net: workspace.target.join("release").join(PACKAGE),
        };
        let compile = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"];
        let mut compile = command("cc", &compile);
        output(compile.arg("xtask/src/bench_net/forwarder.c").arg("-o").arg(&programs.forwarder))?;
        Ok(Self { machines: Machines::new(&folder)?, folder, programs })
    }

    /// Measures every tunnel once in each round, each round in another order. One that fails takes no further turns.
    fn measure(&self, options: &Options) -> Vec<Row> {
        println!("  load average: {}", load());
        let row = |&tunnel: &Tunnel| {
            let missing = tunnel.unavailable(&self.machines).map(|why| format!("not available: {why}"));
            Row { tunnel, rounds: Vec::new(), missing }
        };
        let mut rows: Vec<Row> = options.tunnels.iter().map(row).collect();
        for round in 0..options.rounds {
            for turn in 0..rows.len() {
                let index = (round + turn) % rows.len();
                let row = &mut rows[index];
                if row.missing.is_some() {
                    continue;
                }
                let name = row.tunnel.name();
                let folder = self.folder.join(format!("{round}-{name}"));
                match self.turn(row.tunnel, &folder, round == 0, options.seconds) {
                    Ok(figures) => {
                        let Figures { directions: [there, back], bytes_per_cpu, micros } = figures;
                        let per_cpu = bytes_per_cpu / 1e9;
                        println!(
                            "  round {}, {name}: {there:.2} and {back:.2} Gbit/s, {per_cpu:.2} GB per CPU second, ping {micros:.0} µs",
                            round + 1
                        );
                        row.rounds.push(figures);
                    }
                    Err(error) => {
                        println!("  round {}, {name}: failed: {error}", round + 1);
                        row.missing = Some(FAILED.to_owned());
                    }
                }
            }
        }
        rows
    }

    fn turn(&self, tunnel: Tunnel, folder: &Path, check: bool, seconds: u32) -> Result<Figures> {
        fs::create_dir(folder).map_err(at(folder))?;
        let open = tunnel.open(&self.machines, &self.programs, folder)?;
        let mut turn = Turn { machines: &self.machines, open, folder };
        turn.wait()?;
        if check {
            turn.check()?;
        }
        turn.measure(seconds)
    }
}

/// The load average of the machine. Other processes distort the results.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 5, seconds: 3, tunnels: Tunnel::ALL.to_vec(), inside: false };
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--rounds" => options.rounds = arguments.number()?,
            "--seconds" => options.seconds = arguments.number()?,
            "--paths" => options.tunnels = tunnels(arguments.value()?)?,
            "--inside" => options.inside = true,
            _ => return Err(arguments.unknown()),
        }
    }
    if options.rounds == 0 || options.seconds == 0 {
        return Err(format!("--rounds and --seconds must be at least 1; usage: cargo xtask {USAGE}"));
    }
    Ok(options)
}

fn tunnels(names: &str) -> Result<Vec<Tunnel>> {
    let find = |name: &str| {
        Tunnel::ALL.into_iter().find(|tunnel| tunnel.name() == name).ok_or_else(|| {
            let known = Tunnel::ALL.map(Tunnel::name).join(", ");
            format!("unknown path `{name}`, expected one of {known}")
        })
    };
    names.split(',').map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_as_the_usage_has_them() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--rounds 2 --seconds 1 --paths vde,bare")).unwrap();
        assert_eq!((options.rounds, options.seconds), (2, 1));
        assert_eq!(options.tunnels, [Tunnel::Vde, Tunnel::Bare]);
        assert_eq!(parse(&[]).unwrap().tunnels, Tunnel::ALL);
        assert!(parse(&words("--rounds 0")).is_err());
        assert!(parse(&words("--paths veth")).unwrap_err().contains("slirp4netns-vxlan"));
        assert!(parse(&words("--quick yes")).is_err());
    }
}
