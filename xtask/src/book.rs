//! `book`: builds the pages as a book with mdBook, in target/book/html.
//!
//! The pages link to each other, and to source files, as on GitHub: also from docs to files outside of it, which mdBook
//! does not support. So this copies the pages, and every file that they link to, to a folder with the layout of the
//! repository. `tidy` checks that the links are right; this checks that they stay inside the book.

use crate::shell::{Result, at, command, run as run_command};
use crate::tidy::{Files, links, read_files};
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The settings of mdBook.
const SETTINGS: &str = "docs/book.toml";

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let files = read_files(&workspace.root)?;
    let copied = contents(&files)?;
    let book = workspace.target.join("book");
    let source = book.join("src");
    if book.exists() {
        fs::remove_dir_all(&book).map_err(at(&book))?;
    }
    for path in &copied {
        copy(&workspace.root.join(path), &source.join(path))?;
    }
    copy(&workspace.root.join(SETTINGS), &book.join("book.toml"))?;
    let summary = source.join("SUMMARY.md");
    fs::write(&summary, from_the_root(&files[SUMMARY])).map_err(at(&summary))?;
    run_command(command("mdbook", &["build"]).arg(&book))?;
    println!("{}", book.join("html/index.html").display());
    Ok(())
}

/// The files of the book: its pages, and the files that they link to.
fn contents(files: &Files) -> Result<BTreeSet<&str>> {
    let summary = files.get(SUMMARY).ok_or_else(|| format!("{SUMMARY} is missing"))?;
    let pages: BTreeSet<String> = links::linked(SUMMARY, summary).collect();
    let mut findings = Vec::new();
    let in_docs = files.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    findings.extend(
        in_docs.filter(|path| !pages.contains(*path)).map(|path| format!("{SUMMARY}: {path} is missing")),
    );
    let mut contents = BTreeSet::new();
    for page in &pages {
        let Some((page, text)) = files.get_key_value(page) else {
            findings.push(format!("{SUMMARY}: no such file: {page}"));
            continue;
        };
        contents.insert(page.as_str());
        for target in links::linked(page, text) {
            let inside = format!("{target}/");
            let found = files.keys().filter(|path| **path == target || path.starts_with(&inside));
            contents.extend(found.map(String::as_str));
            if target.ends_with(".md") && !pages.contains(&target) {
                findings.push(format!("{page} links to {target}, which is not in {SUMMARY}"));
            }
        }
    }
    if findings.is_empty() { Ok(contents) } else { Err(findings.join("\n")) }
}

/// The table of contents with paths from the root, where mdBook expects it.
fn from_the_root(summary: &str) -> String {
    let mut text = String::new();
    for (number, part) in summary.split("](").enumerate() {
        match part.split_once(')').filter(|_| number > 0) {
            Some((target, rest)) => text += &format!("]({}){rest}", links::resolve(SUMMARY, target)),
            None => text += part,
        }
    }
    text
}

fn copy(from: &Path, to: &Path) -> Result {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(at(folder))?;
    fs::copy(from, to).map(drop).map_err(at(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pages: &[(&str, &str)]) -> Files {
        pages.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect()
    }

    #[test]
    fn a_book_contains_its_pages_and_what_they_link_to() {
        let tree = files(&[
            ("README.md", "[a](docs/a.md) [b](docs/SUMMARY.md)\n"),
            ("docs/SUMMARY.md", "[Top](../README.md)\n\n- [A](a.md)\n\n[All](SUMMARY.md)\n"),
            ("docs/a.md", "[b](../b.rs) ![c](c.svg) [d](../d) [e](https://example.com/e.rs)\n"),
            ("b.rs", ""),
            ("docs/c.svg", ""),
            ("d/f", ""),
            ("other.rs", ""),
        ]);
        let expected = ["README.md", "b.rs", "d/f", "docs/SUMMARY.md", "docs/a.md", "docs/c.svg"];
        assert_eq!(contents(&tree).unwrap().into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(
            from_the_root(&tree["docs/SUMMARY.md"]),
            "[Top](README.md)\n\n- [A](docs/a.md)\n\n[All](docs/SUMMARY.md)\n"
        );
    }

    #[test]
    fn pages_that_are_not_in_the_book_are_found() {
        let tree = files(&[
            ("docs/SUMMARY.md", "[A](a.md)\n[All](SUMMARY.md)\n[Lost](lost.md)\n"),
            ("docs/a.md", "[b](../b.md)\n"),
            ("docs/c.md", ""),
            ("b.md", ""),
        ]);
        assert_eq!(
            contents(&tree).unwrap_err(),
            "docs/SUMMARY.md: docs/c.md is missing\ndocs/a.md links to b.md, which is not in docs/SUMMARY.md\n\
             docs/SUMMARY.md: no such file: docs/lost.md"
        );
    }
}
