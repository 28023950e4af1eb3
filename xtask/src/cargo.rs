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

/// Advisories are left out: their database comes over the network and changes from day to day, so the
/// same commit would pass today and fail tomorrow.
pub(crate) fn deny(_: &Workspace, _: &[String]) -> Result {
    run(&mut command(
        "cargo",
        &["deny", "--locked", "--all-features", "check", "licenses", "bans", "sources"],
    ))
}
