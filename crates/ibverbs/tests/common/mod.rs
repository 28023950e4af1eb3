//! Where the tests find the drop-in, and how they make programs of C.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "part of tests, which may stop")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the drop-in's libraries, as `cargo xtask dropin` makes it; `cargo xtask test` does that first.
pub fn libraries() -> PathBuf {
    let folder = target().join("dropin/lib/ironwarp");
    assert!(folder.join("libibverbs.so.1").exists(), "no drop-in there: run `cargo xtask dropin`");
    folder
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// A folder for one test of one process.
pub fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles C with warnings as errors.
pub fn compile(output: &Path, arguments: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(output).args(arguments);
    assert!(compiler.status().expect("a C compiler is wanted here").success());
}
