//! The reading end of a ring.

use crate::error::Corrupt;
use crate::layout::{HEADER, Header, MAX_RECORD, RING_LEN, record_len, small};
use crate::progress::Progress;
use crate::ring::Ring;
use crate::sync::Ordering;
use std::sync::Arc;

/// With this much free, a writer that waits is told. Less would cost a bell for every record of a writer that is
/// faster than us. If less becomes free, the ring is not empty: we read on, or the next poll of the empty ring tells.
const WORTH_A_BELL: u64 = RING_LEN as u64 / 4;

/// Reads records from a ring.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    progress: Arc<Progress>,
    /// The head that was last loaded, valid.
    head: u64,
    /// Start of the front record.
    position: u64,
    /// The tail that the writer sees.
    released: u64,
    /// The front record, once its header was read.
    front: Option<Front>,
    /// Length of the payload of the front record, at most `MAX_RECORD`.
    len: usize,
    corrupt: Option<Corrupt>,
}

/// The record at the front of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Front {
    /// The channel that the writer chose.
    pub channel: u32,
    /// The kind that the writer chose, at most 15.
    pub kind: u8,
    /// Number of bytes that were not taken yet.
    pub left: usize,
}

impl Reader {
    pub(crate) fn new(ring: Ring, progress: Arc<Progress>) -> Self {
        Self { ring, progress, head: 0, position: 0, released: 0, front: None, len: 0, corrupt: None }
    }

    /// The record at the front, or `None` if the ring is empty. It stays at the front until all of its bytes are taken,
    /// or until it is [skipped](Self::skip).
    #[inline]
    pub fn front(&mut self) -> Result<Option<Front>, Corrupt> {
        if self.front.is_none() {
            self.front = self.load_front()?;
        }
        Ok(self.front)
    }

    /// Copies bytes of the front record, and returns how many. Copies none if [`front`](Self::front) returned no record
    /// since the last one was consumed.
    ///
    /// A record is consumed as soon as nothing is left of it; an empty one by taking 0 bytes.
    #[inline]
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let len = self.left().min(into.len());
        self.ring.read(self.payload(), &mut into[..len]);
        self.advance(len);
        len
    }

    /// Takes `len` bytes of the front record, which `copy` reads. It is called with an address, the same place as an
    /// offset in the segment, and a length: once, or twice if the bytes wrap around the end of the ring, or not at all
    /// if `len` is 0. The address is valid for reads of that length until `copy` returns; the peer can change what is
    /// there at any time. If `copy` fails, nothing is taken. Panics if `len` is more than is [left](Front::left).
    #[inline]
    pub fn take_with<E>(
        &mut self,
        len: usize,
        mut copy: impl FnMut(*const u8, u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(len <= self.left(), "{len} bytes exceed the {} bytes left of a record", self.left());
        self.ring.pieces(self.payload(), len, |from, offset, len| copy(from.cast_const(), offset, len))?;
        self.advance(len);
        Ok(())
    }

    /// Consumes the rest of the front record. Does nothing if [`front`](Self::front) returned no record since the last
    /// one was consumed.
    #[inline]
    pub fn skip(&mut self) {
        self.advance(self.left());
    }

    /// Releases the room of consumed records to the writer. Returns whether the writer waits for it: then the caller
    /// must ring the peer's bell.
    #[inline]
    #[must_use = "if this returns true, the peer waits for its bell"]
    pub fn release(&mut self) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        self.ring.words().tail().store(self.position, Ordering::Release);
        // Without a fence, this load may miss a request of a writer that does not see our tail yet. Polling the empty
        // ring, or going to sleep, finds it (`Watch`).
        let room_wanted = self.ring.words().room_wanted();
        room_wanted.load(Ordering::Relaxed) != 0
            && self.head - self.position <= RING_LEN as u64 - WORTH_A_BELL
            && room_wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// Number of bytes left of the front record; 0 if there is none.
    fn left(&self) -> usize {
        self.front.map_or(0, |front| front.left)
    }

    /// The position of the bytes that are left.
    fn payload(&self) -> u64 {
        self.position + (HEADER + self.len - self.left()) as u64
    }

    /// Counts `len` bytes as taken, at most what is left.
    #[inline]
    fn advance(&mut self, len: usize) {
        let Some(front) = &mut self.front else { return };
        front.left -= len;
        if front.left == 0 {
            self.position += record_len(self.len) as u64;
            self.front = None;
            self.progress.set_consumed(self.position);
        }
    }

    /// Reads the next header, if there is one.
    #[inline]
    fn load_front(&mut self) -> Result<Option<Front>, Corrupt> {
        if let Some(corrupt) = self.corrupt {
            return Err(corrupt);
        }
        self.next().inspect_err(|corrupt| self.corrupt = Some(*corrupt))
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Front>, Corrupt> {
        if self.head == self.position {
            let head = self.ring.words().head().load(Ordering::Acquire);
            if head == self.position {
                return Ok(None);
            }
            self.head = self.check(head)?;
        }
        let header = Header::from_word(self.ring.read_header(self.position));
        let len = header.len as usize;
        if len > MAX_RECORD {
            return Err(Corrupt::TooLong { len: header.len });
        }
        let published = small(self.head - self.position);
        if record_len(len) > published {
            return Err(Corrupt::Incomplete { len: header.len, published });
        }
        self.len = len;
        Ok(Some(Front { channel: header.channel, kind: header.kind, left: len }))
    }

    fn check(&self, head: u64) -> Result<u64, Corrupt> {
        if head < self.head {
            return Err(Corrupt::Backwards { from: self.head, to: head });
        }
        if head - self.released > RING_LEN as u64 {
            return Err(Corrupt::Overrun { head, tail: self.released });
        }
        if !head.is_multiple_of(HEADER as u64) {
            return Err(Corrupt::Misaligned { position: head });
        }
        Ok(head)
    }
}
