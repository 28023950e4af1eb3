//! The peer's end of a ring, written by hand: it reads and writes the file, and can violate the protocol anywhere.

use super::wait_for;
use ironwarp_shm::{RING_LEN, SEGMENT_LEN};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kinds of records.
pub(crate) const DATA: u8 = 0;
pub(crate) const ATTACH: u8 = 1;
pub(crate) const ACCEPT: u8 = 2;
pub(crate) const REFUSE: u8 = 3;
pub(crate) const CREDIT: u8 = 4;

const PAGE: u64 = 4096;
const HEADER: usize = 8;

/// A word in the control page of a ring, by its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Head = 0,
    RoomWanted = 8,
    Tail = 128,
    Sleeping = 256,
}

/// One end of the memory.
#[derive(Debug)]
pub(crate) struct RingEnd {
    pub(crate) file: File,
    /// The ring that this end writes.
    pub(crate) out: u64,
    /// End of the last record that was written.
    pub(crate) head: u64,
    /// End of the last record that was read.
    pub(crate) tail: u64,
}

/// A record that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) channel: u32,
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

/// The seals of a segment.
pub(crate) fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Creates a file in memory with this length and these seals.
pub(crate) fn memory_file(flags: MemfdFlags, len: u64, seals: SealFlags) -> File {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file: File = rustix::fs::memfd_create("ironwarp-ring", flags).unwrap().into();
    file.set_len(len).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

impl RingEnd {
    /// Creates memory as an honest process does.
    pub(crate) fn create() -> Self {
        Self::new(memory_file(MemfdFlags::empty(), SEGMENT_LEN as u64, seals()), 0)
    }

    /// Uses the memory of the other process.
    pub(crate) fn join(file: File) -> Self {
        Self::new(file, 1)
    }

    fn new(file: File, out: u64) -> Self {
        Self { file, out, head: 0, tail: 0 }
    }

    /// The ring that the victim writes.
    fn incoming(&self) -> u64 {
        1 - self.out
    }

    pub(crate) fn word(&self, ring: u64, word: Word) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, ring * PAGE + word as u64).unwrap();
        match word {
            Word::Head | Word::Tail => u64::from_ne_bytes(bytes),
            Word::RoomWanted | Word::Sleeping => u32::from_ne_bytes(*bytes.first_chunk().unwrap()).into(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "these words have 32 bits")]
    pub(crate) fn set_word(&self, ring: u64, word: Word, value: u64) {
        let at = ring * PAGE + word as u64;
        match word {
            Word::Head | Word::Tail => self.file.write_all_at(&value.to_ne_bytes(), at).unwrap(),
            Word::RoomWanted | Word::Sleeping => {
                self.file.write_all_at(&(value as u32).to_ne_bytes(), at).unwrap();
            }
        }
    }

    /// Writes the head of the ring that this end writes.
    pub(crate) fn set_head(&self, head: u64) {
        self.set_word(self.out, Word::Head, head);
    }

    /// Writes the tail of the ring that the victim writes.
    pub(crate) fn set_tail(&self, tail: u64) {
        self.set_word(self.incoming(), Word::Tail, tail);
    }

    /// Returns the head of the ring that the victim writes.
    pub(crate) fn victims_head(&self) -> u64 {
        self.word(self.incoming(), Word::Head)
    }

    /// Returns the tail of the ring that this end writes: what the victim has released.
    pub(crate) fn victims_tail(&self) -> u64 {
        self.word(self.out, Word::Tail)
    }

    fn offset(ring: u64, position: u64) -> u64 {
        2 * PAGE + ring * RING_LEN as u64 + position % RING_LEN as u64
    }

    /// Writes bytes to the data of a ring, around its end if need be.
    pub(crate) fn write(&self, ring: u64, position: u64, bytes: &[u8]) {
        let first = bytes.len().min(RING_LEN - usize::try_from(position % RING_LEN as u64).unwrap());
        self.file.write_all_at(&bytes[..first], Self::offset(ring, position)).unwrap();
        self.file.write_all_at(&bytes[first..], Self::offset(ring, 0)).unwrap();
    }

    fn read(&self, ring: u64, position: u64, bytes: &mut [u8]) {
        let first = bytes.len().min(RING_LEN - usize::try_from(position % RING_LEN as u64).unwrap());
        let (front, back) = bytes.split_at_mut(first);
        self.file.read_exact_at(front, Self::offset(ring, position)).unwrap();
        self.file.read_exact_at(back, Self::offset(ring, 0)).unwrap();
    }

    /// Writes a record, which the victim does not see yet. Its header may state another length than that of the payload.
    pub(crate) fn put_with_len(&mut self, channel: u32, kind: u8, len: u32, payload: &[u8]) {
        let record = record(channel, kind, len, payload);
        self.write(self.out, self.head, &record);
        self.head += record.len() as u64;
    }

    /// Writes a record, which the victim does not see yet.
    pub(crate) fn put(&mut self, channel: u32, kind: u8, payload: &[u8]) {
        self.put_with_len(channel, kind, u32::try_from(payload.len()).unwrap(), payload);
    }

    /// Returns whether a record with a payload of this length has room.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let used = usize::try_from(self.head - self.victims_tail()).unwrap();
        used + HEADER + len.next_multiple_of(HEADER) <= RING_LEN
    }

    /// Reads a record, and releases it if `release` is set. Returns `None` if there is none.
    pub(crate) fn take(&mut self, release: bool) -> Option<Record> {
        let head = self.victims_head();
        if head == self.tail {
            return None;
        }
        let mut header = [0; HEADER];
        self.read(self.incoming(), self.tail, &mut header);
        let word = u64::from_ne_bytes(header);
        let (channel, shape) = ((word & 0xffff_ffff) as u32, (word >> 32) as u32);
        let mut payload = vec![0; (shape & 0x0fff_ffff) as usize];
        self.read(self.incoming(), self.tail + HEADER as u64, &mut payload);
        self.tail += (HEADER + payload.len().next_multiple_of(HEADER)) as u64;
        if release {
            self.set_tail(self.tail);
        }
        Some(Record { channel, kind: (shape >> 28) as u8, payload })
    }

    /// Waits for a record, and releases it.
    pub(crate) fn next(&mut self) -> Record {
        wait_for("a record of the victim", || self.take(true))
    }
}

/// Encodes a record.
pub(crate) fn record(channel: u32, kind: u8, len: u32, payload: &[u8]) -> Vec<u8> {
    let shape = u32::from(kind) << 28 | len;
    let header = u64::from(shape) << 32 | u64::from(channel);
    let mut record = header.to_ne_bytes().to_vec();
    record.extend_from_slice(payload);
    record.resize(record.len().next_multiple_of(HEADER), 0);
    record
}
