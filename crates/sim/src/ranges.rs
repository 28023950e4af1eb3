//! Sets of addresses, with which an arena records the device's accesses.

use ironwarp_rnic::host::Span;
use std::collections::BTreeMap;

/// A set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(
    /// Start and end of each range. Ranges neither overlap nor touch.
    BTreeMap<u64, u64>,
);

impl Ranges {
    /// Adds the addresses of a span. Ranges that touch are merged.
    pub fn insert(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        let (mut start, mut end) = (span.addr, span.addr.saturating_add(span.len as u64));
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    /// Returns whether all addresses of the set are within the spans.
    pub fn within(&self, spans: &[Span]) -> bool {
        let mut allowed = Self::default();
        spans.iter().for_each(|span| allowed.insert(*span));
        self.0.iter().all(|(start, end)| {
            let around = allowed.0.range(..=start).next_back();
            around.is_some_and(|(_, allowed_end)| allowed_end >= end)
        })
    }

    /// Returns the addresses as disjoint spans in ascending order.
    pub fn spans(&self) -> Vec<Span> {
        let span = |(start, end): (&u64, &u64)| {
            Span::new(*start, usize::try_from(end - start).unwrap_or(usize::MAX))
        };
        self.0.iter().map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let at = |addr, len| Span::new(addr, len);
        let mut ranges = Ranges::default();
        for span in [at(10, 5), at(30, 5), at(20, 5), at(50, 0), at(15, 5)] {
            ranges.insert(span);
        }
        assert_eq!(ranges.spans(), [at(10, 15), at(30, 5)]);
        ranges.insert(at(24, 7));
        ranges.insert(at(12, 3));
        assert_eq!(ranges.spans(), [at(10, 25)]);
        ranges.insert(at(5, 100));
        assert_eq!(ranges.spans(), [at(5, 100)]);
        assert!(ranges.within(&[at(5, 100)]) && ranges.within(&[at(0, 200)]));
        assert!(!ranges.within(&[at(6, 99)]) && !ranges.within(&[at(5, 99)]) && !ranges.within(&[]));
    }
}
