//! Root directories of other Debian releases, and `root`: a job, run in one of them. Debian's programs of that release, its C
//! library and its rdma-core are then those of the system, beside the drop-in that was built here.
//!
//! ```text
//!  target/roots/trixie-…   a system with the packages, made once and kept
//! ```
//!
//! The job runs in a mount namespace of its own, as root of it; what it runs as an ordinary user is its own matter.

use crate::dropin;
use crate::setup;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::{METADATA, Workspace};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "root RELEASE JOB [OPTION…]";

/// Jobs that find all that they need in a root: the drop-in is built before.
const JOBS: [&str; 2] = ["programs", "rdma-core-tests"];

/// What `nightly` runs in each of the releases that are not this system's.
const NIGHTLY: [&[&str]; 2] = [&["rdma-core-tests", "--persona", "both"], &["programs"]];

/// Names the release that a job runs in, if it is not this system's.
const RELEASE: &str = "IRON_XTASK_RELEASE";

/// The release whose root this job runs in.
pub(crate) fn release() -> Option<String> {
    env::var(RELEASE).ok()
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What runs first, in a mount namespace of its own, with the words of the job behind it. Not by chroot: in a chroot nobody may
/// make user namespaces.
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
        _ => Err(format!("this job needs root: {why}")),
    }
}

/// `root RELEASE JOB`; without arguments, what `nightly` runs in all of them.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    need_root("it makes and enters root directories of other systems")?;
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

/// A minimal system with packages, made once and kept under a name.
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
    // Nothing starts when it is installed: this is no system that runs.
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
