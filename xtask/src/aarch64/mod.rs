//! `aarch64`: builds everything for aarch64, and runs tests, simulations and programs under QEMU, which emulates the
//! processor but not the kernel. Pairs of programs also run with one end on this machine's own processor.
//!
//! ```text
//!  root.rs      target/roots/arm64: Debian's loader, libraries and RDMA programs for arm64
//!  pairs.rs     a server and a client, in a network of their own
//!  emulator.rs  runs what was built for aarch64, by the script `emulate`
//! ```

mod emulator;
mod pairs;
mod root;

use crate::dropin::{self, Architecture};
use crate::inside;
use crate::setup;
use crate::shell::{Result, output, run as run_command};
use crate::workspace::Workspace;
use emulator::{ARCHITECTURE, Emulator};

pub(crate) const USAGE: &str = "aarch64 [--pairs]";

/// Commands, and the Debian packages that contain them.
const TOOLS: &[(&str, &str)] = &[
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("qemu-aarch64-static", "qemu-user-static"),
    ("unshare", "util-linux"),
];
/// The C library to link with.
const LIBRARIES: &[&str] = &["libc6-dev-arm64-cross"];

/// All crates but those that only run on the machine that builds.
const BUILT: &[&str] = &["--workspace", "--exclude", "xtask", "--exclude", "ironwarp-fuzz"];
/// Crates all of whose tests run. They compute, and make no system calls that QEMU would have to translate.
const TESTED: &[&str] = &[
    "--no-fail-fast",
    "--package",
    "ironwarp-wire",
    "--package",
    "ironwarp-rnic",
    "--package",
    "ironwarp-shm",
];
/// What computes a lot is optimised, because emulation takes ten times as long.
const OPTIMIZED: [&str; 2] = ["--profile", "optimized"];
/// Options of the simulator.
const SIMULATIONS: [&[&str]; 3] =
    [&["--seeds", "500"], &["--events", "--seeds", "100"], &["--datagrams", "--seeds", "100"]];
/// Simulations with this seed must be the same on all processors, step by step.
const SEED: &str = "7";

/// Runs the job; with `--pairs` only pairs of programs; with `--inside` these, in a network that is ours.
pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let all = match options {
        [] => true,
        [option] if option == "--pairs" => false,
        [option] if option == "--inside" => return pairs::run(&Emulator::new(workspace)?, workspace),
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    setup::install(TOOLS, LIBRARIES)?;
    ARCHITECTURE.install()?;
    let emulator = Emulator::new(workspace)?;
    let built = dropin::build_for(ARCHITECTURE, workspace, false)?;
    dropin::check(&built, &root::originals(&emulator.root))?;
    if all {
        compute(&emulator)?;
    }
    dropin::build(workspace, false)?;
    inside::run_inside("aarch64", &["--net"], &[])
}

/// Builds all crates, and runs those that only compute.
fn compute(emulator: &Emulator) -> Result {
    run_command(ARCHITECTURE.cargo(&["build"]).args(BUILT))?;
    run_command(emulator.cargo("test").args(OPTIMIZED).args(TESTED))?;
    const RUN: [&str; 6] = [OPTIMIZED[0], OPTIMIZED[1], "--quiet", "--package", "ironwarp-sim", "--"];
    SIMULATIONS.iter().try_for_each(|options| run_command(emulator.cargo("run").args(RUN).args(*options)))?;
    for options in [&["--seed", SEED][..], &["--events", "--seed", SEED], &["--datagrams", "--seed", SEED]] {
        let emulated = output(emulator.cargo("run").args(RUN).args(options))?;
        let native = output(Architecture::HOST.cargo(&["run"]).args(RUN).args(options))?;
        if emulated != native {
            return Err(format!("{} differs between processors", options.join(" ")));
        }
        println!("{}: {} lines, the same on both processors", options.join(" "), native.lines().count());
    }
    Ok(())
}
