//! SPECIFICATION.md and its pages are true: the tests they name exist, every promise has a test or is pending, and
//! no requirement is missing.
//!
//! A page lists promises as top-level items, and below each one item per file of tests:
//!
//! ```text
//! - **N9** A woken consumer always finds the completion.
//!   - Code: [`rnic/src/queue/cq.rs`](../../crates/rnic/src/queue/cq.rs)
//!   - [`rnic/src/queue/cq/loom_tests.rs`](../../crates/rnic/src/queue/cq/loom_tests.rs): `an_event_finds_its_completion`
//! ```

use super::files::Files;
use super::links::{prose, resolve};
use crate::workspace::Workspace;

const INDEX: &str = "SPECIFICATION.md";
const PAGES: &str = "docs/specification/";
const REQUIREMENTS: &str = "docs/specification/requirements.md";
/// Pages outside of the specification that name their tests in the same way.
const OTHER_PAGES: &[&str] = &["docs/interop-hardware.md", "docs/rfc5042.md"];

/// The letters of the requirements, and the last number of each.
const LETTERS: &[(char, u32)] = &[('N', 11), ('P', 9), ('M', 17), ('X', 8), ('I', 10)];

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let Some(index) = files.get(INDEX) else { return vec![format!("{INDEX}: is missing")] };
    let Some(requirements) = files.get(REQUIREMENTS) else {
        return vec![format!("{REQUIREMENTS}: is missing")];
    };
    let pages =
        files.iter().filter(|(path, _)| path.starts_with(PAGES) || OTHER_PAGES.contains(&path.as_str()));
    let mut findings: Vec<_> = pages.flat_map(|(path, text)| check_page(path, text, files)).collect();
    findings.extend(identifiers().filter_map(|id| wrong_requirement(&id, index, requirements)));
    findings
}

/// A list item with its continuation lines joined by spaces.
struct Item {
    line: usize,
    nested: bool,
    text: String,
}

fn items(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut open = false;
    for (line, content) in prose(text) {
        let trimmed = content.trim_start();
        if let Some(rest) = trimmed.strip_prefix("- ") {
            items.push(Item { line, nested: content.starts_with(' '), text: rest.to_owned() });
            open = true;
        } else if open && content.starts_with(' ') {
            let item = items.last_mut().expect("an item is open");
            item.text = format!("{} {trimmed}", item.text);
        } else {
            open = false;
        }
    }
    items
}

fn check_page(path: &str, text: &str, files: &Files) -> Vec<String> {
    let items = items(text);
    let mut findings = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if !item.nested {
            let mut proofs = items[index + 1..].iter().take_while(|next| next.nested);
            // Prose may have lists as well; a promise is an item with items below it, or one with an identifier.
            let is_promise =
                path.starts_with(PAGES) && (item.text.starts_with("**") || proofs.clone().next().is_some());
            if is_promise && !proofs.any(|proof| !proof.text.starts_with("Code: ")) {
                findings.push(format!("{path}:{}: no test is named, nor `pending`", item.line));
            }
        }
        let wrong = wrong_tests(path, &item.text, files);
        findings.extend(wrong.into_iter().map(|why| format!("{path}:{}: {why}", item.line)));
    }
    findings
}

/// Tests are named in backticks behind a link to their file and a colon.
fn wrong_tests(page: &str, item: &str, files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for link in item.split("[`").skip(1) {
        let Some((label, rest)) = link.split_once("`](") else { continue };
        let Some((target, rest)) = rest.split_once(')') else { continue };
        let Some(source) = files.get(&resolve(page, target)) else { continue }; // left to the check of links
        if label.ends_with(".rs") && !target.ends_with(label) {
            findings.push(format!("the link `{label}` leads to {target}"));
        }
        let Some(names) = rest.strip_prefix(": ") else { continue };
        let missing =
            names.split('`').skip(1).step_by(2).filter(|name| !source.contains(&format!("fn {name}(")));
        findings.extend(missing.map(|name| format!("there is no `fn {name}` in {label}")));
    }
    findings
}

