//! Output: lines on standard output, errors and notices on standard error, bold and colour on a terminal.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// The error of a command. It is only printed, so its type does not matter.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Prints a line. If the reader has closed the pipe, as `head` does, exits successfully.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| format!("failed to write to standard output: {error}").into()),
    }
}

/// Prints an error.
pub(crate) fn error(error: &dyn Error) {
    let name = paint("ironwarp:", "1;31", io::stderr().is_terminal());
    // If this fails, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "{name} {error}");
}

/// Prints a notice to standard error, because standard output belongs to the program.
pub(crate) fn notice(text: impl fmt::Display) {
    let name = paint("ironwarp:", "1", io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{name} {text}");
}

/// Returns the text in bold if standard output is a terminal.
pub(crate) fn bold(text: impl fmt::Display) -> String {
    paint(text, "1", io::stdout().is_terminal())
}

fn paint(text: impl fmt::Display, code: &str, terminal: bool) -> String {
    if terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}
