//! Runs commands. Errors say what failed, where, and what to do.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// An error is a message for the person at the terminal; no caller distinguishes kinds of errors.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command that shares our standard output and standard error.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", line(command))) }
}

/// Runs a command and returns its standard output. Shows its standard error only if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| cannot_start(command, &error))?;
    let stdout = String::from_utf8_lossy(&stdout);
    if status.success() {
        return Ok(stdout.into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    Err(format!("`{}` ended with {status}; output:\n{stdout}{stderr}", line(command)))
}

/// Whether a tool is installed, in any version. cargo also finds its tools where their directory is not in
/// PATH.
pub(crate) fn present(tool: &str) -> bool {
    let mut version = match tool.strip_prefix("cargo-") {
        Some(tool) => command("cargo", &[tool, "--version"]),
        None => command(tool, &["--version"]),
    };
    version.output().is_ok_and(|output| output.status.success())
}

pub(crate) fn need(tool: &str) -> Result {
    if present(tool) { Ok(()) } else { Err(missing(tool)) }
}

/// Adds the path to an I/O error: `.map_err(at(path))`.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Writes results to a JSON file.
pub(crate) fn write_json(file: &str, found: &[serde_json::Value]) -> Result {
    let text = serde_json::to_string_pretty(found).map_err(|error| error.to_string())?;
    fs::write(file, text + "\n").map_err(at(Path::new(file)))
}

fn missing(tool: &str) -> String {
    format!("`{tool}` is missing: run `cargo xtask setup`")
}

fn cannot_start(command: &Command, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => missing(&command.get_program().to_string_lossy()),
        _ => format!("failed to start `{}`: {error}", line(command)),
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
