//! Debian's package manager with sources and state of its own: it knows the packages of another release or processor,
//! and changes nothing on this machine.

use crate::shell::{Result, at, command, output};
use std::fs;
use std::path::{Path, PathBuf};

const MIRROR: &str = "http://deb.debian.org/debian";

pub(crate) struct Apt {
    /// The folder of all its files.
    pub(crate) folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// Fetches the list of packages of a release. `architecture` is Debian's name of a processor, if it is not this
    /// machine's.
    pub(crate) fn new(folder: PathBuf, release: &str, architecture: Option<&str>) -> Result<Self> {
        for part in ["state/lists/partial", "cache/archives/partial", "packages", "empty"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(at(&part))?;
        }
        let (sources, status) = (folder.join("sources.list"), folder.join("status"));
        fs::write(&sources, format!("deb {MIRROR} {release} main\n")).map_err(at(&sources))?;
        fs::write(&status, "").map_err(at(&status))?;
        let mut set = vec![
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=-".to_owned(),
            format!("Dir::State={}", folder.join("state").display()),
            format!("Dir::State::Status={}", status.display()),
            format!("Dir::Cache={}", folder.join("cache").display()),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        if let Some(name) = architecture {
            set.extend([format!("APT::Architecture={name}"), format!("APT::Architectures={name}")]);
        }
        let options = set.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        let apt = Self { folder, options };
        apt.get("empty", &["update", "-qq"])?;
        Ok(apt)
    }

    /// Runs apt-get in one of its folders.
    pub(crate) fn get(&self, folder: &str, words: &[&str]) -> Result<String> {
        output(command("apt-get", words).args(&self.options).current_dir(self.folder.join(folder)))
    }

    /// Unpacks packages into a folder, together with those that they depend on. Installs nothing.
    pub(crate) fn unpack_with_dependencies(&self, packages: &[&str], to: &Path) -> Result {
        let install = ["install", "-qq", "--yes", "--no-install-recommends", "--download-only"];
        self.get("empty", &[&install[..], packages].concat())?;
        let archives = self.folder.join("cache/archives");
        for file in fs::read_dir(&archives).map_err(at(&archives))?.flatten().map(|entry| entry.path()) {
            if file.extension().is_some_and(|extension| extension == "deb") {
                output(command("dpkg-deb", &["--extract"]).arg(file).arg(to))?;
            }
        }
        Ok(())
    }
}
