//! Names, version and time of the release.

use crate::roots::remove;
use crate::shell::{Result, at, command, output, run};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
pub(super) const SUMS: &str = "SHA256SUMS";

/// Files that run; the others are data.
pub(super) const PROGRAMS: [&str; 3] = ["bin/ironwarp", "lib/ironwarp/libibverbs.so.1", "bin/ironwarp-net"];

/// A release, and the folder with its files.
pub(crate) struct Release {
    pub(crate) dist: PathBuf,
    /// Seconds since 1970, for everything that contains a time: that of the last commit.
    pub(super) time: String,
}

impl Release {
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        let time = match env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => output(&mut command("git", &["log", "-1", "--format=%ct"]))?.trim().to_owned(),
        };
        Ok(Self { dist: workspace.target.join("dist"), time })
    }

    /// The name of the folder in the tarball.
    pub(crate) fn name() -> String {
        format!("ironwarp-{VERSION}-{}-linux", env::consts::ARCH)
    }

    /// The architecture, as Debian and OCI call it.
    pub(super) fn architecture() -> Result<&'static str> {
        match env::consts::ARCH {
            "x86_64" => Ok("amd64"),
            "aarch64" => Ok("arm64"),
            other => Err(format!("no release for the architecture {other}")),
        }
    }

    /// The files of the release, as they are in the tarball.
    pub(crate) fn tree(&self) -> PathBuf {
        self.dist.join(Self::name())
    }

    pub(crate) fn tarball(&self) -> PathBuf {
        self.dist.join(format!("{}.tar.gz", Self::name()))
    }

    pub(crate) fn deb(&self) -> Result<PathBuf> {
        Ok(self.dist.join(format!("ironwarp_{VERSION}-1_{}.deb", Self::architecture()?)))
    }

    pub(crate) fn image(&self) -> Result<PathBuf> {
        Ok(self.dist.join(format!("ironwarp-{VERSION}-{}-linux-oci.tar", Self::architecture()?)))
    }

    pub(super) fn sbom(&self) -> PathBuf {
        self.dist.join(format!("ironwarp-{VERSION}.cdx.json"))
    }

    /// The names of all files but the checksums.
    pub(super) fn artefacts(&self) -> Result<Vec<String>> {
        let files = [self.tarball(), self.deb()?, self.image()?, self.sbom()];
        Ok(files.iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned())).collect())
    }

    /// Removes the files of earlier builds, also of other versions.
    pub(super) fn remove_old(&self) -> Result {
        for entry in fs::read_dir(&self.dist).map_err(at(&self.dist))?.flatten() {
            let name = entry.file_name();
            if entry.path().is_file() && (name == SUMS || name.to_string_lossy().starts_with("ironwarp")) {
                fs::remove_file(entry.path()).map_err(at(&entry.path()))?;
            }
        }
        Ok(())
    }

    /// Creates an empty folder for the parts of a file.
    pub(super) fn room(&self, name: &str) -> Result<PathBuf> {
        let room = self.dist.join(name);
        remove(&room)?;
        fs::create_dir_all(&room).map_err(at(&room))?;
        Ok(room)
    }

    /// Packs files of a folder, sorted, without an owner, and with the time of the release. `options` are
    /// further ones of tar.
    pub(super) fn tar(&self, options: &[&str], folder: &Path, names: &[&str], file: &Path) -> Result {
        let mut tar = command("tar", &["--create", "--format=gnu", "--sort=name", "--mode=go=rX,u=rwX"]);
        tar.args(["--owner=0", "--group=0", "--numeric-owner"]).arg(format!("--mtime=@{}", self.time));
        tar.args(options).arg("--file").arg(file).arg("--directory").arg(folder);
        run(tar.arg("--").args(names))
    }

    /// The time of the release in a format of `date`.
    pub(super) fn date(&self, format: &str) -> Result<String> {
        let time = format!("--date=@{}", self.time);
        let date = output(command("date", &["--utc", &time, format]).env("LC_ALL", "C"))?;
        Ok(date.trim().to_owned())
    }
}

/// The SHA-256 of a file, in hexadecimal.
pub(super) fn sha256(file: &Path) -> Result<String> {
    let sum = output(command("sha256sum", &["--"]).arg(file))?;
    Ok(sum.split(' ').next().unwrap_or_default().to_owned())
}

/// Compresses a file, which gets the ending `.gz`, without name and time.
pub(super) fn gzip(file: &Path) -> Result {
    run(command("gzip", &["--no-name", "--best", "--force", "--"]).arg(file))
}
