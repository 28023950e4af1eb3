//! `tidy`: the rules of this repository that no other tool checks. A new rule is one more row in `CHECKS`.

mod deps;
mod hygiene;
mod links;
mod reachable;
mod source;
mod specification;
mod unsafe_code;

use crate::shell::{Result, at, command, output};
use crate::workspace::Workspace;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The text of every file that git tracks or would, by its path from the root. The text of a file that
/// is not UTF-8 is empty: that it is there is all the checks want of it.
type Files = BTreeMap<String, String>;

/// A check returns everything it finds, each as `FILE:LINE: what is wrong`.
type Check = fn(&Workspace, &Files) -> Vec<String>;

const CHECKS: &[(&str, Check)] = &[
    ("dependency direction", deps::check),
    ("unreachable sources", reachable::check),
    ("unsafe code", unsafe_code::check),
    ("lints of the workspace", unsafe_code::check_lints),
    ("links", links::check),
    ("machine paths", hygiene::check),
    ("specification", specification::check),
];

const LARGEST: usize = 10;

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let files = files(&workspace.root)?;
    let mut total = 0;
    for (name, check) in CHECKS {
        let findings = check(workspace, &files);
        total += findings.len();
        println!("{name}: {}", if findings.is_empty() { "ok" } else { "wrong" });
        findings.iter().for_each(|finding| println!("  {finding}"));
    }
    print_largest(&files);
    if total == 0 { Ok(()) } else { Err(format!("{total} findings, listed above")) }
}

fn files(root: &Path) -> Result<Files> {
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

fn rust_files(files: &Files) -> impl Iterator<Item = (&String, &String)> {
    files.iter().filter(|(path, _)| path.ends_with(".rs"))
}

fn print_largest(files: &Files) {
    let mut sizes: Vec<_> = rust_files(files).map(|(path, text)| (text.lines().count(), path)).collect();
    sizes.sort_by_key(|(lines, _)| Reverse(*lines));
    println!("largest source files, in lines:");
    for (lines, path) in sizes.iter().take(LARGEST) {
        println!("{lines:>6}  {path}");
    }
}

/// Trees for the tests of the checks.
#[cfg(test)]
mod tree {
    use super::Files;
    use crate::workspace::{Dependency, Member, Target, Workspace};

    pub(super) fn files<const N: usize>(files: [(&str, &str); N]) -> Files {
        files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
    }

    pub(super) fn workspace(members: impl IntoIterator<Item = Member>) -> Workspace {
        Workspace { root: "".into(), target: "".into(), members: members.into_iter().collect() }
    }

    pub(super) fn member(name: &str, dependencies: &[(&str, bool)]) -> Member {
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
