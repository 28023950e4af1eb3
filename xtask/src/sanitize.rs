//! `sanitize`: the tests of the crates with threads and unsafe code, with AddressSanitizer in the code of all crates.
//!
//! The sanitizers are unstable options of rustc, and their libraries come with every toolchain: RUSTC_BOOTSTRAP turns them
//! on. AddressSanitizer accepts a standard library that was built without it. ThreadSanitizer does not: it needs std built
//! with it (-Zbuild-std), which takes the source of std; without that it takes the fences of `Arc` for races.

use crate::shell::{Result, command, output, run as run_command};
use crate::workspace::Workspace;
use std::path::PathBuf;
use std::process::Command;

pub(crate) const USAGE: &str = "sanitize";

/// The tests of these, which need no program of C.
const PACKAGES: [&str; 3] = ["ironwarp-engine", "ironwarp", "ironwarp-ibverbs"];
/// All but tests in which a thread vanishes by a bare system call: the sanitizer keeps books of threads, and aborts.
const TESTS: &str = "not test(vanished)";
/// Line numbers are all that a report needs.
const DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
/// Leaks are none of its business: the drop-in keeps what lives as long as the process.
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
        let host = host.ok_or("`rustc -vV` names no host")?.to_owned();
        Ok(Self { host, folder: workspace.target.join("sanitize") })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = command("cargo", arguments);
        cargo.args(["--locked", "--target", &self.host, "--target-dir"]).arg(&self.folder);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes");
        cargo.env(DEBUG.0, DEBUG.1);
        cargo
    }

    /// The drop-in as a static library: the sanitizer must be part of the program itself.
    pub(crate) fn library(&self) -> Result<PathBuf> {
        run_command(&mut self.cargo(&["build", "--lib", "--package", "ironwarp-ibverbs"]))?;
        Ok(self.folder.join(&self.host).join("debug/libironwarp_ibverbs.a"))
    }

    /// The sanitizer's own library.
    pub(crate) fn runtime(&self) -> Result<PathBuf> {
        let root = output(&mut command("rustc", &["--print", "sysroot"]))?;
        let folder = PathBuf::from(root.trim()).join("lib/rustlib").join(&self.host).join("lib");
        Ok(folder.join("librustc-stable_rt.asan.a"))
    }
}
