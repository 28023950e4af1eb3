//! `dist`: packs the release into an archive that runs where it is unpacked.
//!
//! ```text
//! target/dist/ironwarp-VERSION-x86_64-linux.tar.gz
//!   ironwarp-VERSION-x86_64-linux/bin/ironwarp                the command
//!                                 lib/ironwarp/…              the drop-in, which the command finds from there
//!                                 README.md LICENSE-… docs/…  to read
//! ```
//!
//! The build is reproducible: the files contain no path of this machine, and no time but that of the last
//! commit.

use crate::dropin;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// In addition to the directory `docs`.
const TEXTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let dist = workspace.target.join("dist");
    dropin::build(workspace, true)?;
    let name = format!("ironwarp-{}-{}-linux", env!("CARGO_PKG_VERSION"), env::consts::ARCH);
    let tree = dist.join(&name);
    stage(&workspace.target.join("dropin"), &tree)?;
    no_machine_paths(workspace, &tree)?;
    let file = dist.join(format!("{name}.tar.gz"));
    pack(&tree, &file)?;
    try_out(&dist, &name, &file)?;
    let sum = output(command("sha256sum", &["--"]).arg(&file))?;
    let len = fs::metadata(&file).map_err(at(&file))?.len();
    println!("{}: {} KiB\nsha256 {}", file.display(), len / 1024, sum.split(' ').next().unwrap_or_default());
    Ok(())
}

/// Creates the files as they will be unpacked.
fn stage(built: &Path, tree: &Path) -> Result {
    if tree.exists() {
        fs::remove_dir_all(tree).map_err(at(tree))?;
    }
    fs::create_dir_all(tree).map_err(at(tree))?;
    let mut copy = command("cp", &["--recursive", "--no-dereference", "--preserve=mode"]);
    run_command(copy.arg(built.join("bin")).arg(built.join("lib")).arg("docs").args(TEXTS).arg(tree))?;
    for program in ["bin/ironwarp", "lib/ironwarp/libibverbs.so.1"] {
        // Keep function names, for the analysis of crashes.
        run_command(command("strip", &["--strip-debug"]).arg(tree.join(program)))?;
    }
    Ok(())
}

/// Checks that no file contains a path of this machine, which would make the build irreproducible.
fn no_machine_paths(workspace: &Workspace, tree: &Path) -> Result {
    let mut places = vec![workspace.root.display().to_string(), workspace.target.display().to_string()];
    places.extend(env::var("HOME").ok().filter(|home| home.len() > 1).map(|home| format!("{home}/")));
    for program in ["bin/ironwarp", "lib/ironwarp/libibverbs.so.1"] {
        let path = tree.join(program);
        let bytes = fs::read(&path).map_err(at(&path))?;
        let has = |place: &&String| bytes.windows(place.len()).any(|it| it == place.as_bytes());
        if let Some(place) = places.iter().find(has) {
            return Err(format!("{program} contains `{place}`, a path of this machine"));
        }
    }
    Ok(())
}

/// Packs the files sorted, without an owner, and with the time of the commit.
fn pack(tree: &Path, file: &Path) -> Result {
    let time = match env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => output(&mut command("git", &["log", "-1", "--format=%ct"]))?.trim().to_owned(),
    };
    let mut tar = command("tar", &["--create", "--format=gnu", "--sort=name", "--mode=go=rX,u=rwX"]);
    tar.args(["--owner=0", "--group=0", "--numeric-owner"]).arg(format!("--mtime=@{time}"));
    tar.arg("--use-compress-program=gzip --no-name --best").arg("--file").arg(file);
    let name = tree.file_name().ok_or("a directory has a name")?;
    run_command(tar.arg("--directory").arg(tree.parent().unwrap_or(tree)).arg(name))
}

/// Unpacks the archive elsewhere: the command must run there, find the library, and run a program with it.
fn try_out(dist: &Path, name: &str, file: &Path) -> Result {
    let place: PathBuf = dist.join("unpacked");
    if place.exists() {
        fs::remove_dir_all(&place).map_err(at(&place))?;
    }
    fs::create_dir_all(&place).map_err(at(&place))?;
    run_command(command("tar", &["--extract", "--file"]).arg(file).arg("--directory").arg(&place))?;
    let ironwarp = place.join(name).join("bin/ironwarp");
    let ironwarp = ironwarp.to_string_lossy();
    let version = output(&mut command(&ironwarp, &["--version"]))?;
    if version.trim() != format!("ironwarp {}", env!("CARGO_PKG_VERSION")) {
        return Err(format!("unexpected version `{}`", version.trim()));
    }
    output(&mut command(&ironwarp, &["devices"]))?;
    let loaded = output(&mut command(&ironwarp, &["run", "--", "grep", "libibverbs", "/proc/self/maps"]))?;
    match loaded.lines().all(|line| line.contains(name)) && !loaded.is_empty() {
        true => Ok(()),
        false => Err(format!("a program under it does not load the drop-in:\n{loaded}")),
    }
}
