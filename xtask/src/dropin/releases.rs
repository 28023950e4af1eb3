//! `releases`: checks that crates/ibverbs/symbols is still true. Fetches the packages of Debian's releases
//! with apt, in a folder of its own, compares versions, hashes and symbols with the files, and the layouts of
//! all headers with ours.
//!
//! A package newer than ours is a finding, because sid moves on. `--update` writes the files again; then
//! `symbols` and the tests of layouts show what is to be added.

use super::pinned::{Package, Pinned, RELEASES};
use super::symbols::{REAL, exported, symbols};
use crate::apt::Apt;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "releases [--update]";

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let update = match options {
        [] => false,
        [option] if option == "--update" => true,
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    let mut findings = Vec::new();
    let mut headers = Vec::new();
    for release in RELEASES {
        let folder = workspace.target.join("releases").join(release);
        let mut pinned = Pinned::read(release)?;
        let apt = Apt::new(folder.clone(), release, None)?;
        let now: Vec<Package> =
            pinned.packages.iter().map(|package| apt.ask(&package.name)).collect::<Result<_>>()?;
        let newer: Vec<_> = pinned.packages.iter().zip(&now).filter(|(before, now)| before != now).collect();
        for (before, now) in &newer {
            let Package { name, version, .. } = before;
            findings.push(format!("{release} has {name} {} instead of {version}", now.version));
        }
        if !newer.is_empty() && !update {
            continue; // the mirror no longer has the older ones
        }
        let unpacked = apt.unpack(&now)?;
        let found = exported_by(&unpacked)?;
        let differs = pinned.symbols.symmetric_difference(&found).map(|name| format!("{release}: {name}"));
        findings.extend(differs);
        headers.push((release, unpacked.join("usr/include")));
        println!("{release}: {} symbols, {}", found.len(), versions(&now));
        if update {
            pinned = Pinned { packages: now, symbols: found };
            pinned.write(release)?;
        }
    }
    if update {
        println!("wrote the files; changes: {}", if findings.is_empty() { "none" } else { "see below" });
        findings.drain(..).for_each(|finding| println!("{finding}"));
    }
    for (release, folder) in headers {
        println!("{release}: layouts");
        if let Err(error) = layouts(release, &folder) {
            findings.push(format!("{release}: the layouts of its headers differ from ours: {error}"));
        }
    }
    if findings.is_empty() {
        return Ok(());
    }
    let todo = "run `cargo xtask releases --update`, then `cargo xtask symbols`, and add what is missing";
    Err(format!("Debian's packages have changed: {todo}\n{}", findings.join("\n")))
}

fn versions(packages: &[Package]) -> String {
    packages
        .iter()
        .map(|Package { name, version, .. }| format!("{name} {version}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Runs the tests of layouts with the headers of a release instead of the installed ones.
fn layouts(release: &str, headers: &Path) -> Result {
    let newest = RELEASES.last() == Some(&release);
    let variable = if newest { "IRON_TEST_NEWEST_HEADERS" } else { "IRON_TEST_HEADERS" };
    let mut test =
        command("cargo", &["test", "--quiet", "--locked", "-p", "ironwarp-ibverbs", "--test", "layout"]);
    run_command(test.env(variable, headers))
}

fn exported_by(unpacked: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for library in REAL {
        let triplet = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        found.extend(exported(&symbols(&unpacked.join(triplet).join(library))?));
    }
    Ok(found)
}

impl Apt {
    /// Finds a package on the mirror. apt prints `'URI' NAME_VERSION_ARCH.deb SIZE SHA256:HASH`, and nothing
    /// for a file that it has already.
    fn ask(&self, name: &str) -> Result<Package> {
        let said = self.get("empty", &["download", "--print-uris", name])?;
        parse(&said)
            .filter(|package| package.name == name)
            .ok_or_else(|| format!("unexpected output of apt for {name}: {said}"))
    }

    /// Downloads packages and unpacks them into one folder.
    fn unpack(&self, packages: &[Package]) -> Result<PathBuf> {
        let to = self.folder.join("unpacked");
        if to.exists() {
            fs::remove_dir_all(&to).map_err(at(&to))?;
        }
        for Package { name, version, hash } in packages {
            self.get("packages", &["download", "-qq", &format!("{name}={version}")])?;
            let start = format!("{name}_");
            let folder = self.folder.join("packages");
            let mut files = fs::read_dir(&folder).map_err(at(&folder))?.flatten().map(|entry| entry.path());
            let ours = |path: &PathBuf| {
                let file =
                    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                file.starts_with(&start)
                    && output(command("sha256sum", &[]).arg(path)).is_ok_and(|sum| sum.starts_with(hash))
            };
            let file =
                files.find(ours).ok_or_else(|| format!("{name} {version} does not have the hash {hash}"))?;
            output(command("dpkg-deb", &["--extract"]).arg(file).arg(&to))?;
        }
        Ok(to)
    }
}

fn parse(said: &str) -> Option<Package> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let [_, file, _, hash] = words[..] else { return None };
    let (name, rest) = file.split_once('_')?;
    let (version, _) = rest.rsplit_once('_')?;
    let hash = hash.strip_prefix("SHA256:")?;
    // A file name cannot contain the colon of a version.
    Some(Package { name: name.into(), version: version.replace("%3a", ":"), hash: hash.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_prints_is_read() {
        let said = "'http://mirror/pool/l_65_amd64.deb' libibverbs1_65.0-1.1_amd64.deb 75928 SHA256:de96\n";
        let wanted = Package { name: "libibverbs1".into(), version: "65.0-1.1".into(), hash: "de96".into() };
        assert_eq!(parse(said), Some(wanted));
        assert_eq!(parse("E: no such package\n"), None);
        assert_eq!(parse(""), None);
    }
}
