//! The answer of an adapter to another process: a text with one line for each object, which may be hostile when it is read.

use crate::sys::status_socket;
use std::fmt::{self, Display};
use std::io;

/// Maximum length of a line in an answer, in characters. The rest is ignored.
pub(super) const MAX_LINE_LEN: usize = 1024;
/// Maximum number of lines in an answer. The rest is ignored.
const MAX_ROWS: usize = 1 << 16;

/// An object of an adapter: its kind, and fields `name=value`, separated by tabs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    line: String,
}

/// The status of an adapter of a process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// ID of the process that has the adapter.
    pub process: i32,
    /// The adapter's objects.
    pub rows: Vec<Row>,
}

/// The answer of an adapter, before it is read.
#[derive(Debug)]
pub struct Answer(pub(super) status_socket::Answer);

impl Row {
    pub(super) fn new(kind: &str) -> Self {
        Self { line: kind.to_owned() }
    }

    /// Adds a field. Tabs and line breaks in the value become spaces.
    pub(super) fn with(mut self, name: &str, value: impl Display) -> Self {
        self.line += &format!("\t{name}={}", value.to_string().replace(['\t', '\n'], " "));
        self
    }

    /// Returns the kind of the object: `adapter`, `port`, `lane`, `route`, `function`, `event queue`, `cq` or `qp`.
    pub fn kind(&self) -> &str {
        self.line.split('\t').next().unwrap_or_default()
    }

    /// Returns the value of a field; empty if there is none of that name.
    pub fn text(&self, name: &str) -> &str {
        let mut fields = self.line.split('\t').skip(1).filter_map(|field| field.split_once('='));
        fields.find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Returns the value of a field as a number; zero if the field does not exist, or its value is not a number.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_default()
    }

    /// Reads a line of an answer, which may be hostile: shortens it, and replaces all unprintable characters except
    /// tabs.
    pub(super) fn parse(line: &str) -> Self {
        let keep_tab = |c| if c == '\t' { c } else { replace_unprintable(c) };
        Self { line: line.chars().take(MAX_LINE_LEN).map(keep_tab).collect() }
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

/// Returns the text with all characters that control a terminal, or are invisible, replaced by U+FFFD.
pub fn printable(text: &str) -> String {
    text.chars().map(replace_unprintable).collect()
}

/// Returns U+FFFD for a control character, an invisible character or one that changes the direction of text, and others
/// as they are.
fn replace_unprintable(c: char) -> char {
    let hidden = matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    if c.is_control() || hidden { char::REPLACEMENT_CHARACTER } else { c }
}

impl Answer {
    /// Returns the length of the answer in bytes.
    pub fn size(&self) -> usize {
        self.0.len
    }

    /// Reads the answer.
    pub fn read(self) -> io::Result<Adapter> {
        let process = self.0.process;
        let text = self.0.text()?;
        Ok(Adapter { process, rows: text.lines().take(MAX_ROWS).map(Row::parse).collect() })
    }
}
