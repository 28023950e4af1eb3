//! Finds the drop-in, and compiles and runs C programs on it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "part of tests, which may stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the drop-in's libraries, which `cargo xtask dropin` creates. `cargo xtask test` runs that first.
pub fn libraries() -> PathBuf {
    let folder = target().join("dropin/lib/ironwarp");
    assert!(folder.join("libibverbs.so.1").exists(), "no drop-in there: run `cargo xtask dropin`");
    folder
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// Creates an empty folder for a test, which other processes do not use.
pub fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles a C program with the C compiler. Warnings are errors.
pub fn compile(output: &Path, arguments: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(output).args(arguments);
    assert!(compiler.status().expect("a C compiler is installed").success());
}

/// A command that loads the drop-in as `ironwarp run` does.
pub fn with_dropin(program: &Path) -> Command {
    let folder = libraries();
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", folder.join("libibverbs.so.1")).env("LD_LIBRARY_PATH", folder);
    command
}

/// Runs a program with the drop-in, and kills it after a minute.
pub fn run(program: &Path) -> Output {
    with_dropin(Path::new("timeout")).arg("60").arg(program).output().expect("timeout is in coreutils")
}
