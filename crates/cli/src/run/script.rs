//! Parses the first line of a script as Linux does, and finds the interpreter even if `env` starts it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Maximum number of bytes of the first line that Linux reads (BINPRM_BUF_SIZE).
pub(super) const MAX_FIRST_LINE: usize = 256;

/// The interpreter of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// A program, by its path.
    Path(OsString),
    /// A program that `env` searches in PATH.
    Searched(OsString),
    /// `env -i`, which removes the variables that load the drop-in library.
    Cleared,
}

/// Returns the interpreter that the first bytes of a file name after `#!`. Returns `None` without `#!`, or if no name
/// follows.
pub(super) fn parse_interpreter(file: &[u8]) -> Option<Interpreter> {
    let line = file.strip_prefix(b"#!")?;
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next().unwrap_or_default();
    let line = trim_blanks(line);
    let end = line.iter().position(|byte| is_blank(*byte)).unwrap_or(line.len());
    let (path, argument) = (&line[..end], trim_blanks(&line[end..]));
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match name {
        b"" => None,
        b"env" => Some(parse_env(argument)),
        _ => Some(Interpreter::Path(OsString::from_vec(path.to_vec()))),
    }
}

/// Returns the interpreter that `env` starts with this argument. Linux passes the rest of the line to `env` as one
/// argument; `-S` makes `env` split it.
fn parse_env(argument: &[u8]) -> Interpreter {
    let split = argument.strip_prefix(b"-S").or_else(|| argument.strip_prefix(b"--split-string="));
    let mut words = split.unwrap_or(argument).split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        match word {
            b"-" | b"-i" | b"--ignore-environment" => return Interpreter::Cleared,
            b"-u" | b"-C" | b"--unset" | b"--chdir" => _ = words.next(),
            _ if word.starts_with(b"-") || word.contains(&b'=') => {}
            _ => {
                let word = OsStr::from_bytes(word).to_owned();
                return if word.as_bytes().contains(&b'/') {
                    Interpreter::Path(word)
                } else {
                    Interpreter::Searched(word)
                };
            }
        }
    }
    Interpreter::Searched("env".into()) // `env` itself will report that a program is missing
}

/// Removes leading and trailing spaces and tabs. Nothing else, as Linux does: a carriage return stays.
fn trim_blanks(text: &[u8]) -> &[u8] {
    let begin = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(*byte)).map_or(begin, |last| last + 1);
    &text[begin..end]
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Option<Interpreter> {
        Some(Interpreter::Path(path.into()))
    }

    fn searched(name: &str) -> Option<Interpreter> {
        Some(Interpreter::Searched(name.into()))
    }

    #[test]
    fn the_first_line_names_an_interpreter() {
        for (line, expected) in [
            ("#!/bin/sh\n", path("/bin/sh")),
            ("#! /bin/sh -e\nls", path("/bin/sh")),
            ("#!\t/bin/sh", path("/bin/sh")),
            ("#!/bin/sh\r\n", path("/bin/sh\r")), // Linux searches for exactly that, too
            ("#!sh\n", path("sh")),
            ("#!/usr/bin/env python3\n", searched("python3")),
            ("#!/usr/bin/env  -S python3 -u\n", searched("python3")),
            ("#!/usr/bin/env -S A=1 -u B -v /opt/python -x\n", path("/opt/python")),
            ("#!/usr/bin/env --split-string=perl -w\n", searched("perl")),
            ("#!/usr/bin/env -i sh\n", Some(Interpreter::Cleared)),
            ("#!/usr/bin/env -\n", Some(Interpreter::Cleared)),
            ("#!/usr/bin/env\n", searched("env")),
        ] {
            assert_eq!(parse_interpreter(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn lines_without_an_interpreter() {
        for line in ["", "#", "# !/bin/sh", "#!", "#!   \n/bin/sh", "\x7fELF"] {
            assert_eq!(parse_interpreter(line.as_bytes()), None, "{line:?}");
        }
    }
}
