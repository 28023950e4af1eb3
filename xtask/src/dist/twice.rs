//! Builds the release a second time, from a clone in another directory, and compares all files byte by byte.

use super::release::{Release, SUMS};
use crate::roots::remove;
use crate::shell::{Result, command, output, run};
use crate::workspace::Workspace;

/// A clone has only what was committed.
pub(super) fn need_clean() -> Result {
    match output(&mut command("git", &["status", "--porcelain", "--untracked-files=no"]))?.as_str() {
        "" => Ok(()),
        changes => Err(format!("commit these changes first, which a clone does not have:\n{changes}")),
    }
}

pub(super) fn compare(workspace: &Workspace, release: &Release) -> Result {
    let elsewhere = std::env::temp_dir().join(format!("ironwarp-built-again-{}", std::process::id()));
    let compared = build_and_compare(workspace, release, &elsewhere);
    remove(&elsewhere)?;
    compared
}

fn build_and_compare(workspace: &Workspace, release: &Release, elsewhere: &std::path::Path) -> Result {
    let (clone, target) = (elsewhere.join("a clone"), elsewhere.join("output"));
    run(command("git", &["clone", "--quiet", "--"]).arg(&workspace.root).arg(&clone))?;
    let mut dist = command("cargo", &["xtask", "dist"]);
    run(dist.current_dir(&clone).env("CARGO_TARGET_DIR", &target))?;
    let mut names = release.artefacts()?;
    names.push(SUMS.to_owned());
    for name in &names {
        output(command("cmp", &["--"]).arg(release.dist.join(name)).arg(target.join("dist").join(name)))?;
    }
    println!("{} files are the same, built in another directory", names.len());
    Ok(())
}
