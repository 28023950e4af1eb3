//! `sanitize`: runs the tests of the crates with threads and unsafe code under AddressSanitizer.
//!
//! Sanitizers are unstable options of rustc, but every toolchain contains their libraries; RUSTC_BOOTSTRAP
//! enables them. AddressSanitizer accepts a standard library that was built without it. ThreadSanitizer does
//! not: without the source of std to build it with (-Zbuild-std), it reports the fences of `Arc` as races.

use crate::shell::{Result, command, output, run as run_command};
use crate::workspace::Workspace;
use std::path::PathBuf;
use std::process::Command;

pub(crate) const USAGE: &str = "sanitize";

/// The crates whose tests need no C program.
const PACKAGES: [&str; 4] = ["ironwarp-shm", "ironwarp-engine", "ironwarp", "ironwarp-ibverbs"];
/// Excludes tests in which a thread exits by a bare system call: the sanitizer tracks threads, and aborts.
const TESTS: &str = "not test(vanished)";
/// Reports need only line numbers.
const DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
/// Does not look for leaks: the drop-in keeps some objects as long as the process.
pub(crate) const OPTIONS: (&str, &str) = ("ASAN_OPTIONS", "detect_leaks=0");

/// A build with the sanitizer, in a folder of its own.
pub(crate) struct Sanitized {
    host: String,
    folder: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let sanitized = Sanitized::new(workspace)?;
    let mut tests = sanitized.cargo(&["nextest", "run", "--lib", "--no-fail-fast", "--filterset", TESTS]);
    tests.args(PACKAGES.map(|package| format!("--package={package}"))).env(OPTIONS.0, OPTIONS.1);
    run_command(&mut tests)
}

impl Sanitized {
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        let version = output(&mut command("rustc", &["-vV"]))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or("`rustc -vV` does not name the host")?.to_owned();
        Ok(Self { host, folder: workspace.target.join("sanitize") })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = command("cargo", arguments);
        cargo.args(["--locked", "--target", &self.host, "--target-dir"]).arg(&self.folder);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes");
        cargo.env(DEBUG.0, DEBUG.1);
        cargo
    }

    /// Builds the drop-in as a static library, because the sanitizer must be part of the program itself.
    pub(crate) fn library(&self) -> Result<PathBuf> {
        run_command(&mut self.cargo(&["build", "--lib", "--package", "ironwarp-ibverbs"]))?;
        Ok(self.folder.join(&self.host).join("debug/libironwarp_ibverbs.a"))
    }

    /// The runtime library of the sanitizer.
    pub(crate) fn runtime(&self) -> Result<PathBuf> {
        let root = output(&mut command("rustc", &["--print", "sysroot"]))?;
        let folder = PathBuf::from(root.trim()).join("lib/rustlib").join(&self.host).join("lib");
        Ok(folder.join("librustc-stable_rt.asan.a"))
    }
}
