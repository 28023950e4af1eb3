//! `semver`: checks that the version promises no more than is kept: what was public in the last release is still there,
//! unless the version is an incompatible one.
//!
//! cargo-semver-checks looks at one crate at a time, and sees no item that `ironwarp` re-exports from the crates inside
//! it (its issue 638). So this also compares the snapshots of the job `api`, which has all of them.
//!
//! Before the first release nothing is promised: findings are printed, and the job passes.

use crate::api;
use crate::setup;
use crate::shell::{Result, at, command, output, present, run as run_command};
use crate::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Not installed by `setup`, because CI does not need it. Its own profile optimises all dependencies, also without
/// `--release`.
const TOOL: (&str, &str) =
    ("cargo-semver-checks", "cargo-semver-checks@0.51.0 --config profile.dev.package.\"*\".opt-level=0");
/// The crates that promise a stable API.
const CRATES: &[&str] = &["ironwarp", "ironwarp-wire"];

pub(crate) fn run(_: &Workspace, _: &[String]) -> Result {
    let release = last_release();
    let base = match &release {
        Some(tag) => tag.clone(),
        None => commit_that_set_the_version()?,
    };
    let old = version(&output(&mut command("git", &["show", &format!("{base}:Cargo.toml")]))?)?;
    let new = env!("CARGO_PKG_VERSION");
    println!("{base} has version {old}, this is {new}");
    let compatible = series(&old) == series(new);
    let snapshots = if compatible { compare(&base) } else { Ok(()) };
    if !present(TOOL.0) {
        setup::build(TOOL.1)?;
    }
    let mut checks = command("cargo", &["semver-checks", "--baseline-rev", &base]);
    checks.args(CRATES.iter().flat_map(|name| ["--package", name]));
    // Before the version is changed, the next one is assumed to be compatible.
    checks.args(if old == new { &["--release-type", "minor"][..] } else { &[] });
    match (snapshots.and(run_command(&mut checks)), release) {
        (Err(findings), None) => {
            println!("{findings}\nno release yet, there is no tag v…: this may still change");
            Ok(())
        }
        (result, _) => result,
    }
}

fn last_release() -> Option<String> {
    let tag = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"];
    output(&mut command("git", &tag)).ok().map(|tag| tag.trim().to_owned())
}

fn commit_that_set_the_version() -> Result<String> {
    let blame = output(&mut command("git", &["blame", "-l", "-s", "-L", "/^version = /,+1", "Cargo.toml"]))?;
    let commit = blame.split_whitespace().next().unwrap_or_default().trim_start_matches('^');
    if commit.chars().all(|digit| digit == '0') {
        return Err("the version in Cargo.toml is not committed: commit it first".into());
    }
    Ok(commit.to_owned())
}

/// The version in the manifest of a workspace.
fn version(manifest: &str) -> Result<String> {
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    version.map(|it| it.trim_matches('"').to_owned()).ok_or_else(|| "Cargo.toml has no version".into())
}

/// The part of a version that compatible versions share: `1` of 1.2.3, `0.2` of 0.2.1.
fn series(version: &str) -> Vec<&str> {
    let leading = version.split('.').take_while(|number| *number == "0").count();
    version.split('.').take(leading + 1).collect()
}

/// Compares the public items with those of the baseline.
fn compare(base: &str) -> Result {
    let old = output(&mut command("git", &["show", &format!("{base}:{}", api::FILE)]))?;
    let new = fs::read_to_string(api::FILE).map_err(at(Path::new(api::FILE)))?;
    let (old, new) = (items(&old), items(&new));
    let differs = |name: &&String| new.get(*name).is_some_and(|now| *now != old[*name]);
    for name in old.keys().filter(differs) {
        println!("changed, check that every use of it still compiles: {name}");
    }
    let gone: Vec<&str> = old.keys().filter(|it| !new.contains_key(*it)).map(String::as_str).collect();
    if gone.is_empty() {
        return Ok(());
    }
    Err(format!(
        "gone from the public API since {base}, which needs an incompatible version:\n  {}",
        gone.join("\n  ")
    ))
}

/// The items of a snapshot: their declarations by name, without attributes. Names of members contain that of their type.
fn items(snapshot: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut items = BTreeMap::<String, BTreeSet<String>>::new();
    let mut of = String::new();
    let lines = snapshot.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    for line in lines {
        let declaration = without_attributes(line.trim_start());
        for (name, declaration) in names(declaration) {
            if !line.starts_with(' ') {
                of.clone_from(&name);
                items.entry(name).or_default().insert(declaration);
            } else {
                items.entry(format!("{of}, {name}")).or_default().insert(declaration);
            }
        }
    }
    items
}

/// What a line declares. `impl Clone + Debug` is a list; one with parameters is not.
fn names(declaration: &str) -> Vec<(String, String)> {
    if let Some(traits) = declaration.strip_prefix("impl ") {
        let one = traits.contains(['<', '{', '(']);
        let traits: Vec<&str> = if one { vec![traits] } else { traits.split(" + ").collect() };
        return traits.iter().map(|name| (format!("impl {name}"), String::new())).collect();
    }
    let plain = declaration.replace("const fn ", "fn ").replace("async fn ", "fn ");
    let end = ["(", "<", " {", ": ", " = "].iter().filter_map(|it| plain.find(it)).min();
    vec![(plain[..end.unwrap_or(plain.len())].to_owned(), declaration.to_owned())]
}

fn without_attributes(line: &str) -> &str {
    match line.strip_prefix("#[").and_then(|rest| rest.split_once("] ")) {
        Some((_, rest)) => without_attributes(rest),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(snapshot: &str) -> Vec<String> {
        items(snapshot).into_keys().collect()
    }

    #[test]
    fn compatible_versions_share_a_series() {
        assert_eq!(series("1.2.3"), series("1.9.0"));
        assert_eq!(series("0.2.0"), series("0.2.7"));
        assert_ne!(series("0.1.0"), series("0.2.0"));
        assert_ne!(series("0.9.0"), series("1.0.0"));
    }

    #[test]
    fn the_version_of_a_workspace_is_read() {
        let manifest =
            "[workspace.package]\nversion = \"0.2.0\"\n[workspace.dependencies]\na = { version = \"1\" }\n";
        assert_eq!(version(manifest).unwrap(), "0.2.0");
        assert!(version("[workspace]\n").is_err());
    }

    #[test]
    fn items_have_the_names_of_their_types() {
        let snapshot = "\
# a comment

#[non_exhaustive] pub struct config::A
    pub len: usize
    #[must_use] pub const fn len(self, len: usize) -> Self
    impl Clone + Debug
    impl From<a::B>

pub enum E
    One(u8)
";
        let a = "pub struct config::A";
        let expected = [
            "pub enum E".to_owned(),
            "pub enum E, One".to_owned(),
            a.to_owned(),
            format!("{a}, impl Clone"),
            format!("{a}, impl Debug"),
            format!("{a}, impl From<a::B>"),
            format!("{a}, pub fn len"),
            format!("{a}, pub len"),
        ];
        assert_eq!(named(snapshot), expected);
    }

    #[test]
    fn new_attributes_and_implementations_remove_nothing() {
        let (old, new) = (
            "pub struct A\n    pub fn a()\n    impl Clone\n",
            "#[must_use] pub struct A\n    #[must_use] pub const fn a()\n    impl Clone + Copy\n",
        );
        assert!(items(old).keys().all(|name| items(new).contains_key(name)));
        let without = "pub struct A\n    impl Clone\n";
        assert!(!items(without).contains_key("pub struct A, pub fn a"));
    }
}
