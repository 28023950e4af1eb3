//! Prints lines to standard output, and errors and notices to standard error, with bold and colour on a terminal.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// The error of a command. Errors are only printed, so that their types do not matter.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Prints a line to standard output. If the reader has closed the pipe, as `head` does, exits successfully.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| format!("failed to write to standard output: {error}").into()),
    }
}

/// Prints an error to standard error.
pub(crate) fn error(error: &dyn Error) {
    let name = paint("ironwarp:", "1;31", io::stderr().is_terminal());
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{name} {error}");
}

/// Prints a notice to standard error, because standard output may belong to the program that `ironwarp run` executes.
pub(crate) fn notice(text: impl fmt::Display) {
    let name = paint("ironwarp:", "1", io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{name} {text}");
}

/// Returns the text in bold if standard output is a terminal.
pub(crate) fn bold(text: impl fmt::Display) -> String {
    paint(text, "1", io::stdout().is_terminal())
}

/// Returns the text with an ANSI code (SGR) if the output is a terminal.
fn paint(text: impl fmt::Display, code: &str, terminal: bool) -> String {
    if terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}
