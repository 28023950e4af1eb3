//! Running commands, and the errors of doing so: each says what happened, where, and what to do.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// An error is a sentence for the person at the terminal: no caller tells one kind from another.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command; its output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", line(command))) }
}

/// Runs a command for its standard output; what it says on standard error is shown only if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| cannot_start(command, &error))?;
    let stdout = String::from_utf8_lossy(&stdout);
    if status.success() {
        return Ok(stdout.into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    Err(format!("`{}` ended with {status}; it said:\n{stdout}{stderr}", line(command)))
}

/// Whether a tool is here and can be run, whatever its version. Cargo finds its own tools, even where
/// its directory of them is not in the PATH.
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

/// Turns an I/O error into ours, with the path that it is about: `.map_err(at(path))`.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Writes what a job found, for tools to read.
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
        _ => format!("`{}` cannot be started: {error}", line(command)),
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
