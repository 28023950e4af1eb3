//! `no-std`: checks that the wire crate without its default features, and everything it then depends on,
//! needs neither std nor an allocator.
//!
//! It builds a program without std that has a panic handler of its own. If std were linked, there would be
//! two panic handlers; if alloc were linked, an allocator would be missing. Both are compile errors.

use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use std::fs;

pub(crate) const PACKAGE: &str = "ironwarp-wire";

const SOURCE: &str = "\
#![no_std]
#![no_main]

// Named so that it is linked.
extern crate subject;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
";

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let member = workspace.member(PACKAGE).ok_or_else(|| format!("no crate {PACKAGE} in the workspace"))?;
    let subject = workspace.root.join(&member.directory);
    let directory = workspace.target.join("no-std");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).map_err(at(&path))
    };
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    write("lib.rs", SOURCE)?;
    write("Cargo.toml", &manifest(&subject.to_string_lossy()))?;
    // Use the same versions of dependencies as the workspace.
    let lock = workspace.root.join("Cargo.lock");
    write("Cargo.lock", &fs::read_to_string(&lock).map_err(at(&lock))?)?;

    let manifest = directory.join("Cargo.toml");
    let mut build = command("cargo", &["build", "--quiet", "--manifest-path"]);
    run_command(build.arg(manifest).arg("--target-dir").arg(directory.join("build"))).map_err(|error| {
        format!("{PACKAGE} or one of its dependencies needs std or alloc, see above: {error}")
    })?;
    println!("{PACKAGE} builds without std");
    Ok(())
}

/// A separate workspace, so that cargo does not take it for a member of ours. It aborts on panic, because
/// unwinding needs std.
fn manifest(subject: &str) -> String {
    format!(
        r#"[package]
name = "no-std-proof"
edition = "2024"

[lib]
path = "lib.rs"
crate-type = ["staticlib"]

[dependencies]
subject = {{ package = "{PACKAGE}", path = {subject:?}, default-features = false }}

[profile.dev]
panic = "abort"

[workspace]
"#
    )
}
