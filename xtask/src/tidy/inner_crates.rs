//! Documentation that users of the crate `ironwarp` read names no crate inside it, because these users cannot import
//! one: `ironwarp` re-exports types of the crates below, with their documentation. Hidden lines of examples may.

use super::files::{Files, rust_files};
use crate::workspace::Workspace;

/// The crates inside `ironwarp`, as code names them, and their sources.
const INNER: &[(&str, &[&str])] = &[
    ("ironwarp_engine", &["crates/engine/src/"]),
    ("ironwarp_rnic", &["crates/rnic/src/"]),
    ("ironwarp_wire", WIRE),
];

/// The sources of `ironwarp-wire` that define types which `ironwarp` re-exports. The rest is read by users of
/// `ironwarp-wire` alone.
const WIRE: &[&str] = &[
    "crates/wire/src/cause.rs",
    "crates/wire/src/ddp.rs",
    "crates/wire/src/error.rs",
    "crates/wire/src/mpa/framing.rs",
    "crates/wire/src/mpa/startup.rs",
    "crates/wire/src/addr.rs",
    "crates/wire/src/private/extension.rs",
    "crates/wire/src/private/hello.rs",
    "crates/wire/src/rdmap/atomic.rs",
    "crates/wire/src/rdmap/read.rs",
    "crates/wire/src/rdmap/terminate.rs",
];

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_inner(path)) {
        for (number, line) in (1..).zip(text.lines()) {
            let found = INNER.iter().filter(|(name, _)| is_visible(line) && line.contains(name));
            findings.extend(found.map(|(name, _)| {
                format!(
                    "{path}:{number}: users of `ironwarp` cannot import `{name}`: hide this line with `# `"
                )
            }));
        }
    }
    let sources = INNER.iter().flat_map(|(_, sources)| *sources);
    let missing = sources.filter(|source| !files.keys().any(|path| path.starts_with(**source)));
    findings.extend(missing.map(|source| format!("{source}: listed in inner_crates.rs, but does not exist")));
    findings
}

fn is_inner(path: &str) -> bool {
    INNER.iter().any(|(_, sources)| sources.iter().any(|source| path.starts_with(source)))
}

/// Whether readers see the line: it documents an item, and is not a hidden line of an example.
fn is_visible(line: &str) -> bool {
    line.trim_start().strip_prefix("///").is_some_and(|text| !text.trim_start().starts_with("# "))
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, workspace};
    use super::*;

    #[test]
    fn a_visible_line_that_names_an_inner_crate_is_found() {
        let text = "\
//! Below `ironwarp_rnic`.
/// ```
/// # use ironwarp_rnic::qp::State;
/// use ironwarp_rnic::gid::Gid;
/// ```
use ironwarp_rnic::event::Code; // ironwarp_wire
";
        let tree = files([("crates/engine/src/a.rs", text), ("crates/ironwarp/src/b.rs", text)]);
        let findings = check(&workspace([]), &tree);
        let lines: Vec<_> = findings.iter().filter(|it| it.contains("cannot import")).collect();
        assert_eq!(lines.len(), 1, "{findings:?}");
        assert!(lines[0].starts_with("crates/engine/src/a.rs:4: "), "{findings:?}");
    }

    #[test]
    fn a_listed_source_must_exist() {
        let findings = check(&workspace([]), &files([("crates/engine/src/a.rs", "")]));
        assert_eq!(findings.len(), 1 + WIRE.len(), "{findings:?}");
    }
}
