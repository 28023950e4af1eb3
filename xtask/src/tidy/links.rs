//! Relative links in Markdown point to files that exist, and to headings that exist in them.

use super::files::Files;
use crate::workspace::Workspace;
use std::collections::BTreeMap;

pub(super) fn check(_: &Workspace, files: &Files) -> Vec<String> {
    let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
    documents.flat_map(|(path, text)| check_document(path, text, files)).collect()
}

fn check_document(path: &str, text: &str, files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let wrong = targets(&line).filter_map(|target| wrong_with(path, target, files));
        findings.extend(wrong.map(|why| format!("{path}:{number}: {why}")));
    }
    findings
}

/// The paths from the root that a document links to, without links to other sites and to its own headings.
pub(crate) fn linked(path: &str, text: &str) -> impl Iterator<Item = String> {
    let targets = prose(text).flat_map(|(_, line)| {
        let line = without_code(line);
        targets(&line).map(str::to_owned).collect::<Vec<_>>()
    });
    let paths = targets.filter(|target| !target.contains(':')).filter_map(|target| {
        let path = target.split('#').next().unwrap_or_default();
        (!path.is_empty()).then(|| path.to_owned())
    });
    paths.map(move |target| resolve(path, &target))
}

/// The lines outside code blocks, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        !in_block && !fence
    })
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of the links in a line: `target` of `[text](target "title")`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1).filter_map(|link| link.split_once(')'));
    links.filter_map(|(link, _)| link.split_whitespace().next())
}

fn wrong_with(from: &str, target: &str, files: &Files) -> Option<String> {
    if target.contains(':') {
        return None; // it has a scheme: an external link
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() { from.to_owned() } else { resolve(from, path) };
    let inside = format!("{to}/");
    if !files.contains_key(&to) && !files.keys().any(|file| file.starts_with(&inside)) {
        return Some(format!("broken link `{target}`: no such file"));
    }
    let lost = to.ends_with(".md") && !anchor.is_empty() && !has_anchor(&files[&to], anchor);
    lost.then(|| format!("broken link `{target}`: no such heading in {to}"))
}

/// Resolves a path relative to a file into a path from the root.
pub(crate) fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => _ = parts.pop(),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Whether a heading has this anchor by GitHub's rule, which numbers repeated headings.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let mut seen = BTreeMap::new();
    prose(text).filter(|(_, line)| line.starts_with('#')).any(|(_, line)| {
        let slug = slug(line.trim_start_matches('#').trim());
        let count = seen.entry(slug.clone()).or_insert(0);
        let name = if *count == 0 { slug } else { format!("{slug}-{count}") };
        *count += 1;
        name == anchor
    })
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, workspace};
    use super::*;

    fn findings(readme: &str) -> Vec<String> {
        let design = "# Design\n## `MPA`: markers, CRC\n## Why\n## Why\n```\n# No heading\n```\n";
        let tree = files([("README.md", readme), ("docs/design.md", design), ("docs/a/b.rs", "")]);
        check(&workspace([]), &tree)
    }

    #[test]
    fn links_to_what_is_there_pass() {
        let links = "# Top\n[a](docs/design.md#mpa-markers-crc) [b](docs/design.md#why-1) [c](#top)\n\
            [d](docs/a) [e](./docs/a/../design.md \"title\") [f](https://example.com/g) [h](docs/a/b.rs#L1)\n\
            ```\n[i](nowhere.md)\n```\n`[j](nowhere.md)`\n";
        assert_eq!(findings(links), Vec::<String>::new());
    }

    #[test]
    fn links_to_what_is_not_there_are_found() {
        let links = "[a](design.md) and [b](docs/design.md#no-heading)\n\n[c](#top) [d](/docs/design.md)\n";
        assert_eq!(
            findings(links),
            [
                "README.md:1: broken link `design.md`: no such file",
                "README.md:1: broken link `docs/design.md#no-heading`: no such heading in docs/design.md",
                "README.md:3: broken link `#top`: no such heading in README.md",
                "README.md:3: broken link `/docs/design.md`: no such file",
            ]
        );
    }
}
