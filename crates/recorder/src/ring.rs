//! The ring of a thread: its last events. The same bytes are the ring in memory and in the file.

use crate::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of rings. Threads beyond it share one.
pub const RINGS: usize = 64;
/// Number of events that a ring keeps.
pub const RECORDS: usize = 2048;
/// Length of the header of the file. The rings follow.
pub(crate) const HEADER_LEN: usize = 4096;
/// Length of an event in the file.
pub(crate) const RECORD_LEN: usize = 16;
/// Length of what precedes the events of a ring.
pub(crate) const RING_HEADER_LEN: usize = 64;
/// Length of a ring.
pub(crate) const RING_LEN: usize = RING_HEADER_LEN + RECORDS * RECORD_LEN;
/// Length of the file, most of which is never allocated in a process with few threads.
pub const FILE_LEN: usize = HEADER_LEN + RINGS * RING_LEN;
/// Maximum number of bytes of a thread's name.
pub(crate) const NAME_LEN: usize = 16;

/// The events of one thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Ring {
    /// Number of events that were added, times [`RECORD_LEN`]. Stored after the event, so that an event is either counted and
    /// whole, or not counted.
    head: AtomicU64,
    /// The thread ID; zero for a ring that no thread has used.
    thread: AtomicU32,
    _reserved: AtomicU32,
    /// The name of the thread.
    name: [AtomicU64; NAME_LEN / 8],
    /// What `head` was when the thread got the ring. The events before are of threads that have ended.
    since: AtomicU64,
    _more: [AtomicU64; 3],
    records: [Record; RECORDS],
}

/// An event.
#[derive(Debug)]
#[repr(C)]
struct Record {
    ticks: AtomicU64,
    /// The kind, in the highest byte, and the number of the queue pair.
    subject: AtomicU32,
    argument: AtomicU32,
}

const _: () = assert!(size_of::<Ring>() == RING_LEN && size_of::<Record>() == RECORD_LEN);

/// A ring that is in no file, for threads whose ring could not be allocated.
pub(crate) static NOWHERE: Ring = Ring {
    head: AtomicU64::new(0),
    thread: AtomicU32::new(0),
    _reserved: AtomicU32::new(0),
    name: [const { AtomicU64::new(0) }; NAME_LEN / 8],
    since: AtomicU64::new(0),
    _more: [const { AtomicU64::new(0) }; 3],
    records: [const {
        Record { ticks: AtomicU64::new(0), subject: AtomicU32::new(0), argument: AtomicU32::new(0) }
    }; RECORDS],
};

impl Ring {
    /// Adds an event. The calling thread should be the only one that does: otherwise events are lost.
    #[inline(always)]
    pub(crate) fn push(&self, subject: u32, argument: u32) {
        let head = self.head.load(Ordering::Relaxed);
        let record = &self.records[position(head)];
        // Release: whoever reads a part of this event, and the head afterwards, finds that the event before is counted
        // (`head_after`). This takes no instruction on x86-64, which does not reorder stores.
        fence(Ordering::Release);
        record.ticks.store(clock::ticks(), Ordering::Relaxed);
        record.subject.store(subject, Ordering::Relaxed);
        record.argument.store(argument, Ordering::Relaxed);
        // Release: whoever reads the file while the thread runs finds the event that is counted.
        self.head.store(head.wrapping_add(RECORD_LEN as u64), Ordering::Release);
    }

    /// Returns the ID of the thread that uses or has used the ring; zero if none has.
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Takes the ring over for the thread `new`, if its thread still is `old`.
    pub(crate) fn claim(&self, old: u32, new: u32) -> bool {
        self.thread.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives up a claim.
    pub(crate) fn release(&self) {
        self.thread.store(0, Ordering::Release);
    }

    /// Sets the name of the thread, to which the events from now on belong.
    pub(crate) fn set_name(&self, name: &[u8]) {
        self.since.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut bytes = [0; NAME_LEN];
        let len = name.len().min(NAME_LEN);
        bytes[..len].copy_from_slice(&name[..len]);
        for (word, bytes) in self.name.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Returns the ring as it would be in the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RING_LEN);
        bytes.extend(self.head.load(Ordering::Acquire).to_le_bytes());
        bytes.extend(self.thread.load(Ordering::Relaxed).to_le_bytes());
        bytes.extend([0; 4]);
        self.name.iter().for_each(|word| bytes.extend(word.load(Ordering::Relaxed).to_le_bytes()));
        bytes.extend(self.since.load(Ordering::Relaxed).to_le_bytes());
        bytes.resize(RING_HEADER_LEN, 0);
        for record in &self.records {
            bytes.extend(record.ticks.load(Ordering::Relaxed).to_le_bytes());
            bytes.extend(record.subject.load(Ordering::Relaxed).to_le_bytes());
            bytes.extend(record.argument.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Returns the field `head` after the events were read, from which follows how many were overwritten meanwhile.
    pub(crate) fn head_after(&self) -> u64 {
        // Acquire: the head is read after the events. Pairs with the fence in `push`.
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed)
    }
}

/// Returns the index of the record that comes after this many bytes of records.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the mask follows")]
pub(crate) const fn position(head: u64) -> usize {
    (head / RECORD_LEN as u64) as usize % RECORDS
}
