//! The list of address ranges of an access: produced by a translation, consumed by the link and the host.

use crate::host::{Host, Span};
use smallvec::SmallVec;
use std::ops::Deref;

/// A list of spans. Most accesses have one span; lists of up to two are stored without allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    list: SmallVec<[Span; 2]>,
    /// Whether some of the memory may not be mapped.
    unverified: bool,
}

impl Spans {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self { list: SmallVec::new(), unverified: false }
    }

    /// Appends a span. A span that begins where the last span ends is merged with it; an empty span is ignored.
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

    /// Marks the list as containing memory that may not be mapped.
    pub(super) fn mark_unverified(&mut self) {
        self.unverified = true;
    }

    /// Returns whether all of the memory is mapped now. Asks the host only if some of the memory may not be.
    pub fn are_mapped(&self, host: &dyn Host) -> bool {
        !self.unverified || self.list.iter().all(|span| host.is_mapped(*span))
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
