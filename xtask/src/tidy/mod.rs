//! `tidy`: checks rules of this repository that no other tool checks. A new rule is one more row in `CHECKS`.

mod deps;
mod files;
mod hygiene;
mod inner_crates;
pub(crate) mod links;
mod modules;
mod reachable;
mod source;
mod specification;
mod unsafe_code;

use crate::shell::Result;
use crate::workspace::Workspace;
use files::rust_files;
pub(crate) use files::{Files, read as read_files};
use std::cmp::Reverse;

/// A check returns its findings as `FILE:LINE: what is wrong`.
type Check = fn(&Workspace, &Files) -> Vec<String>;

const CHECKS: &[(&str, Check)] = &[
    ("order of crates", deps::check),
    ("order of modules", modules::check),
    ("unreachable sources", reachable::check),
    ("unsafe code", unsafe_code::check),
    ("lints of the workspace", unsafe_code::check_lints),
    ("links", links::check),
    ("machine paths", hygiene::check),
    ("crates inside ironwarp", inner_crates::check),
    ("specification", specification::check),
];

const LARGEST: usize = 10;

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let files = read_files(&workspace.root)?;
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

fn print_largest(files: &Files) {
    let mut sizes: Vec<_> = rust_files(files).map(|(path, text)| (text.lines().count(), path)).collect();
    sizes.sort_by_key(|(lines, _)| Reverse(*lines));
    println!("largest source files, in lines:");
    for (lines, path) in sizes.iter().take(LARGEST) {
        println!("{lines:>6}  {path}");
    }
}
