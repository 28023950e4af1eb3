//! One ring: its control words, and copying from and to its data.
#![expect(unsafe_code, reason = "copies from and to shared memory")]

use crate::accesses::Accesses;
use crate::layout::{PAGE, RING_LEN, data_offset, place};
use crate::segment::Segment;
use crate::words::Words;
use std::convert::Infallible;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A ring of a segment, which it keeps mapped. Clones refer to the same ring.
///
/// Functions that take a position accept any: it is reduced to a place in the data.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    words: Words,
    /// `RING_LEN` bytes of the segment.
    data: NonNull<u8>,
    /// Offset of the data in the segment.
    offset: u64,
    _segment: Arc<dyn Segment>,
    accesses: Accesses,
}

// SAFETY: the data belongs to a segment, which is `Send` and `Sync`, and no reference to it exists.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// The rings of a segment. Panics if it is not aligned.
    pub(crate) fn both(segment: &Arc<dyn Segment>) -> [Self; 2] {
        assert!(segment.base().addr().get().is_multiple_of(PAGE), "segment is not aligned to {PAGE} bytes");
        [0, 1].map(|ring| Self {
            words: Words::new(segment, ring),
            // SAFETY: the data is within the `SEGMENT_LEN` bytes of the segment.
            data: unsafe { segment.base().add(data_offset(ring)) },
            offset: data_offset(ring) as u64,
            _segment: Arc::clone(segment),
            accesses: Accesses::default(),
        })
    }

    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Writes a header at a position, which is a multiple of its length.
    #[inline]
    pub(crate) fn write_header(&self, position: u64, word: u64) {
        self.accesses.note_write(position);
        let header = self.header(position);
        // SAFETY: `header` returns an aligned place within the data.
        unsafe { header.write(word) }
    }

    /// Reads a header from a position. Volatile, so that it is read exactly once, whatever the peer does.
    #[inline]
    pub(crate) fn read_header(&self, position: u64) -> u64 {
        self.accesses.note_read(position);
        let header = self.header(position);
        // SAFETY: `header` returns an aligned place within the data.
        unsafe { header.read_volatile() }
    }

    fn header(&self, position: u64) -> *mut u64 {
        let place = place(position) & !(size_of::<u64>() - 1);
        // SAFETY: `place` is less than `RING_LEN` and a multiple of 8, and so is `RING_LEN`.
        unsafe { self.data.add(place) }.cast().as_ptr()
    }

    /// Copies `bytes` to a position. Panics if they are more than the ring holds.
    #[inline]
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
        self.accesses.note_write(position);
        let mut rest = bytes;
        let Ok(()) = self.pieces(position, bytes.len(), |to, _, len| {
            let (piece, left) = rest.split_at(len);
            rest = left;
            // SAFETY: `pieces` yields `len` bytes within the data, which no reference overlaps.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), to, len) };
            Ok::<(), Infallible>(())
        });
    }

    /// Fills `into` from a position. Panics if it is longer than the ring.
    #[inline]
    pub(crate) fn read(&self, position: u64, into: &mut [u8]) {
        self.accesses.note_read(position);
        let (len, mut rest) = (into.len(), into);
        let Ok(()) = self.pieces(position, len, |from, _, len| {
            let (piece, left) = mem::take(&mut rest).split_at_mut(len);
            rest = left;
            // SAFETY: `pieces` yields `len` bytes within the data, which no reference overlaps.
            unsafe { ptr::copy_nonoverlapping(from.cast_const(), piece.as_mut_ptr(), len) };
            Ok::<(), Infallible>(())
        });
    }

    /// Calls `copy` with the address, the offset in the segment and the length of each contiguous piece of `len` bytes
    /// from a position on: two of them if they wrap around the end of the data. Panics if they are more than the ring
    /// holds.
    #[inline]
    pub(crate) fn pieces<E>(
        &self,
        position: u64,
        len: usize,
        mut copy: impl FnMut(*mut u8, u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(len <= RING_LEN, "{len} bytes exceed the ring");
        let start = place(position);
        let first = len.min(RING_LEN - start);
        if first > 0 {
            // SAFETY: `start` is less than `RING_LEN`, the length of the data.
            copy(unsafe { self.data.add(start) }.as_ptr(), self.offset + start as u64, first)?;
        }
        if first < len {
            copy(self.data.as_ptr(), self.offset, len - first)?;
        }
        Ok(())
    }
}
