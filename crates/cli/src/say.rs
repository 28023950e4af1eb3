//! What a person sees: lines on the standard output, errors in words on the other one, colour where it is a terminal.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// The error of a command. It is shown to a person, so its words are all that matters.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Prints a line. Who reads it may stop early, as `head` does: then there is nobody left to work for, and no error.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| format!("cannot print: {error}").into()),
    }
}

/// Prints an error.
pub(crate) fn error(error: &dyn Error) {
    let name = paint("ironwarp:", "1;31", io::stderr().is_terminal());
    // If this cannot be printed, there is no other place to say so.
    let _ = writeln!(io::stderr(), "{name} {error}");
}

/// Prints a line that is no error, but for a person all the same: the standard output is somebody else's.
pub(crate) fn notice(text: impl fmt::Display) {
    let name = paint("ironwarp:", "1", io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{name} {text}");
}

/// What stands out.
pub(crate) fn bold(text: impl fmt::Display) -> String {
    paint(text, "1", io::stdout().is_terminal())
}

fn paint(text: impl fmt::Display, code: &str, terminal: bool) -> String {
    if terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}
