//! A Debian system with what one page needs: a base system in which root has run the page's `sh install`
//! blocks. That takes most of the time and all of the downloads, so the system is kept until these blocks
//! change. Commands run in an overlay, which is dropped. A page that names no release installs into a folder,
//! which is kept in the same way.

use super::document::{Step, Terminal, installation};
use super::fresh::{PATH, debootstrap};
use super::place::{Network, Place, User};
use crate::roots::remove;
use crate::shell::{Result, at, command, run as run_command};
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The folder of the page's reader.
const HOME: &str = "/reader";
/// The folder of the drop-in, as in the page about several machines.
const DROPIN: &str = "/opt/ironwarp";
/// The folder where root installs.
const INSTALLER: &str = "/installer";
/// The certificates that this system trusts, for networks whose proxy has its own.
const TRUSTED: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Debug)]
pub(super) struct System {
    installed: PathBuf,
    /// The changes by the commands. Removed when dropped.
    changes: PathBuf,
}

impl System {
    /// Returns the system of this page, and makes it if it does not exist.
    pub(super) fn with(roots: &Path, release: &str, name: &str, page: &str) -> Result<Self> {
        fs::create_dir_all(roots).map_err(at(roots))?;
        let steps = installation(page);
        let installed = kept(roots, name, release, &steps);
        if !installed.exists() {
            install(roots, release, name, &steps, &installed)?;
        }
        Ok(Self { installed, changes: roots.join(format!("page-{name}.changes")) })
    }

    pub(super) fn run(&self, dropin: &Path, user: User, title: &str, steps: &[Step]) -> Result {
        self.remove_changes();
        let opt = self.changes.join(DROPIN.trim_start_matches('/'));
        fs::create_dir_all(&opt).map_err(at(&opt))?;
        let work = self.changes.with_extension("changes.work");
        fs::create_dir_all(&work).map_err(at(&work))?;
        run_command(command("cp", &["-a", "--"]).arg(dropin.join(".")).arg(&opt))?;
        let place = Place {
            root: Some(&self.changes),
            below: Some(&self.installed),
            folder: HOME,
            user,
            network: Network::Own,
            path: format!("{DROPIN}/bin:{PATH}"),
        };
        place.run(title, steps)
    }

    fn remove_changes(&self) {
        let _ = remove(&self.changes);
        let _ = remove(&self.changes.with_extension("changes.work"));
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.remove_changes();
    }
}

fn install(roots: &Path, release: &str, name: &str, steps: &[Step], installed: &Path) -> Result {
    let base = debootstrap(roots, release)?;
    println!("{name}: installing in {}", installed.display());
    let partial = roots.join(format!("page-{name}.partial"));
    remove(&partial)?;
    run_command(command("cp", &["-a", "--reflink=auto", "--"]).arg(&base).arg(&partial))?;
    let inside = format!("{INSTALLER}/trusted.crt");
    let copy = partial.join(inside.trim_start_matches('/'));
    let folder = copy.parent().unwrap_or(&partial);
    fs::create_dir_all(folder).map_err(at(folder))?;
    let trusted = trusted();
    if Path::new(&trusted).exists() {
        fs::copy(&trusted, &copy).map_err(at(&copy))?;
    }
    let place = Place {
        root: Some(&partial),
        below: None,
        folder: INSTALLER,
        user: User::Root,
        network: Network::Host,
        path: PATH.into(),
    };
    place.run(&format!("docs/programs/{name}.md"), &trusting(&inside, &copy, steps))?;
    keep(roots, name, &partial, installed)
}

/// Returns the folder of a page that runs on this system, with what the page installs, or `None` if it
/// installs nothing.
pub(super) fn folder(roots: &Path, name: &str, page: &str, path: &str) -> Result<Option<PathBuf>> {
    let steps = installation(page);
    let installed = kept(roots, name, "here", &steps);
    if steps.is_empty() || installed.exists() {
        return Ok(installed.exists().then_some(installed));
    }
    println!("{name}: installing in {}", installed.display());
    let partial = roots.join(format!("page-{name}.partial"));
    remove(&partial)?;
    fs::create_dir_all(&partial).map_err(at(&partial))?;
    let folder = &*partial.to_string_lossy();
    let place = Place {
        root: None,
        below: None,
        folder,
        user: User::Root,
        network: Network::Host,
        path: path.into(),
    };
    let trusted = trusted();
    place.run(&format!("docs/programs/{name}.md"), &trusting(&trusted, Path::new(&trusted), &steps))?;
    keep(roots, name, &partial, &installed)?;
    Ok(Some(installed))
}

/// The folder in which the result of these steps is kept.
fn kept(roots: &Path, name: &str, release: &str, steps: &[Step]) -> PathBuf {
    let mut hash = DefaultHasher::new();
    for step in steps {
        step.commands.hash(&mut hash);
    }
    roots.join(format!("page-{name}-{release}-{:016x}", hash.finish()))
}

/// Keeps what was installed, and removes the result of older steps.
fn keep(roots: &Path, name: &str, partial: &Path, installed: &Path) -> Result {
    for entry in fs::read_dir(roots).map_err(at(roots))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("page-{name}-")) {
            remove(&entry.path())?;
        }
    }
    fs::rename(partial, installed).map_err(at(installed))
}

fn trusted() -> String {
    env::var("SSL_CERT_FILE").unwrap_or(TRUSTED.into())
}

/// These steps, with downloads that trust what this system trusts. `file` is the name of `copy` where they
/// run.
fn trusting(file: &str, copy: &Path, steps: &[Step]) -> Vec<Step> {
    let mut all = Vec::new();
    if copy.exists() {
        let variables = ["SSL_CERT_FILE", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO"];
        let commands = variables.map(|variable| format!("export {variable}={file}\n")).concat();
        all.push(Step { line: 0, terminal: Terminal::Here, port: None, commands, output: None });
    }
    all.extend(steps.iter().map(|step| Step { output: None, commands: step.commands.clone(), ..*step }));
    all
}
