//! The list of address ranges of an access: produced by a translation, consumed by the link and the host.

use crate::host::{Host, Span};
use smallvec::SmallVec;
use std::ops::Deref;

/// A list of spans. Most accesses have one span; lists of up to two are stored without allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    list: SmallVec<[Span; 2]>,
}

impl Spans {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self { list: SmallVec::new() }
    }

    /// Appends a span. A span that begins where the last span ends is merged with it, unless only one of the two is
    /// held; an empty span is ignored.
    #[inline]
    pub fn push(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        if let Some(last) = self.list.last_mut()
            && last.held == span.held
            && last.addr.checked_add(last.len as u64) == Some(span.addr)
            && let Some(len) = last.len.checked_add(span.len)
        {
            last.len = len;
            return;
        }
        self.list.push(span);
    }

    /// Returns whether all of the memory is mapped now. Asks the host only about memory that is not held.
    pub fn are_mapped(&self, host: &dyn Host) -> bool {
        self.list.iter().all(|span| span.held || host.is_mapped(*span))
    }

    /// Whether all of the memory is known to be mapped.
    pub(crate) fn are_verified(&self) -> bool {
        self.list.iter().all(|span| span.held)
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns the total length of all spans in bytes.
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
