//! A fresh Debian system: an overlay over one that is kept. Removed when dropped.

use super::place::{Network, Place, User};
use crate::roots::{self, remove};
use crate::shell::{Result, at, command, output};
use std::fs;
use std::path::{Path, PathBuf};

/// What the README's quick start needs in addition to a minimal system.
const PACKAGES: [&str; 2] = ["ibverbs-utils", "perftest"];
pub(super) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

#[derive(Debug)]
pub(super) struct Fresh {
    /// The changes.
    pub(super) path: PathBuf,
    base: PathBuf,
}

impl Fresh {
    /// Creates a system without Rust from one that was kept under a name, with these packages.
    pub(super) fn new(roots: &Path, release: &str, name: &str, packages: &[&str]) -> Result<Self> {
        let base = roots::make(roots, release, name, &[&PACKAGES, packages].concat())?;
        for tool in ["cargo", "rustc"] {
            if output(command("chroot", &[]).arg(&base).args(["which", tool])).is_ok() {
                return Err(format!("the fresh system contains {tool}"));
            }
        }
        let fresh = Self { path: roots.join(format!("{release}.fresh")), base };
        fresh.remove()?;
        for folder in [&fresh.path, &fresh.work()] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        Ok(fresh)
    }

    pub(super) fn place<'p>(&'p self, folder: &'p str, user: User, network: Network) -> Place<'p> {
        Place { root: Some(&self.path), below: Some(&self.base), folder, user, network, path: PATH.into() }
    }

    /// Returns the path of a folder inside, as seen outside, and makes it.
    pub(super) fn folder(&self, folder: &str) -> Result<PathBuf> {
        let folder = self.path.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        Ok(folder)
    }

    /// Copies a file to a folder inside.
    pub(super) fn give(&self, file: &Path, folder: &str) -> Result {
        let copy = self.folder(folder)?.join(file.file_name().unwrap_or_default());
        fs::copy(file, &copy).map_err(at(&copy)).map(drop)
    }

    fn work(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".work");
        name.into()
    }

    fn remove(&self) -> Result {
        remove(&self.path)?;
        remove(&self.work())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Returns a minimal system with the packages, which is made once and kept.
pub(super) fn debootstrap(roots: &Path, release: &str) -> Result<PathBuf> {
    roots::make(roots, release, "install-test", &PACKAGES)
}
