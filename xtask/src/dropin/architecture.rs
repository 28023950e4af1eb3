//! The processors that files are built for, and the tools for each.

use crate::shell::{Result, command, run};
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// Cargo's name, if it is not the architecture of this machine.
    triple: Option<&'static str>,
    /// Name of its C compiler.
    cc: &'static str,
}

impl Architecture {
    pub(crate) const HOST: Self = Self { triple: None, cc: "cc" };
    pub(crate) const AARCH64: Self =
        Self { triple: Some("aarch64-unknown-linux-gnu"), cc: "aarch64-linux-gnu-gcc" };

    /// Installs Rust's standard library for it, unless it is installed.
    pub(crate) fn install(self) -> Result {
        self.triple.map_or(Ok(()), |triple| run(&mut command("rustup", &["target", "add", triple])))
    }

    /// Returns the folder of the linked files. Commands in the folder of cargo's files look for the drop-in there.
    pub(crate) fn dropin(self, workspace: &Workspace) -> PathBuf {
        self.in_target(&workspace.target).join("dropin")
    }

    /// Returns the folder in which cargo has a folder for each profile.
    pub(super) fn in_target(self, target: &Path) -> PathBuf {
        target.join(self.triple.unwrap_or_default())
    }

    /// Returns a command of cargo, with its first options, that builds for this architecture.
    pub(crate) fn cargo(self, subcommand: &[&str]) -> Command {
        let mut cargo = command("cargo", subcommand);
        cargo.arg("--locked");
        if let Some(triple) = self.triple {
            let variable = format!("CARGO_TARGET_{}", triple.replace('-', "_").to_uppercase());
            cargo.args(["--target", triple]).env(format!("{variable}_LINKER"), self.cc);
        }
        cargo
    }

    pub(super) fn compiler(self) -> Command {
        command(self.cc, &[])
    }
}
