//! Reading the options of a job.

use crate::shell::Result;
use std::slice;
use std::str::FromStr;

/// The arguments of a job, read one after another.
#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    words: slice::Iter<'a, String>,
    /// The one that [`Self::next`] returned last.
    last: &'a str,
    usage: &'static str,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(words: &'a [String], usage: &'static str) -> Self {
        Self { words: words.iter(), last: "", usage }
    }

    /// The next option or operand.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.last = self.words.next()?;
        Some(self.last)
    }

    /// The value of the option that was read last.
    pub(crate) fn value(&mut self) -> Result<&'a str> {
        self.words.next().map(String::as_str).ok_or_else(|| self.error("needs a value"))
    }

    /// The value of the option that was read last, which must be a number.
    pub(crate) fn number<T: FromStr>(&mut self) -> Result<T> {
        let value = self.value()?;
        value.parse().map_err(|_| self.error(&format!("needs a number, not `{value}`")))
    }

    /// The error for an option that the job does not have.
    pub(crate) fn unknown(&self) -> String {
        self.error("is not an option of this job")
    }

    fn error(&self, what: &str) -> String {
        format!("`{}` {what}; usage: cargo xtask {}", self.last, self.usage)
    }
}
