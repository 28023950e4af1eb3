//! `api`: compares the public API of the crate `ironwarp` with a snapshot, so that reviews see every change,
//! and checks rules for public items.
//!
//! rustdoc writes the API as JSON; `docs.rs` reads it, `render.rs` and `types.rs` print it as Rust, and
//! `rules.rs` checks the rules. cargo-public-api does not follow re-exports from other crates, and most of
//! this API is re-exported.

mod docs;
mod render;
mod rules;
mod types;

use crate::cargo::FEATURES;
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use docs::Docs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const USAGE: &str = "api [--update]";

/// The snapshot.
pub(crate) const FILE: &str = "crates/ironwarp/public-api.txt";
const UPDATE: &str = "cargo xtask api --update";

/// The crate whose API it is, followed by the crates that it re-exports from.
const CRATES: &[&str] = &["ironwarp", "ironwarp-engine", "ironwarp-rnic", "ironwarp-wire"];

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let update = match options {
        [] => false,
        [option] if option == "--update" => true,
        _ => return Err(format!("unknown options `{}`; usage: cargo xtask {USAGE}", options.join(" "))),
    };
    let docs = documented(workspace)?;
    let (text, nameless) = render::all(&docs)?;
    if update {
        fs::write(FILE, text).map_err(at(Path::new(FILE)))?;
        println!("wrote {FILE}");
    } else {
        compare(workspace, &text)?;
    }
    let nameless = nameless.iter().map(|path| {
        format!("{path} is in a public signature, but not exported by `ironwarp`: re-export it, or hide it")
    });
    let findings: Vec<String> = nameless.chain(rules::check(&docs)?).collect();
    findings.iter().for_each(|finding| println!("  {finding}"));
    if findings.is_empty() { Ok(()) } else { Err(format!("{} findings, listed above", findings.len())) }
}

/// rustdoc's JSON is unstable; `RUSTC_BOOTSTRAP` makes the stable toolchain write it. Only rustdoc gets the
/// variable, because build scripts of dependencies also look at it, and cargo would rebuild them and
/// everything that depends on them.
fn documented(workspace: &Workspace) -> Result<Docs> {
    let rustdoc = workspace.target.join("rustdoc-with-json");
    fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n").map_err(at(&rustdoc))?;
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)).map_err(at(&rustdoc))?;
    let mut cargo = command("cargo", &["doc", "--quiet", "--no-deps", "--lib", "--locked"]);
    cargo.args(FEATURES).args(CRATES.iter().flat_map(|name| ["--package", name]));
    cargo.env("RUSTDOC", &rustdoc).env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    run_command(&mut cargo)?;
    Docs::load(&workspace.target.join("doc"), CRATES)
}

fn compare(workspace: &Workspace, text: &str) -> Result {
    let kept = fs::read_to_string(FILE).map_err(at(Path::new(FILE)))?;
    if kept == text {
        println!("{FILE}: {} lines, unchanged", text.lines().count());
        return Ok(());
    }
    let new = workspace.target.join("public-api.txt");
    fs::write(&new, text).map_err(at(&new))?;
    // The hunk headers name the type. git exits with 1 because the files differ.
    let mut diff = command("git", &["--no-pager", "diff", "--no-index", "--", FILE]);
    let _ = run_command(diff.arg(&new));
    Err(format!("the public API differs from {FILE}, see above: if that is intended, run `{UPDATE}`"))
}