fn identifiers() -> impl Iterator<Item = String> {
    LETTERS.iter().flat_map(|(letter, last)| (1..=*last).map(move |number| format!("{letter}{number}")))
}

/// Each requirement has a row in the index and an item on its page, which agree on whether it is pending.
fn wrong_requirement(id: &str, index: &str, page: &str) -> Option<String> {
    let rows: Vec<_> = index.lines().filter(|line| line.starts_with(&format!("| {id} |"))).collect();
    let [row] = rows[..] else {
        return Some(format!("{INDEX}: requirement {id} has {} rows, not one", rows.len()));
    };
    let items = items(page);
    let begins = |item: &&Item| !item.nested && item.text.starts_with(&format!("**{id}** "));
    let count = items.iter().filter(begins).count();
    if count != 1 {
        return Some(format!("{REQUIREMENTS}: requirement {id} has {count} items, not one"));
    }
    let proofs = items.iter().skip_while(|item| !begins(item)).skip(1).take_while(|item| item.nested);
    let pending =
        proofs.filter(|proof| !proof.text.starts_with("Code: ")).all(|proof| proof.text == "Pending");
    let status = if pending { "| pending |" } else { "| tested |" };
    (!row.ends_with(status))
        .then(|| format!("{INDEX}: the row of requirement {id} does not end in `{status}`"))
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, workspace};
    use super::*;

    const TEST: &str = "  - [`b.rs`](../../a/tests/b.rs): `it_holds`\n";

    fn index() -> String {
        identifiers().map(|id| format!("| {id} | text | tested |\n")).collect()
    }

    fn page() -> String {
        identifiers().map(|id| format!("- **{id}** text\n{TEST}")).collect()
    }

    fn findings(index: &str, page: &str) -> Vec<String> {
        let source = "#[test]\nfn it_holds() {}\n";
        check(&workspace([]), &files([(INDEX, index), (REQUIREMENTS, page), ("a/tests/b.rs", source)]))
    }

    #[test]
    fn tests_that_exist_pass_and_others_are_found() {
        assert!(findings(&index(), &page()).is_empty());
        let other =
            "- A promise of\n  two lines.\n  - [`b.rs`](../../a/tests/b.rs): `it_holds`,\n    `it_hold`\n";
        let found = findings(&index(), &(page() + other));
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("there is no `fn it_hold` in b.rs"), "{found:?}");
    }

    #[test]
    fn labels_of_moved_files_are_found() {
        let found = findings(&index(), &page().replace("[`b.rs`]", "[`c.rs`]"));
        assert!(found[0].ends_with("the link `c.rs` leads to ../../a/tests/b.rs"), "{found:?}");
    }

    #[test]
    fn promises_without_a_test_are_found() {
        let bare = page().replacen(TEST, "  - Code: [`b.rs`](../../a/tests/b.rs)\n", 1);
        assert_eq!(
            findings(&index().replacen("tested", "pending", 1), &bare),
            [format!("{REQUIREMENTS}:1: no test is named, nor `pending`")]
        );
    }

    #[test]
    fn requirements_that_are_missing_or_doubled_are_found() {
        let doubled = index().replace("| M14 | text | tested |\n", "") + "| N1 |";
        assert_eq!(
            findings(&doubled, &page()),
            [
                "SPECIFICATION.md: requirement N1 has 2 rows, not one",
                "SPECIFICATION.md: requirement M14 has 0 rows, not one",
            ]
        );
        assert_eq!(
            findings(&index(), &page().replacen("**N2**", "**N1**", 1)),
            [
                format!("{REQUIREMENTS}: requirement N1 has 2 items, not one"),
                format!("{REQUIREMENTS}: requirement N2 has 0 items, not one"),
            ]
        );
    }

    #[test]
    fn a_requirement_is_pending_in_both_places_or_in_none() {
        let pending = page().replacen(TEST, "  - Pending\n", 1);
        assert!(findings(&index().replacen("tested", "pending", 1), &pending).is_empty());
        assert_eq!(
            findings(&index(), &pending),
            ["SPECIFICATION.md: the row of requirement N1 does not end in `| pending |`"]
        );
    }
}
