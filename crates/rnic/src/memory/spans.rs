//! Where the bytes of an access lie: what a translation gives, and what the link and the host take.

use crate::host::{Host, Span};
use smallvec::SmallVec;
use std::ops::Deref;

/// A list of spans. Most accesses have one, so two need no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    list: SmallVec<[Span; 2]>,
    /// Some of it may not be mapped.
    doubtful: bool,
}

impl Spans {
    /// An empty list.
    pub fn new() -> Self {
        Self { list: SmallVec::new(), doubtful: false }
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

    /// Of what is appended, nobody knows whether it is mapped.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Whether all of it is mapped now.
    pub fn are_mapped(&self, host: &dyn Host) -> bool {
        !self.doubtful || self.list.iter().all(|span| host.is_mapped(*span))
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        *self = Self::new();
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
