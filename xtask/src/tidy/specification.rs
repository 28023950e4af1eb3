//! SPECIFICATION.md tells the truth: the tests it names exist, and no requirement is missing.

use super::Files;
use crate::workspace::Workspace;

const SPECIFICATION: &str = "SPECIFICATION.md";

/// The letters of the requirements, and the last number of each.
const REQUIREMENTS: &[(char, u32)] = &[('N', 11), ('P', 9), ('M', 14), ('X', 8), ('I', 10)];

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let Some(text) = files.get(SPECIFICATION) else { return vec![format!("{SPECIFICATION}: is missing")] };
    let mut findings = missing_tests(text, files);
    findings.extend(missing_requirements(text));
    findings
}

/// A test is named by a link to its file, with its name in backticks as the text.
fn missing_tests(text: &str, files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for link in line.split("[`").skip(1) {
            let Some((name, rest)) = link.split_once("`](") else { continue };
            let Some((path, _)) = rest.split_once(')') else { continue };
            let is_function = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            // A target that is not a file is for the check of links; a module goes by the name of its file.
            let Some(source) = files.get(path).filter(|_| is_function && !names_file(name, path)) else {
                continue;
            };
            if !source.contains(&format!("fn {name}(")) {
                findings.push(format!("{SPECIFICATION}:{number}: there is no `fn {name}` in {path}"));
            }
        }
    }
    findings
}

fn names_file(name: &str, path: &str) -> bool {
    path.ends_with(&format!("/{name}.rs")) || path.ends_with(&format!("/{name}/mod.rs"))
}

/// Each requirement has one row of a table, which begins with its identifier.
fn missing_requirements(text: &str) -> Vec<String> {
    let all = REQUIREMENTS.iter().flat_map(|(letter, last)| (1..=*last).map(move |n| format!("{letter}{n}")));
    let rows = |id: &String| text.lines().filter(|line| line.starts_with(&format!("| {id} |"))).count();
    all.filter(|id| rows(id) != 1)
        .map(|id| format!("{SPECIFICATION}: requirement {id} has {} rows, not one", rows(&id)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::{files, workspace};
    use super::*;

    fn findings(specification: &str) -> Vec<String> {
        let source = "#[test]\nfn it_holds() {}\n";
        check(&workspace([]), &files([(SPECIFICATION, specification), ("a/tests/b.rs", source)]))
    }

    fn complete() -> String {
        let rows = REQUIREMENTS
            .iter()
            .flat_map(|(letter, last)| (1..=*last).map(move |n| format!("| {letter}{n} |")));
        rows.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn tests_that_exist_pass_and_others_are_found() {
        let text = complete() + "\n[`it_holds`](a/tests/b.rs), [`b`](a/tests/b.rs), [`Type`](a/tests/b.rs)";
        assert!(findings(&text).is_empty());
        let found = findings(&(text + "\n| [`it_holds`](a/tests/b.rs), [`it_hold`](a/tests/b.rs) |"));
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("there is no `fn it_hold` in a/tests/b.rs"), "{found:?}");
    }

    #[test]
    fn requirements_that_are_missing_or_doubled_are_found() {
        assert_eq!(
            findings(&(complete().replace("| M14 |", "") + "\n| N1 |")),
            [
                "SPECIFICATION.md: requirement N1 has 2 rows, not one",
                "SPECIFICATION.md: requirement M14 has 0 rows, not one",
            ]
        );
    }
}
