//! `dropin`: links the one shared file that stands in for libibverbs and librdmacm. `symbols`: compares it with the real ones.
//!
//! ```text
//! target/dropin/bin/ironwarp                    the command
//!               lib/ironwarp/libibverbs.so.1    the file
//!                            libibverbs.so, librdmacm.so.1, librdmacm.so    the same, by other names
//!                            tree             files that programs look for in /sys and /dev
//! ```
//!
//! rustc makes a static library of the crate, and the C compiler a shared one of that: rustc's own shared libraries have no
//! version nodes, without which `dlvsym` finds nothing and the loader complains.

mod symbols;
mod unhide;

use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "dropin [--release]";

const CRATE: &str = "crates/ibverbs";
const FILE: &str = "libibverbs.so.1";
const OTHER_NAMES: [&str; 3] = ["libibverbs.so", "librdmacm.so.1", "librdmacm.so"];
const COMMAND: &str = "ironwarp";

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let release = match options {
        [] => false,
        [option] if option == "--release" => true,
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    let file = build(workspace, release)?;
    println!("{}: {}", file.display(), symbols::needs(&file)?);
    Ok(())
}

/// Every symbol of the real libraries is in ours at the same version, and nothing else is.
pub(crate) fn compare(workspace: &Workspace, _: &[String]) -> Result {
    symbols::compare(&build(workspace, false)?, Path::new(CRATE))
}

fn build(workspace: &Workspace, release: bool) -> Result<PathBuf> {
    let packages = ["--package", "ironwarp-ibverbs", "--package", "ironwarp-cli"];
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    run_command(command("cargo", &["build", "--locked"]).args(packages).args(profile))?;
    let built = workspace.target.join(if release { "release" } else { "debug" });
    let dropin = workspace.target.join("dropin");

    let binaries = folder(dropin.join("bin"))?;
    replace(&binaries.join(COMMAND), |new| fs::copy(built.join(COMMAND), new).map(drop).map_err(at(new)))?;
    let libraries = folder(dropin.join("lib/ironwarp"))?;
    let file = libraries.join(FILE);
    replace(&file, |new| link(&built.join("libironwarp_ibverbs.a"), new))?;
    for name in OTHER_NAMES {
        replace(&libraries.join(name), |new| symlink(FILE, new).map_err(at(new)))?;
    }
    lay_out_tree(&libraries.join("tree"))?;
    Ok(file)
}

/// The files of a kernel driver that are always the same, and the folders of those that are not (crates/ibverbs/src/files).
fn lay_out_tree(tree: &Path) -> Result {
    run_command(command("cp", &["-RT", &format!("{CRATE}/tree")]).arg(tree))?;
    let port = tree.join("sys/class/infiniband/ironwarp0/ports/1");
    for empty in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        folder(port.join(empty))?;
    }
    Ok(())
}

fn link(archive: &Path, file: &Path) -> Result {
    let source = Path::new(CRATE);
    let mut linker = command("cc", &["-shared", "-o"]);
    linker.arg(file).arg(source.join("compat.S"));
    linker.args(["-Wl,--whole-archive"]).arg(archive).arg("-Wl,--no-whole-archive");
    linker.arg(format!("-Wl,--version-script={}", source.join("versions.map").display()));
    linker.arg(format!("-Wl,-soname,{FILE}"));
    // Nothing that is not exported is kept unless it is used. Our functions call each other, whoever else has their names.
    // All they need is there at the first call. The file stays, even if it is closed: its threads run in it.
    linker.args(["-Wl,--gc-sections", "-Wl,-Bsymbolic", "-Wl,-z,defs,-z,relro,-z,now,-z,nodelete"]);
    linker.args(["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"]);
    run_command(&mut linker)?;
    unhide::unhide(file)
}

fn folder(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).map_err(at(&path))?;
    Ok(path)
}

/// Makes a file under another name first: a program that has the old one open keeps it as it is.
fn replace(path: &Path, make: impl FnOnce(&Path) -> Result) -> Result {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&new)(error)),
        _ => make(&new)?,
    }
    fs::rename(&new, path).map_err(at(path))
}
