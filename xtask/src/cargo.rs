//! The jobs that are no more than cargo and its arguments.

use crate::dropin;
use crate::fuzz;
use crate::no_std;
use crate::shell::{Result, command, output, run};
use crate::workspace::Workspace;
use std::process::Command;

pub(crate) fn fmt(_: &Workspace, _: &[String]) -> Result {
    run(&mut command("cargo", &["fmt", "--all", "--check"]))
}

pub(crate) fn clippy(_: &Workspace, _: &[String]) -> Result {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    run(&mut command("cargo", &arguments))
}

pub(crate) const TEST_USAGE: &str = "test [--full]";

/// Tests that do more, or judge more strictly, when `IRON_TEST_FULL` is set. They run one at a time then.
const LONG_FORMS: &str = "test(/^flood::/) + test(strangers_at_the_peers_address)";

/// The fuzz targets are left out: they have no tests, and libFuzzer brings a `main` of its own.
pub(crate) fn test(workspace: &Workspace, options: &[String]) -> Result {
    let full = is_full(options, TEST_USAGE)?;
    dropin::run(workspace, &[])?; // some tests start programs with it
    let nextest = ["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--exclude", fuzz::PACKAGE];
    run(&mut command("cargo", &nextest))?;
    if full {
        let long = ["--test-threads", "1", "--profile", "long", "--filterset", LONG_FORMS];
        run(command("cargo", &nextest).args(long).env("IRON_TEST_FULL", "1"))?;
    }
    // Without std the wire crate computes the CRC in another way.
    run(&mut command(
        "cargo",
        &["nextest", "run", "--package", no_std::PACKAGE, "--locked", "--no-default-features", "--lib"],
    ))?;
    run(&mut command("cargo", &["test", "--doc", "--workspace", "--locked", "--exclude", fuzz::PACKAGE]))
}

pub(crate) fn doc(_: &Workspace, _: &[String]) -> Result {
    let arguments = ["doc", "--no-deps", "--workspace", "--locked", "--exclude", fuzz::PACKAGE];
    run(command("cargo", &arguments).env("RUSTDOCFLAGS", "-D warnings"))
}

/// The tests called `loom` replace threads and locks by loom's: a build of its own.
pub(crate) fn loom(workspace: &Workspace, _: &[String]) -> Result {
    let package = ["--package", "ironwarp-rnic", "--lib", "--test", "loom_memory"];
    let arguments = [&["test", "--profile", "optimized", "--locked"][..], &package, &["loom"]].concat();
    let mut command = command("cargo", &arguments);
    command.env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    run(command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3"))
}

/// Ten million events between threads: too many for a build that is not optimised, in which `test` has 200,000.
pub(crate) fn events(_: &Workspace, _: &[String]) -> Result {
    let test = ["--package", "ironwarp-engine", "--test", "notification", "ten_million", "--", "--nocapture"];
    run(command("cargo", &["test", "--profile", "optimized", "--locked", "--quiet"]).args(test))
}

pub(crate) const SIM_USAGE: &str = "sim [--full | [--events] [--seed N | --seeds N]]";

const SIM: [&str; 8] =
    ["run", "--profile", "optimized", "--locked", "--quiet", "--package", "ironwarp-sim", "--"];

/// What the simulator is told without options of ours: two programs at work, then events. With `--full` it has its own
/// defaults, which reach everything that the simulation is meant to reach, and says so.
const SOME_SEEDS: [&[&str]; 2] = [&["--seeds", "2000"], &["--events", "--seeds", "600"]];
const ALL_SEEDS: [&[&str]; 2] = [&[], &["--events"]];

/// How a build can be broken on purpose: it forgets to take back what did not leave, does an atomic operation again when its
/// answer is sent again, does not call who waits for a shared receive.
const BROKEN: [&str; 3] = ["train", "atomic", "waiter"];

/// And: a completion queue that is resized loses what came last, one that is moved to another handler is armed no more, one that
/// is moderated does not start its timer. Programs at work find these out, and so does the simulation of events alone.
const BROKEN_EVENTS: [&str; 3] = ["resize", "move", "timer"];

/// The simulator's own program; its options are ours. Without any, and with `--full`, it also has to find out what is wrong
/// with builds that are broken on purpose.
pub(crate) fn sim(workspace: &Workspace, options: &[String]) -> Result {
    let runs = match options {
        [] => SOME_SEEDS,
        [option] if option == FULL => ALL_SEEDS,
        _ => return run(simulator(workspace).args(options)),
    };
    runs.iter().try_for_each(|options| run(simulator(workspace).args(*options)))?;
    BROKEN.into_iter().chain(BROKEN_EVENTS).try_for_each(|way| find_out(workspace, way, &[]))?;
    BROKEN_EVENTS.into_iter().try_for_each(|way| find_out(workspace, way, &["--events"]))
}

/// One build serves all runs: it is broken only where `IRONWARP_BROKEN` says so.
fn simulator(workspace: &Workspace) -> Command {
    let mut simulator = command("cargo", &SIM);
    simulator.env("CARGO_TARGET_DIR", workspace.target.join("sim"));
    simulator.env("RUSTFLAGS", "--cfg ironwarp_broken").env_remove("IRONWARP_BROKEN");
    simulator
}

fn find_out(workspace: &Workspace, way: &str, options: &[&str]) -> Result {
    match output(simulator(workspace).args(options).env("IRONWARP_BROKEN", way)) {
        Err(said) if said.contains("does it again") => {
            let seed = said.lines().find(|line| line.contains("does it again")).unwrap_or_default();
            println!("broken on purpose ({way}), and found out: {seed}");
            Ok(())
        }
        Err(said) => Err(said),
        Ok(_) => Err(format!("a build that is broken on purpose ({way}) passed all seeds")),
    }
}

/// The option of jobs that CI runs in part.
pub(crate) const FULL: &str = "--full";

fn is_full(options: &[String], usage: &str) -> Result<bool> {
    match options {
        [] => Ok(false),
        [option] if option == FULL => Ok(true),
        _ => Err(format!("usage: cargo xtask {usage}")),
    }
}

/// Advisories are left out: their database comes over the network and changes from day to day, so the
/// same commit would pass today and fail tomorrow.
pub(crate) fn deny(_: &Workspace, _: &[String]) -> Result {
    run(&mut command(
        "cargo",
        &["deny", "--locked", "--all-features", "check", "licenses", "bans", "sources"],
    ))
}
