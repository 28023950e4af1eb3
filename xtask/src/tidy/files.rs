//! The files that the checks read.

use crate::shell::{Result, at, command, output};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The text of each file that git tracks, or would track, by its path from the root. Files that are not UTF-8
/// have an empty text: the checks only need to know that they exist.
pub(crate) type Files = BTreeMap<String, String>;

pub(crate) fn read(root: &Path) -> Result<Files> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let names = output(command("git", &arguments).current_dir(root))?;
    let mut files = Files::new();
    for name in names.split_terminator('\0') {
        let path = root.join(name);
        match fs::read(&path) {
            Ok(bytes) => _ = files.insert(name.to_owned(), String::from_utf8(bytes).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => {} // deleted, but not in the index yet
            Err(error) => return Err(at(&path)(error)),
        }
    }
    Ok(files)
}

pub(super) fn rust_files(files: &Files) -> impl Iterator<Item = (&String, &String)> {
    files.iter().filter(|(path, _)| path.ends_with(".rs"))
}

/// Trees for the tests of the checks.
#[cfg(test)]
pub(super) mod tree {
    use super::Files;
    use crate::workspace::{Dependency, Member, Target, Workspace};

    pub(crate) fn files<const N: usize>(files: [(&str, &str); N]) -> Files {
        files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
    }

    pub(crate) fn workspace(members: impl IntoIterator<Item = Member>) -> Workspace {
        Workspace { root: "".into(), target: "".into(), members: members.into_iter().collect() }
    }

    pub(crate) fn member(name: &str, dependencies: &[(&str, bool)]) -> Member {
        let dependency = |&(name, dev): &(&str, bool)| Dependency { name: name.into(), dev };
        let target = Target { name: name.into(), kind: "lib".into(), source: format!("{name}/src/lib.rs") };
        Member {
            name: name.into(),
            directory: name.into(),
            dependencies: dependencies.iter().map(dependency).collect(),
            targets: vec![target],
        }
    }
}
