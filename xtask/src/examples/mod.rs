//! `examples`: runs what is in the folder `examples`. Its GitHub workflow builds the C program and runs the
//! tests with pytest, so `run_workflow.py` runs the steps of the workflow, as an unprivileged user, with the
//! drop-in of this checkout as the release.

use crate::dropin;
use crate::inside::{Home, is_root};
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Debian's Python, which its packages of modules are for.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    dropin::build(workspace, false)?;
    let home = Home::new(workspace, "examples")?;
    let folder = home.room("runner")?;
    check_out(&folder.join("checkout"))?;
    let tarball = pack(&home)?;
    let script = home.file("run_workflow.py");
    fs::write(&script, include_str!("run_workflow.py")).map_err(at(&script))?;
    let user = if is_root() { home.as_user() } else { vec!["env"] };
    run_command(command(user[0], &user[1..]).arg(PYTHON).arg(script).arg(&folder).arg(tarball))?;
    fs::remove_dir_all(&folder).map_err(at(&folder))
}

/// Copies the examples without files that were built in them, for a user who can write to the copy.
fn check_out(folder: &Path) -> Result {
    fs::create_dir(folder).map_err(at(folder))?;
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "examples"];
    let files = output(&mut command("git", &list))?;
    run_command(command("cp", &["--parents", "--"]).args(files.lines()).arg(folder))?;
    run_command(command("chmod", &["--recursive", "a+rwX", "--"]).arg(folder))
}

/// Packs the drop-in like a release.
fn pack(home: &Home) -> Result<PathBuf> {
    let name = format!("ironwarp-{}-{}-linux", env!("CARGO_PKG_VERSION"), env::consts::ARCH);
    let file = home.file(&format!("{name}.tar.gz"));
    let mut tar = command("tar", &["--create", "--use-compress-program=gzip --fast"]);
    tar.arg("--file").arg(&file).arg("--directory").arg(home.file(""));
    // Names of files, but not the targets of links, begin with the name of the release.
    tar.arg(format!("--transform=s:^:{name}/:S")).args(["bin", "lib"]);
    run_command(&mut tar)?;
    Ok(file)
}
