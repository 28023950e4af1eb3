//! `install-test`: installs Ironwarp in fresh Debian systems as the README says, and runs its quick start word
//! for word as an unprivileged user. There are three starts: a checkout, the package and the tarball.

use super::checkout;
use super::ci;
use super::document::{Step, Terminal, blocks, steps};
use super::fresh::Fresh;
use super::place::{Network, Place, User};
use crate::dist::{self, Release};
use crate::dropin;
use crate::roots::{need_root, remove};
use crate::shell::{Result, at};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) const USAGE: &str = "install-test [checkout] [package] [tarball] [RELEASE…]";

/// The oldest supported release, which is also that of docs/ci.md: `debian:12`.
const OLDEST: &str = dropin::RELEASES[0];
/// All starts and releases, for `nightly`.
pub(crate) const NIGHTLY: &[&str] = &{
    let [one, two, three] = dropin::RELEASES;
    [Start::Checkout.name(), Start::Package.name(), Start::Tarball.name(), one, two, three]
};
/// The folder of the user who follows the quick start.
const HOME: &str = "/newcomer";
/// The folder where root installs the package.
const INSTALLER: &str = "/installer";

/// How a user gets Ironwarp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Checkout,
    Package,
    Tarball,
}

impl Start {
    const ALL: [Self; 3] = [Self::Checkout, Self::Package, Self::Tarball];
    /// By default: a checkout takes minutes to build.
    const SHORT: [Self; 2] = [Self::Package, Self::Tarball];

    const fn name(self) -> &'static str {
        match self {
            Self::Checkout => "checkout",
            Self::Package => "package",
            Self::Tarball => "tarball",
        }
    }
}

/// Runs the starts and releases that are named, or by default the short starts in the oldest release.
pub(crate) fn run(workspace: &Workspace, words: &[String]) -> Result {
    need_root("it makes and enters root directories of other systems")?;
    let test = Test { release: Release::new(workspace)?, roots: workspace.target.join("roots") };
    let named = |start: &Start| words.iter().any(|word| word == start.name());
    let mut starts: Vec<Start> = Start::ALL.into_iter().filter(named).collect();
    if starts.is_empty() {
        starts.extend(Start::SHORT);
    }
    let is_start = |word: &str| Start::ALL.iter().any(|start| start.name() == word);
    let mut systems: Vec<&str> = words.iter().map(String::as_str).filter(|word| !is_start(word)).collect();
    if systems.is_empty() {
        systems.push(OLDEST);
    }
    for system in systems {
        for &start in &starts {
            let begun = Instant::now();
            let fresh = test.install_and_run(system, start)?;
            let seconds = begun.elapsed().as_secs();
            println!("{system}: the README's quick start works from the {}, in {seconds} s", start.name());
            if (system, start) == (OLDEST, Start::Tarball) {
                test.ci_page(&fresh)?;
                println!("{system}: the commands of docs/ci.md work");
            }
        }
    }
    Ok(())
}

struct Test {
    release: Release,
    roots: PathBuf,
}

impl Test {
    fn install_and_run(&self, system: &str, start: Start) -> Result<Fresh> {
        let page = fs::read_to_string("README.md").map_err(at(Path::new("README.md")))?;
        let quick_start = steps(&page);
        if quick_start.iter().filter(|step| step.output.is_some()).count() < 2 {
            return Err("the README's quick start has no commands with output".into());
        }
        let (name, packages): (_, &[&str]) = match start {
            Start::Checkout => ("install-source", &checkout::PACKAGES),
            Start::Package | Start::Tarball => ("install-test", &[]),
        };
        let fresh = Fresh::new(&self.roots, system, name, packages)?;
        let path = self.install(&fresh, start, &page)?;
        Place { path, ..fresh.place(HOME, User::Ordinary, Network::Own) }.run("README.md", &quick_start)?;
        Ok(fresh)
    }

    /// Runs the README's commands of a start. Returns the PATH that they leave.
    fn install(&self, fresh: &Fresh, start: Start, page: &str) -> Result<String> {
        let (place, before) = match start {
            // The network is only for the time limit, which is that of a build.
            Start::Checkout => {
                (fresh.place(HOME, User::Ordinary, Network::Host), checkout::give(fresh, &self.roots, HOME)?)
            }
            Start::Package => {
                fresh.give(&built(self.release.deb()?)?, INSTALLER)?;
                (fresh.place(INSTALLER, User::Root, Network::Own), "sudo() { \"$@\"; }\n".to_owned())
            }
            Start::Tarball => {
                fresh.give(&built(self.release.tarball())?, HOME)?;
                (fresh.place(HOME, User::Ordinary, Network::Own), ":\n".to_owned())
            }
        };
        let mut install = blocks(page, &format!("sh {}", start.name()));
        let line = install.first().ok_or_else(|| format!("the README has no `sh {}`", start.name()))?.line;
        install.insert(0, step(line, before));
        install.push(step(line, "printf %s \"$PATH\" >\"$HOME/path\"\n".to_owned()));
        place.run("README.md", &install)?;
        let path = fresh.folder(place.folder)?.join("path");
        fs::read_to_string(&path).map_err(at(&path))
    }

    /// As in the image and on the runner, root installs everything before the tests run.
    fn ci_page(&self, fresh: &Fresh) -> Result {
        let page = fs::read_to_string("docs/ci.md").map_err(at(Path::new("docs/ci.md")))?;
        dist::unpack_image(&built(self.release.image()?)?, &fresh.folder(ci::IMAGE)?)?;
        let images = ci::dockerfiles(&page)?.into_iter().map(|job| ("/build", job));
        for (folder, job) in images.chain([("/checkout", ci::workflow(&page)?)]) {
            fresh.give(&self.release.tarball(), folder)?;
            fresh.give(&self.release.tarball(), &format!("{folder}/ci"))?;
            fresh.place(folder, User::Root, Network::Host).run("docs/ci.md", &job.fetching)?;
            remove(&fresh.path.join("opt/ironwarp"))?;
            let line = job.running.first().ok_or("docs/ci.md has no commands")?.line;
            let github = "export GITHUB_PATH=\"$HOME/paths\"; : >\"$GITHUB_PATH\"\n".to_owned();
            let mut running: Vec<Step> = vec![step(line, github)];
            for command in job.running {
                let line = command.line;
                running.push(command);
                running.push(step(line, "export PATH=\"$(cat \"$GITHUB_PATH\"):$PATH\"\n".to_owned()));
            }
            fresh.place(folder, User::Root, Network::Own).run("docs/ci.md", &running)?;
        }
        Ok(())
    }
}

/// A file of the release, if it was built.
fn built(file: PathBuf) -> Result<PathBuf> {
    if file.exists() {
        Ok(file)
    } else {
        Err(format!("{} is missing: run `cargo xtask dist`", file.display()))
    }
}

/// Commands of the test between those of a page.
fn step(line: usize, commands: String) -> Step {
    Step { line, terminal: Terminal::Here, port: None, commands, output: None }
}
