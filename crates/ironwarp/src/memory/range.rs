//! Ranges of bytes in a region or a chunk: resolving any of Rust's forms, and checking bounds.

use super::error::AccessError;
use std::ops::{Bound, RangeBounds};

/// Returns the offset and length of a range of `size` bytes. Fails if the range is not completely inside, or ends before
/// it starts.
pub(super) fn resolve(range: impl RangeBounds<usize>, size: usize) -> Result<(usize, usize), AccessError> {
    // An excluded start or included end at `usize::MAX` is outside of all memory, and so is the saturated value.
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size.max(start),
    };
    let len = end.checked_sub(start).ok_or(AccessError::Reversed { start, end })?;
    check(start, len, size)?;
    Ok((start, len))
}

/// Checks that the `len` bytes at offset `at` are inside `size` bytes.
pub(super) fn check(at: usize, len: usize, size: usize) -> Result<(), AccessError> {
    let inside = at.checked_add(len).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(AccessError::OutOfBounds { at, len, size }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range_is_resolved() {
        assert_eq!(resolve(.., 10), Ok((0, 10)));
        assert_eq!(resolve(..4, 10), Ok((0, 4)));
        assert_eq!(resolve(..=4, 10), Ok((0, 5)));
        assert_eq!(resolve(3.., 10), Ok((3, 7)));
        assert_eq!(resolve(3..3, 10), Ok((3, 0)));
        assert_eq!(resolve(10.., 10), Ok((10, 0)));
        assert_eq!(resolve((Bound::Excluded(3), Bound::Unbounded), 10), Ok((4, 6)));
    }

    #[test]
    fn ranges_outside_of_the_region_are_refused() {
        assert_eq!(resolve(8..11, 10), Err(AccessError::OutOfBounds { at: 8, len: 3, size: 10 }));
        assert_eq!(resolve(11.., 10), Err(AccessError::OutOfBounds { at: 11, len: 0, size: 10 }));
        assert_eq!(
            resolve(0..=usize::MAX, 10),
            Err(AccessError::OutOfBounds { at: 0, len: usize::MAX, size: 10 })
        );
        #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
        let reversed = 5..3;
        assert_eq!(resolve(reversed, 10), Err(AccessError::Reversed { start: 5, end: 3 }));
    }
}
