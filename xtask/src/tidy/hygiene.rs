//! No file names a place on the machine where it was written: such a path is wrong everywhere else.

use super::Files;
use crate::workspace::Workspace;

/// Directories at the root of a machine. Without their slashes here, so that this file passes too.
const MACHINE: &[&str] = &["work", "root", "home"];
/// A directory that is next to some checkouts and no part of any.
const BESIDE: &str = "shared";

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let mut wanted: Vec<String> = MACHINE.iter().map(|name| format!("/{name}/")).collect();
    wanted.push(format!("../{BESIDE}"));
    let mut findings = Vec::new();
    for (path, text) in files {
        for (number, line) in (1..).zip(text.lines()) {
            let found = wanted.iter().filter(|place| names(line, place));
            findings.extend(
                found.map(|place| format!("{path}:{number}: names `{place}`, a place on one machine")),
            );
        }
    }
    findings
}

/// Whether a path in the line begins with this: with a name before it, it is the middle of another path.
fn names(line: &str, place: &str) -> bool {
    let inside = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-~}".contains(c));
    line.match_indices(place).any(|(at, _)| !inside(&line[..at]))
}

#[cfg(test)]
mod tests {
    use super::super::tree::{files, workspace};
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        check(&workspace([]), &files([("a.txt", text)]))
    }

    #[test]
    fn machine_paths_are_found() {
        for directory in MACHINE {
            assert_eq!(findings(&format!("fine\nsee /{directory}/x and (/{directory}/y)\n")).len(), 1);
            assert_eq!(findings(&format!("file:///{directory}/x")).len(), 1);
        }
        assert_eq!(findings(&format!("see ../{BESIDE}/notes")).len(), 1);
    }

    #[test]
    fn other_paths_are_not() {
        let text = MACHINE.iter().map(|it| format!("docs/{it}/x https://example.com/{it}/ ~/{it}/ /{it}\n"));
        assert_eq!(findings(&text.collect::<String>()), Vec::<String>::new());
    }
}
