//! No file contains an absolute path of the machine where it was written, which would be wrong everywhere
//! else.

use super::files::Files;
use crate::workspace::Workspace;

/// Top-level directories, without slashes so that this file passes.
const MACHINE: &[&str] = &["work", "root", "home"];
/// A directory next to some checkouts that is not part of the repository.
const BESIDE: &str = "shared";

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let mut wanted: Vec<String> = MACHINE.iter().map(|name| format!("/{name}/")).collect();
    wanted.push(format!("../{BESIDE}"));
    let mut findings = Vec::new();
    for (path, text) in files {
        for (number, line) in (1..).zip(text.lines()) {
            let found = wanted.iter().filter(|place| names(line, place));
            findings.extend(
                found.map(|place| format!("{path}:{number}: contains `{place}`, a path of one machine")),
            );
        }
    }
    findings
}

/// Whether a path in the line begins with `place`. If a name precedes it, it is the middle of another path.
fn names(line: &str, place: &str) -> bool {
    let inside = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-~}".contains(c));
    line.match_indices(place).any(|(at, _)| !inside(&line[..at]))
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, workspace};
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
