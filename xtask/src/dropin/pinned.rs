//! The symbols that Debian's releases export, from crates/ibverbs/symbols: a file for each release, so that
//! CI can compare without their packages. `releases.rs` writes and checks these files.
//!
//! A line is a comment (`# …`), a package with its version and SHA-256 (`package …`), or a symbol (`name@@NODE`).

use crate::shell::{Result, at};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The releases to compare with, oldest first. crates/ibverbs/src/abi follows the headers of the last one.
pub(crate) const RELEASES: [&str; 3] = ["bookworm", "trixie", "sid"];

const FOLDER: &str = "crates/ibverbs/symbols";

/// A release, at the time its file was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) packages: Vec<Package>,
    pub(super) symbols: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// SHA-256 in hexadecimal.
    pub(super) hash: String,
}

pub(super) fn file(release: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(format!("{release}.txt"))
}

impl Pinned {
    pub(super) fn read(release: &str) -> Result<Self> {
        let file = file(release);
        let text = fs::read_to_string(&file).map_err(at(&file))?;
        Self::parse(&text).map_err(|line| format!("{}: invalid line: {line}", file.display()))
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut pinned = Self { packages: Vec::new(), symbols: BTreeSet::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["package", name, version, hash] => {
                    let (name, version, hash) = (name.to_owned(), version.to_owned(), hash.to_owned());
                    pinned.packages.push(Package { name, version, hash });
                }
                [symbol] if symbol.contains('@') => drop(pinned.symbols.insert(symbol.to_owned())),
                _ => return Err(line.to_owned()),
            }
        }
        if pinned.packages.is_empty() || pinned.symbols.is_empty() {
            return Err("no packages, or no symbols".into());
        }
        Ok(pinned)
    }

    pub(super) fn write(&self, release: &str) -> Result {
        let mut text = format!(
            "# libibverbs and librdmacm of Debian {release}, amd64: the packages by SHA-256, and what the libraries export.\n\
             # Written by `cargo xtask releases --update`.\n"
        );
        for Package { name, version, hash } in &self.packages {
            text += &format!("package {name} {version} {hash}\n");
        }
        self.symbols.iter().for_each(|symbol| text += &format!("{symbol}\n"));
        let file = file(release);
        fs::write(&file, text).map_err(at(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_what_it_does_not_say_is_refused() {
        let pinned =
            Pinned::parse("# x\npackage a 1.0-1 00ff\nb@@V\nc@V\n").unwrap_or_else(|e| panic!("{e}"));
        let package = Package { name: "a".into(), version: "1.0-1".into(), hash: "00ff".into() };
        assert_eq!(pinned.packages, [package]);
        assert_eq!(pinned.symbols, BTreeSet::from(["b@@V".to_owned(), "c@V".to_owned()]));
        assert_eq!(Pinned::parse("package a 1.0-1\nb@@V\n"), Err("package a 1.0-1".into()));
        assert!(Pinned::parse("package a 1 0\n").is_err());
        assert!(Pinned::parse("b@@V\n").is_err());
    }
}
