//! `package`: checks that the crates for users of `ironwarp` can be published.
//!
//! Publishes them without uploading anything, and builds and runs a program outside of the workspace that depends on the
//! packages alone: the one in the README of `ironwarp`. Before cargo uploads a crate, it also builds each of them alone,
//! which takes several times as long: `--full` does that, too.

use crate::cargo::FULL;
use crate::roots::remove;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use serde_json::Value;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

pub(crate) const USAGE: &str = "package [--full]";

/// Fields of a manifest that the page of a crate shows. cargo publishes without most of them. `repository` is left to
/// the owner of the repository (RELEASING.md).
const FIELDS: &[&str] =
    &["description", "license", "readme", "documentation", "rust_version", "categories", "keywords"];
/// Files that each package contains; the licences demand their text.
const FILES: &[&str] = &["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "src/lib.rs"];
/// The crate whose README has the program, and the program's output.
const IRONWARP: &str = "ironwarp";
const OUTPUT: &str = "the server's memory says: hello from afar\n";
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let full = match options {
        [] => false,
        [option] if option == FULL => true,
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    let metadata = serde_json::from_str(&Workspace::metadata()?).map_err(|error| error.to_string())?;
    let (crates, findings) = published(&metadata);
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    // Output is shown only if it fails: it has a warning for each test, because tests are not packed.
    output(&mut publish(if full { &[] } else { &["--no-verify"] }))?;
    pack(&crates)?;
    let place = workspace.target.join("packaged");
    crates.iter().try_for_each(|name| unpack(workspace, &place, name))?;
    try_out(workspace, &place, &crates)?;
    println!("packed {}; a program that depends on them alone runs", crates.join(", "));
    if full {
        println!("each of them builds alone");
    }
    Ok(())
}

fn publish(options: &[&str]) -> Command {
    let mut cargo = command("cargo", &["publish", "--workspace", "--dry-run", "--locked", "--allow-dirty"]);
    cargo.args(options);
    cargo
}

/// The crates that are published, and what their manifests lack.
fn published(metadata: &Value) -> (Vec<String>, Vec<String>) {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let is_published = |package: &&Value| package["publish"].is_null();
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    let findings = packages().filter(is_published).flat_map(|package| {
        let missing = FIELDS.iter().filter(|field| is_empty(&package[**field]));
        missing.map(|field| format!("{}: Cargo.toml has no `{field}`", name(package))).collect::<Vec<_>>()
    });
    (packages().filter(is_published).map(name).collect(), findings.collect())
}

/// Creates the packages, which `publish` does not keep. Offline, because all dependencies have been downloaded for the build of the workspace.
fn pack(crates: &[String]) -> Result {
    let mut cargo =
        command("cargo", &["package", "--no-verify", "--locked", "--offline", "--allow-dirty", "--quiet"]);
    output(cargo.args(crates.iter().flat_map(|name| ["--package", name]))).map(drop)
}

/// Unpacks a package. Its files are older than any build, so that cargo would not see that they have changed: `--touch`.
fn unpack(workspace: &Workspace, place: &Path, name: &str) -> Result {
    let (file, to) = (workspace.target.join(format!("package/{name}-{VERSION}.crate")), place.join(name));
    remove(&to)?;
    fs::create_dir_all(&to).map_err(at(&to))?;
    let mut tar = command("tar", &["--extract", "--touch", "--strip-components=1", "--file"]);
    run_command(tar.arg(&file).arg("--directory").arg(&to))?;
    let missing = FILES.iter().find(|file| !to.join(file).exists());
    missing.map_or(Ok(()), |missing| Err(format!("{}: contains no {missing}", file.display())))
}

/// Builds and runs the program of the README, in a workspace of its own. It shares the builds of other dependencies
/// with our workspace: the same directory, versions and profile.
fn try_out(workspace: &Workspace, place: &Path, crates: &[String]) -> Result {
    let program = place.join("program");
    let write = |name: &str, text: &str| fs::write(program.join(name), text).map_err(at(&program.join(name)));
    let read = |path: &Path| fs::read_to_string(path).map_err(at(path));
    fs::create_dir_all(program.join("src")).map_err(at(&program))?;
    let page = read(&place.join(IRONWARP).join("README.md"))?;
    write("src/main.rs", first_program(&page).ok_or("the README of ironwarp has no program in Rust")?)?;
    write("Cargo.toml", &manifest(crates))?;
    write("Cargo.lock", &read(&workspace.root.join("Cargo.lock"))?)?;
    let mut cargo = command("cargo", &["run", "--quiet", "--manifest-path"]);
    let found = output(cargo.arg(program.join("Cargo.toml")).arg("--target-dir").arg(&workspace.target))?;
    match found == OUTPUT {
        true => Ok(()),
        false => Err(format!("the program of the README printed `{found}`, expected `{OUTPUT}`")),
    }
}

fn first_program(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("```rust\n")?;
    rest.split_once("```").map(|(program, _)| program)
}

/// Takes the crates from their packages, where cargo would download them from the registry.
fn manifest(crates: &[String]) -> String {
    let packages: String =
        crates.iter().map(|name| format!("{name} = {{ path = \"../{name}\" }}\n")).collect();
    format!(
        r#"[package]
name = "packaged-program"
edition = "2024"

[dependencies]
{IRONWARP} = {{ version = "={VERSION}", features = ["tokio"] }}

[patch.crates-io]
{packages}
[profile.dev]
debug = "line-tables-only"

[workspace]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_published_crate_without_a_field_is_found() {
        let whole = json!({
            "name": "a", "publish": null, "description": "d", "license": "MIT", "readme": "README.md",
            "documentation": "https://example.com", "rust_version": "1.89", "categories": ["c"], "keywords": ["k"],
        });
        let private = json!({ "name": "p", "publish": [] });
        let found = published(&json!({ "packages": [whole.clone(), private] }));
        assert_eq!(found, (vec!["a".to_owned()], Vec::new()));
        for field in FIELDS {
            let mut lacking = whole.clone();
            lacking[field] = if whole[field].is_array() { json!([]) } else { Value::Null };
            let (_, findings) = published(&json!({ "packages": [lacking] }));
            assert_eq!(findings, [format!("a: Cargo.toml has no `{field}`")]);
        }
    }

    #[test]
    fn the_first_program_of_a_page_is_found() {
        let page = "# a\n```sh\ncargo add\n```\n```rust\nfn main() {}\n```\n```rust\nsecond\n```\n";
        assert_eq!(first_program(page), Some("fn main() {}\n"));
        assert_eq!(first_program("```sh\nls\n```\n"), None);
    }
}
