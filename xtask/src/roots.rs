//! Root directories of other Debian releases, and the job `root`, which runs another job in one of them: with
//! the programs, C library and rdma-core of that release, and the drop-in that was built here.
//!
//! ```text
//!  target/roots/trixie-…   a system with the packages, made once and kept
//! ```
//!
//! The job runs as root in a mount namespace of its own.

use crate::dropin;
use crate::setup;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::{METADATA, Workspace};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "root RELEASE JOB [OPTION…]";

/// Jobs that can run in a root, where the drop-in is not built.
const JOBS: [&str; 2] = ["programs", "rdma-core-tests"];

/// The jobs that `nightly` runs in every other release.
const NIGHTLY: [&[&str]; 2] = [&["rdma-core-tests", "--persona", "both"], &["programs"]];

/// Names the release that a job runs in, unless it is this system's.
const RELEASE: &str = "IRON_XTASK_RELEASE";

/// The release whose root this job runs in.
pub(crate) fn release() -> Option<String> {
    env::var(RELEASE).ok()
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A script that enters the root and runs the words of the job. It does not use chroot, because user
/// namespaces cannot be created in a chroot.
const ENTER: &str = r#"set -eu
mount --bind "$ROOT" "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount --rbind /sys "$ROOT/sys"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
for folder in "$WORKSPACE" "$TARGET"; do
    mkdir -p "$ROOT$folder"
    mount --bind "$folder" "$ROOT$folder"
done
mkdir -p "$ROOT/outside"
cd "$ROOT"
pivot_root . outside
umount --lazy /outside
cd "$WORKSPACE"
exec "$@""#;

pub(crate) fn need_root(why: &str) -> Result {
    match output(&mut command("id", &["-u"]))?.trim() {
        "0" => Ok(()),
        _ => Err(format!("this job must run as root: {why}")),
    }
}

/// Runs `root RELEASE JOB`, or without arguments what `nightly` runs in all releases.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    need_root("it creates and enters root directories of other systems")?;
    dropin::build(workspace, true)?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let others = dropin::RELEASES.iter().skip(1);
            let failed: Vec<String> = others
                .flat_map(|release| NIGHTLY.map(|job| (release, job)))
                .filter_map(|(release, job)| {
                    println!("-- {release}: {}", job.join(" "));
                    enter(workspace, release, job).err().map(|error| format!("{release}: {error}"))
                })
                .collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
        }
        [release, ref job @ ..] if job.first().is_some_and(|job| JOBS.contains(job)) => {
            enter(workspace, release, job)
        }
        _ => Err(format!("usage: cargo xtask {USAGE}; the jobs are {}", JOBS.join(", "))),
    }
}

/// Runs a job in a root.
fn enter(workspace: &Workspace, release: &str, job: &[&str]) -> Result {
    let packages: Vec<&str> = setup::programs().collect();
    let roots = workspace.target.join("roots");
    let root = make(&roots, release, "programs", &packages)?;
    let metadata = roots.join("metadata.json");
    fs::write(&metadata, Workspace::metadata()?).map_err(at(&metadata))?;
    let me = env::current_exe().map_err(|error| error.to_string())?;
    let mut inner = command("unshare", &["--mount", "--", "sh", "-c", ENTER, "sh"]);
    inner.args(["env", "-i", &format!("PATH={PATH}"), "HOME=/root"]);
    inner.arg(format!("{METADATA}={}", metadata.display())).arg(format!("{RELEASE}={release}"));
    inner.arg(me).args(job);
    inner.env("ROOT", &root).env("WORKSPACE", &workspace.root).env("TARGET", &workspace.target);
    run_command(&mut inner)
}

/// Returns a minimal system with packages, which is made once and kept under a name.
pub(crate) fn make(roots: &Path, release: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    fs::create_dir_all(roots).map_err(at(roots))?;
    let root = roots.join(format!("{release}-{name}"));
    if root.exists() {
        return Ok(root);
    }
    println!("installing Debian {release} in {}", root.display());
    let partial = roots.join(format!("{release}-{name}.partial"));
    remove(&partial)?;
    output(command("debootstrap", &["--variant=minbase", release]).arg(&partial))?;
    // Services must not start when they are installed: this system does not run.
    let policy = partial.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n").map_err(at(&policy))?;
    output(command("chmod", &["+x"]).arg(&policy))?;
    let install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends"];
    let mut apt = command("unshare", &["--mount", "--", "sh", "-c", INSTALL, "sh"]);
    apt.args(install).args(packages).env("ROOT", &partial).env("DEBIAN_FRONTEND", "noninteractive");
    output(&mut apt)?;
    fs::remove_file(&policy).map_err(at(&policy))?;
    fs::rename(&partial, &root).map_err(at(&root))?;
    Ok(root)
}

const INSTALL: &str = r#"set -eu
mount -t proc proc "$ROOT/proc"
exec chroot "$ROOT" "$@""#;

pub(crate) fn remove(path: &Path) -> Result {
    if path.exists() { fs::remove_dir_all(path).map_err(at(path)) } else { Ok(()) }
}
