//! Runs programs for aarch64 under QEMU.

use super::root;
use crate::dropin::Architecture;
use crate::shell::{Result, command};
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const ARCHITECTURE: Architecture = Architecture::AARCH64;

/// Keeps the checks of a debug build in optimised ones.
const CHECKS: [&str; 2] =
    ["CARGO_PROFILE_OPTIMIZED_DEBUG_ASSERTIONS", "CARGO_PROFILE_OPTIMIZED_OVERFLOW_CHECKS"];

/// Starts programs for aarch64.
pub(super) struct Emulator {
    /// The folder with their loader and libraries.
    pub(super) root: PathBuf,
    script: PathBuf,
}

impl Emulator {
    pub(super) fn new(workspace: &Workspace) -> Result<Self> {
        let script = workspace.root.join("xtask/src/aarch64/emulate");
        Ok(Self { root: root::make(workspace)?, script })
    }

    /// Returns a command that runs a program, which may start others.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut emulated = command(&self.script.to_string_lossy(), &[]);
        emulated.arg(program).env("ROOT", &self.root);
        emulated
    }

    /// Returns a command of cargo that builds for aarch64 and runs what it has built.
    pub(super) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = ARCHITECTURE.cargo(&[subcommand]);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &self.script);
        cargo.envs(CHECKS.map(|check| (check, "true")));
        cargo.env("ROOT", &self.root);
        cargo
    }
}
