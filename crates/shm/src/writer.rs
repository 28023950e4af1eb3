//! The writing end of a ring.

use crate::error::Corrupt;
use crate::layout::{HEADER, Header, MAX_KIND, MAX_RECORD, MIN_GRANT, RING_LEN, record_len, small};
use crate::progress::Progress;
use crate::ring::Ring;
use crate::sync::{Ordering, fence};
use std::sync::Arc;

/// Room that suffices for any call of [`Writer::begin`].
const ENOUGH: usize = record_len(MIN_GRANT);

/// Writes records to a ring.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    progress: Arc<Progress>,
    /// End of the last finished record.
    head: u64,
    /// The head that the reader sees.
    published: u64,
    /// The tail that was last loaded, valid.
    tail: u64,
    corrupt: Option<Corrupt>,
}

/// A record that is being written. It is discarded if it is dropped.
#[must_use = "a record that is not finished is discarded"]
#[derive(Debug)]
pub struct Record<'a> {
    writer: &'a mut Writer,
    len: usize,
    granted: usize,
}

impl Writer {
    pub(crate) fn new(ring: Ring, progress: Arc<Progress>) -> Self {
        Self { ring, progress, head: 0, published: 0, tail: 0, corrupt: None }
    }

    /// Begins a record of up to `wanted` bytes. It may be granted fewer, at least
    /// [`MIN_GRANT`] or what was wanted, and never more than [`MAX_RECORD`]. Returns `None` if there is no room.
    #[inline]
    pub fn begin(&mut self, wanted: usize) -> Result<Option<Record<'_>>, Corrupt> {
        let wanted = wanted.min(MAX_RECORD);
        if self.corrupt.is_none() && self.room() >= record_len(wanted) {
            return Ok(Some(Record { granted: wanted, writer: self, len: 0 }));
        }
        self.begin_after_load(wanted)
    }

    /// Begins a record of up to `wanted` bytes, at most `MAX_RECORD`, with the room that the reader has released by now.
    #[cold]
    fn begin_after_load(&mut self, wanted: usize) -> Result<Option<Record<'_>>, Corrupt> {
        self.load_tail()?;
        let room = self.room();
        if room < record_len(wanted.min(MIN_GRANT)) {
            return Ok(None);
        }
        Ok(Some(Record { granted: wanted.min(room - HEADER), writer: self, len: 0 }))
    }

    /// Makes finished records visible to the reader. Returns whether the reader sleeps: then the caller must ring the
    /// peer's bell.
    #[inline]
    #[must_use = "if this returns true, the peer waits for its bell"]
    pub fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.published = self.head;
        self.ring.words().head().store(self.head, Ordering::Release);
        // Either we see that the reader sleeps, or the reader sees our head before it sleeps (`Watch::sleep`).
        fence(Ordering::SeqCst);
        let sleeping = self.ring.words().sleeping();
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Asks the reader to ring our bell when there is room again. Returns true, and does not ask, if any record can be
    /// begun by now. All finished records must have been published.
    ///
    /// A bell answers all requests before it: a caller with several senders that wait tells all of them.
    pub fn await_room(&mut self) -> Result<bool, Corrupt> {
        debug_assert_eq!(self.head, self.published, "the reader cannot release what is not published");
        // A request that was there before may be that of another sender, which still waits.
        let asked = self.ring.words().room_wanted().swap(1, Ordering::Relaxed) != 0;
        // Either we see what the reader released, or the reader sees our request before it sleeps.
        fence(Ordering::SeqCst);
        self.load_tail()?;
        let is_room = self.room() >= ENOUGH;
        if !is_room {
            self.progress.set_full_at(self.tail);
        } else if !asked {
            self.ring.words().room_wanted().swap(0, Ordering::Relaxed);
        }
        Ok(is_room)
    }

    fn room(&self) -> usize {
        RING_LEN - small(self.head - self.tail)
    }

    /// Loads and checks what the reader has released.
    fn load_tail(&mut self) -> Result<(), Corrupt> {
        if let Some(corrupt) = self.corrupt {
            return Err(corrupt);
        }
        let tail = self.ring.words().tail().load(Ordering::Acquire);
        self.tail = self.check(tail).inspect_err(|corrupt| self.corrupt = Some(*corrupt))?;
        Ok(())
    }

    fn check(&self, tail: u64) -> Result<u64, Corrupt> {
        if tail < self.tail {
            return Err(Corrupt::Backwards { from: self.tail, to: tail });
        }
        if tail > self.published {
            return Err(Corrupt::TailAfterHead { tail, head: self.published });
        }
        if !tail.is_multiple_of(HEADER as u64) {
            return Err(Corrupt::Misaligned { position: tail });
        }
        Ok(tail)
    }
}

impl Record<'_> {
    /// Number of bytes that can still be put.
    pub fn room(&self) -> usize {
        self.granted - self.len
    }

    /// Number of bytes that were put.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes. Panics if they are more than [`room`](Self::room).
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let at = self.reserve(bytes.len());
        self.writer.ring.write(at, bytes);
        self.len += bytes.len();
    }

    /// Appends `len` bytes that `copy` writes. It is called with an address, the same place as an offset in the
    /// segment, and a length: once, or twice if the bytes wrap around the end of the ring, or not at all if `len` is 0.
    /// The address is valid for writes of that length until `copy` returns; the peer can access it, too. If `copy`
    /// fails, nothing is appended. Panics if `len` is more than [`room`](Self::room).
    #[inline]
    pub fn put_with<E>(
        &mut self,
        len: usize,
        copy: impl FnMut(*mut u8, u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = self.reserve(len);
        self.writer.ring.pieces(at, len, copy)?;
        self.len += len;
        Ok(())
    }

    /// Ends the record. The reader does not see it before [`Writer::publish`]. Panics if `kind` is more than 15.
    #[inline]
    pub fn finish(self, channel: u32, kind: u8) {
        assert!(kind <= MAX_KIND, "kind {kind} exceeds {MAX_KIND}");
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_RECORD")]
        let header = Header { channel, kind, len: self.len as u32 };
        self.writer.ring.write_header(self.writer.head, header.to_word());
        self.writer.head += record_len(self.len) as u64;
    }

    /// The position of the next `len` bytes of payload.
    fn reserve(&self, len: usize) -> u64 {
        assert!(len <= self.room(), "{len} bytes exceed the room of {} bytes in a record", self.room());
        self.writer.head + (HEADER + self.len) as u64
    }
}
