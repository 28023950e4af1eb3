//! `unsafe` is confined to a list of files, and every crate uses the workspace's lints.

use super::files::{Files, rust_files};
use super::source::code_only;
use crate::workspace::Workspace;

/// Files that may contain `unsafe`, by their path from the root. A trailing slash stands for all files of a
/// folder.
const UNSAFE_FILES: &[&str] = &[
    "crates/cli/src/main.rs",
    "crates/cli/src/run/exec.rs",
    "crates/engine/src/sys/fork.rs",
    "crates/engine/src/sys/sched.rs",
    "crates/engine/src/sys/segment.rs",
    "crates/engine/src/sys/memory.rs",
    "crates/engine/src/sys/memory/descriptor.rs",
    "crates/engine/src/sys/memory/map.rs",
    "crates/engine/src/sys/raw.rs",
    "crates/engine/src/sys/socket.rs",
    "crates/engine/src/sys/testing.rs",
    "crates/engine/src/sys/thread.rs",
    "crates/ibverbs/src/", // a C ABI: every entry point takes raw pointers
    "crates/ibverbs/tests/helpers.rs",
    "crates/ironwarp/src/memory/buffer.rs",
    "crates/ironwarp/src/memory/copy.rs",
    "crates/ironwarp/src/memory/raw.rs",
    "crates/net/src/tap.rs",
    "crates/recorder/src/clock.rs",
    "crates/recorder/src/exit.rs",
    "crates/recorder/src/map.rs",
    "crates/shm/src/heap.rs",
    "crates/shm/src/ring.rs",
    "crates/shm/src/segment.rs",
    "crates/shm/src/words.rs",
    "crates/testkit/src/fork.rs",
    "crates/testkit/src/mapping.rs",
    "crates/testkit/src/path.rs",
];

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    check_files(files, UNSAFE_FILES)
}

fn check_files(files: &Files, allowed: &[&str]) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| !allowed.iter().any(|entry| covers(entry, path)))
    {
        let code = code_only(text);
        let lines = (1..).zip(code.lines()).filter(|(_, line)| has_unsafe(line));
        let why = "`unsafe` in a file that is not in UNSAFE_FILES";
        findings.extend(lines.map(|(number, _): (usize, _)| format!("{path}:{number}: {why}")));
    }
    let uses = |entry: &str| {
        rust_files(files).any(|(path, text)| covers(entry, path) && has_unsafe(&code_only(text)))
    };
    let idle = allowed.iter().filter(|entry| !uses(entry));
    findings.extend(idle.map(|path| format!("{path}: in UNSAFE_FILES, but has no `unsafe`: remove it")));
    findings
}

fn covers(entry: &str, path: &str) -> bool {
    path == entry || entry.ends_with('/') && path.starts_with(entry)
}

fn has_unsafe(code: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

pub(super) fn check_lints(workspace: &Workspace, files: &Files) -> Vec<String> {
    let manifests = workspace.members.iter().map(|member| format!("{}/Cargo.toml", member.directory));
    let lax = manifests.filter(|path| !files.get(path).is_some_and(|text| under_workspace_lints(text)));
    lax.map(|path| format!("{path}: needs `[lints]` followed by `workspace = true`")).collect()
}

fn under_workspace_lints(manifest: &str) -> bool {
    manifest.lines().zip(manifest.lines().skip(1)).any(|pair| pair == ("[lints]", "workspace = true"))
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, member, workspace};
    use super::*;

    #[test]
    fn unsafe_is_found_in_code_alone() {
        let tree = files([
            ("a.rs", "// unsafe\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe\";\n"),
            ("b.rs", "fn f() {\n    unsafe { g() }\n}\n#[unsafe(no_mangle)]\nfn h() {}\n"),
            ("c.rs", "unsafe fn i() {}\n"),
        ]);
        let findings = check_files(&tree, &["a.rs", "c.rs"]);
        let places: Vec<_> = findings.iter().map(|it| it.split(' ').next()).collect();
        assert_eq!(places, [Some("b.rs:2:"), Some("b.rs:4:"), Some("a.rs:")]);
    }

    #[test]
    fn a_crate_with_its_own_lints_is_found() {
        let tree = files([
            ("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
            ("b/Cargo.toml", "[package]\n\n[lints.rust]\nunsafe_code = \"allow\"\n"),
        ]);
        let findings = check_lints(&workspace([member("a", &[]), member("b", &[])]), &tree);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("b/Cargo.toml:"));
    }
}
