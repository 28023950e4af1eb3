//! A Debian system with what one page asks for: a base system in which root has typed the page's `sh install` blocks. That is most of
//! the time and all of the downloads, so the system is kept for as long as these blocks stay the same. Commands run on top of a
//! copy of it that takes no room, and is dropped.

use super::document::{Step, Terminal, installation};
use super::install::{PATH, debootstrap};
use super::place::{Network, Place, User};
use crate::roots::remove;
use crate::shell::{Result, at, command, run as run_command};
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Where the reader of a page is.
const HOME: &str = "/reader";
/// Where the drop-in is, as the pages' words on several machines have it.
const DROPIN: &str = "/opt/ironwarp";
/// Where root installs.
const INSTALLER: &str = "/installer";
/// What this system trusts, for networks whose proxy has a certificate of its own.
const TRUSTED: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Debug)]
pub(super) struct System {
    installed: PathBuf,
    /// What the commands change. Gone when dropped.
    changes: PathBuf,
}

impl System {
    /// The system of this page, made now if there is none yet.
    pub(super) fn with(roots: &Path, release: &str, name: &str, page: &str) -> Result<Self> {
        fs::create_dir_all(roots).map_err(at(roots))?;
        let steps = installation(page);
        let mut hash = DefaultHasher::new();
        for step in &steps {
            step.commands.hash(&mut hash);
        }
        let installed = roots.join(format!("page-{name}-{release}-{:016x}", hash.finish()));
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
    let mut all = trust(&partial)?;
    all.extend(steps.iter().map(|step| Step { output: None, commands: step.commands.clone(), ..*step }));
    let place = Place {
        root: Some(&partial),
        below: None,
        folder: INSTALLER,
        user: User::Root,
        network: Network::Host,
        path: PATH.into(),
    };
    place.run(&format!("docs/programs/{name}.md"), &all)?;
    for entry in fs::read_dir(roots).map_err(at(roots))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("page-{name}-")) {
            remove(&entry.path())?;
        }
    }
    fs::rename(&partial, installed).map_err(at(installed))
}

/// Has the downloads trust whom this system trusts.
fn trust(root: &Path) -> Result<Vec<Step>> {
    let trusted = env::var("SSL_CERT_FILE").unwrap_or(TRUSTED.into());
    if !Path::new(&trusted).exists() {
        return Ok(Vec::new());
    }
    let folder = root.join(INSTALLER.trim_start_matches('/'));
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let copy = folder.join("trusted.crt");
    fs::copy(&trusted, &copy).map_err(at(&copy))?;
    let variables = ["SSL_CERT_FILE", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO"];
    let export = |variable| format!("export {variable}={INSTALLER}/trusted.crt\n");
    let commands = variables.map(export).concat();
    Ok(vec![Step { line: 0, terminal: Terminal::Here, port: None, commands, output: None }])
}
