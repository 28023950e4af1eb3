//! Where the bytes of an access lie: what a translation gives, and what the link and the host take.

use crate::host::Span;
use std::ops::Deref;

/// A list of spans, to be used again and again: it keeps its room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    list: Vec<Span>,
}

impl Spans {
    /// An empty list.
    pub const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// Appends a span. One that begins where the last one ends makes that one longer; an empty one is left out.
    #[inline]
    pub fn push(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        if let Some(last) = self.list.last_mut()
            && last.addr.checked_add(last.len as u64) == Some(span.addr)
            && let Some(len) = last.len.checked_add(span.len)
        {
            last.len = len;
            return;
        }
        self.list.push(span);
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// How many bytes all spans have together.
    pub fn bytes(&self) -> usize {
        self.list.iter().map(|span| span.len).sum()
    }
}

impl Deref for Spans {
    type Target = [Span];

    fn deref(&self) -> &[Span] {
        &self.list
    }
}
