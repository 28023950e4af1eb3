//! Every file under a crate's `src` is part of the crate: cargo does not notice files without a `mod` line.

use super::files::{Files, rust_files};
use super::source::code_only;
use crate::workspace::{Member, Workspace};
use std::collections::BTreeSet;

pub(super) fn check(workspace: &Workspace, files: &Files) -> Vec<String> {
    workspace.members.iter().flat_map(|member| check_member(member, files)).collect()
}

fn check_member(member: &Member, files: &Files) -> Vec<String> {
    let sources = format!("{}/src/", member.directory);
    let roots: BTreeSet<&str> = member.targets.iter().map(|target| target.source.as_str()).collect();
    let mut findings = Vec::new();
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = roots.iter().map(|&root| root.to_owned()).collect();
    while let Some(path) = open.pop() {
        let Some(text) = files.get(&path).filter(|_| !reached.contains(&path)) else { continue };
        let code = code_only(text);
        // Tests and benches cannot share files in another way.
        if code.contains("#[path") && path.starts_with(&sources) {
            findings.push(format!("{path}: do not use `#[path]`: move the file to where its name says"));
        }
        let directory = directory_of_modules(&path, roots.contains(path.as_str()));
        for name in code.lines().filter_map(declared) {
            open.push(format!("{directory}/{name}.rs"));
            open.push(format!("{directory}/{name}/mod.rs"));
        }
        reached.insert(path);
    }
    let lost = rust_files(files).filter(|(path, _)| path.starts_with(&sources) && !reached.contains(*path));
    findings.extend(
        lost.map(|(path, _)| format!("{path}: no `mod` line for this file: add one or delete the file")),
    );
    findings
}

/// The module in a file of its own that a line declares; rustfmt puts each on a separate line. Modules inside
/// inline modules are not distinguished, because there are none.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = match line.strip_prefix("pub") {
        Some(after) if after.starts_with('(') => after.split_once(')')?.1.trim_start(),
        Some(after) => after.trim_start(),
        None => line,
    };
    line.strip_prefix("mod ")?.strip_suffix(';')
}

fn directory_of_modules(path: &str, root: bool) -> &str {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let own = path.trim_end_matches(".rs");
    if root || own.ends_with("/mod") { parent } else { own }
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, member, workspace};
    use super::*;

    #[test]
    fn modules_are_followed_to_their_files() {
        let tree = files([
            ("a/src/lib.rs", "pub mod b;\n#[cfg(test)]\nmod tests;\npub(crate) mod c;\n"),
            ("a/src/b.rs", "mod d;\n"),
            ("a/src/b/d.rs", ""),
            ("a/src/c/mod.rs", "mod e;\n"),
            ("a/src/c/e.rs", ""),
            ("a/src/tests.rs", ""),
            ("a/tests/more.rs", ""),
        ]);
        assert!(check(&workspace([member("a", &[])]), &tree).is_empty());
    }

    #[test]
    fn files_that_nothing_names_are_found() {
        let tree = files([
            ("a/src/lib.rs", "// mod b;\nmod c;\nconst TEXT: &str = \"\nmod d;\n\";\n"),
            ("a/src/b.rs", ""),
            ("a/src/c.rs", "#[path = \"elsewhere.rs\"]\nmod f;\n"),
            ("a/src/d.rs", ""),
            ("a/src/e/mod.rs", ""),
            ("a/src/f.rs", ""),
        ]);
        let findings = check(&workspace([member("a", &[])]), &tree);
        let places: Vec<_> = findings.iter().filter_map(|finding| finding.split(':').next()).collect();
        assert_eq!(places, ["a/src/c.rs", "a/src/b.rs", "a/src/d.rs", "a/src/e/mod.rs", "a/src/f.rs"]);
    }
}
