//! `api`: the public face of the crate `ironwarp` as a text file, so that a change to it is seen in a review, and what
//! every public item has to have.
//!
//! rustdoc says what is public, as JSON; `docs.rs` finds its way in it, `render.rs` and `types.rs` write it as Rust does,
//! `rules.rs` has what is asked of each. The usual crates for this format bring a second version of `syn`, which
//! `cargo xtask deny` forbids, and do not follow what is re-exported from another crate.

mod docs;
mod render;
mod rules;
mod types;

use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use docs::Docs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const USAGE: &str = "api [--update]";

const FILE: &str = "crates/ironwarp/public-api.txt";
const UPDATE: &str = "cargo xtask api --update";

/// The crate whose face it is, then those that it re-exports from.
const CRATES: &[&str] = &["ironwarp", "ironwarp-engine", "ironwarp-rnic", "ironwarp-wire"];

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let update = match options {
        [] => false,
        [option] if option == "--update" => true,
        _ => return Err(format!("`api` takes no option but --update, and was given: {}", options.join(" "))),
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
        format!("{path} is in a public signature, but has no name in `ironwarp`: re-export it, or hide it")
    });
    let findings: Vec<String> = nameless.chain(rules::check(&docs)?).collect();
    findings.iter().for_each(|finding| println!("  {finding}"));
    if findings.is_empty() { Ok(()) } else { Err(format!("{} findings, listed above", findings.len())) }
}

/// rustdoc's JSON is not stable. `RUSTC_BOOTSTRAP` has the stable compiler write it all the same, so that nobody
/// needs a nightly one; which version of it we read is in `docs.rs`. Only rustdoc is given the variable: build scripts of
/// dependencies look at it, and cargo would build them and all behind them again, here and in the next job.
fn documented(workspace: &Workspace) -> Result<Docs> {
    let rustdoc = workspace.target.join("rustdoc-with-json");
    fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n").map_err(at(&rustdoc))?;
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)).map_err(at(&rustdoc))?;
    let mut cargo = command("cargo", &["doc", "--quiet", "--no-deps", "--lib", "--locked"]);
    cargo.args(CRATES.iter().flat_map(|name| ["--package", name]));
    cargo.env("RUSTDOC", &rustdoc).env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    run_command(&mut cargo)?;
    Docs::load(&workspace.target.join("doc"), CRATES)
}

fn compare(workspace: &Workspace, text: &str) -> Result {
    let kept = fs::read_to_string(FILE).map_err(at(Path::new(FILE)))?;
    if kept == text {
        println!("{FILE}: {} lines, as they were", text.lines().count());
        return Ok(());
    }
    let new = workspace.target.join("public-api.txt");
    fs::write(&new, text).map_err(at(&new))?;
    // Its hunks say in which type they are. It ends with 1 because there is a difference.
    let mut diff = command("git", &["--no-pager", "diff", "--no-index", "--", FILE]);
    let _ = run_command(diff.arg(&new));
    Err(format!("the public API is not that of {FILE}: if the difference above is meant, run `{UPDATE}`"))
}
