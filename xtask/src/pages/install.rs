//! `install-test`: unpacks the release as an unprivileged user in a fresh Debian, and runs the README's quick
//! start word for word.

use super::ci;
use super::document::{Step, steps};
use super::place::{Network, Place, User};
use crate::dropin;
use crate::roots::{self, need_root, remove};
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "install-test [RELEASE…]";

/// The oldest supported release, which is also that of docs/ci.md: `debian:12`.
const OLDEST: &str = "bookworm";
/// All releases, for `nightly`.
pub(crate) const RELEASES: &[&str] = &dropin::RELEASES;
/// What the README's quick start needs in addition to a minimal system.
const PACKAGES: [&str; 2] = ["ibverbs-utils", "perftest"];
/// The folder of the user who follows the quick start.
const HOME: &str = "/newcomer";
pub(super) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

pub(crate) fn run(workspace: &Workspace, releases: &[String]) -> Result {
    need_root("it makes and enters root directories of other systems")?;
    let name = format!("ironwarp-{}-{}-linux", env!("CARGO_PKG_VERSION"), env::consts::ARCH);
    let dist = workspace.target.join("dist");
    let tarball = dist.join(format!("{name}.tar.gz"));
    if !tarball.exists() {
        return Err(format!("{} is missing: run `cargo xtask dist`", tarball.display()));
    }
    for file in ["bin/ironwarp", "lib/ironwarp/libibverbs.so.1"] {
        dropin::check_glibc(&dist.join(&name).join(file))?;
    }
    let given: Vec<&str> = releases.iter().map(String::as_str).collect();
    for release in if given.is_empty() { &[OLDEST][..] } else { &given } {
        let root = Root::fresh(&workspace.target.join("roots"), release, &tarball)?;
        root.first_screen()?;
        println!("{release}: the README's quick start works");
        if *release == OLDEST {
            root.ci_page()?;
            println!("{release}: the commands of docs/ci.md work");
        }
    }
    Ok(())
}

/// A freshly installed system, with the release next to it. Removed when dropped.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    tarball: PathBuf,
}

impl Root {
    fn fresh(roots: &Path, release: &str, tarball: &Path) -> Result<Self> {
        let made = debootstrap(roots, release)?;
        let path = roots.join(format!("{release}.fresh"));
        remove(&path)?;
        run_command(command("cp", &["-a", "--reflink=auto", "--"]).arg(&made).arg(&path))?;
        let root = Self { path, tarball: tarball.to_owned() };
        for tool in ["cargo", "rustc"] {
            if output(command("chroot", &[]).arg(&root.path).args(["which", tool])).is_ok() {
                return Err(format!("the fresh system contains {tool}"));
            }
        }
        Ok(root)
    }

    fn first_screen(&self) -> Result {
        self.give_tarball(HOME)?;
        let page = fs::read_to_string("README.md").map_err(at(Path::new("README.md")))?;
        let steps = steps(&page);
        if steps.iter().filter(|step| step.output.is_some()).count() < 2 {
            return Err("the README's quick start has no commands with output".into());
        }
        self.place(HOME, User::Ordinary, Network::Own).run("README.md", &steps)
    }

    /// As in the image and on the runner, root installs everything before the tests run.
    fn ci_page(&self) -> Result {
        let page = fs::read_to_string("docs/ci.md").map_err(at(Path::new("docs/ci.md")))?;
        for (folder, job) in [("/build", ci::dockerfile(&page)?), ("/checkout", ci::workflow(&page)?)] {
            self.give_tarball(folder)?;
            self.give_tarball(&format!("{folder}/ci"))?;
            self.place(folder, User::Root, Network::Host).run("docs/ci.md", &job.fetching)?;
            let opt = self.path.join("opt/ironwarp");
            remove(&opt)?;
            let github = "export GITHUB_PATH=\"$HOME/paths\"; : >\"$GITHUB_PATH\"\n".to_owned();
            let mut running: Vec<Step> = vec![Step { commands: github, ..like(&job.running)? }];
            for step in job.running {
                let line = step.line;
                running.push(step);
                let commands = "export PATH=\"$(cat \"$GITHUB_PATH\"):$PATH\"\n".to_owned();
                running.push(Step { line, commands, ..like(&running)? });
            }
            self.place(folder, User::Root, Network::Own).run("docs/ci.md", &running)?;
        }
        Ok(())
    }

    fn give_tarball(&self, folder: &str) -> Result {
        let folder = self.path.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let file = folder.join(self.tarball.file_name().unwrap_or_default());
        fs::copy(&self.tarball, &file).map_err(at(&file)).map(drop)
    }

    fn place<'p>(&'p self, folder: &'p str, user: User, network: Network) -> Place<'p> {
        Place { root: Some(&self.path), below: None, folder, user, network, path: PATH.into() }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

/// A step at the place of the first of these.
fn like(steps: &[Step]) -> Result<Step> {
    let first = steps.first().ok_or("docs/ci.md has no commands")?;
    Ok(Step { line: first.line, terminal: first.terminal, port: None, commands: String::new(), output: None })
}

/// Returns a minimal system with the packages, which is made once and kept.
pub(super) fn debootstrap(roots: &Path, release: &str) -> Result<PathBuf> {
    roots::make(roots, release, "install-test", &PACKAGES)
}
