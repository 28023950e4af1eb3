//! The jobs that are no more than cargo and its arguments.

use crate::fuzz;
use crate::no_std;
use crate::shell::{Result, command, run};
use crate::workspace::Workspace;

pub(crate) fn fmt(_: &Workspace, _: &[String]) -> Result {
    run(&mut command("cargo", &["fmt", "--all", "--check"]))
}

pub(crate) fn clippy(_: &Workspace, _: &[String]) -> Result {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    run(&mut command("cargo", &arguments))
}

/// The fuzz targets are left out: they have no tests, and libFuzzer brings a `main` of its own.
pub(crate) fn test(_: &Workspace, _: &[String]) -> Result {
    run(&mut command("cargo", &["nextest", "run", "--workspace", "--locked", "--exclude", fuzz::PACKAGE]))?;
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
    let arguments = [&["test", "--release", "--locked"][..], &package, &["loom"]].concat();
    let mut command = command("cargo", &arguments);
    command.env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    run(command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3"))
}

pub(crate) const SIM_USAGE: &str = "sim [--seed N | --seeds N]";

/// The simulator's own program; its options are ours.
pub(crate) fn sim(_: &Workspace, options: &[String]) -> Result {
    let arguments = ["run", "--release", "--locked", "--quiet", "--package", "ironwarp-sim", "--"];
    run(command("cargo", &arguments).args(options))
}

/// Advisories are left out: their database comes over the network and changes from day to day, so the
/// same commit would pass today and fail tomorrow.
pub(crate) fn deny(_: &Workspace, _: &[String]) -> Result {
    run(&mut command(
        "cargo",
        &["deny", "--locked", "--all-features", "check", "licenses", "bans", "sources"],
    ))
}
