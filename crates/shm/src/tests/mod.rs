//! Tests of both ends of a segment in one process.

mod behaviour;
mod hostile;
mod property;
mod stream;
mod waking;

use crate::{Front, Heap, Reader, Side, Watch, Writer, open};
use std::sync::Arc;

/// One end of a segment.
struct End {
    writer: Writer,
    reader: Reader,
    watch: Watch,
}

impl End {
    fn open(segment: &Arc<Heap>, side: Side) -> Self {
        let (writer, reader, watch) = open(segment.clone(), side);
        Self { writer, reader, watch }
    }

    /// Appends a record of one piece, if it can be granted whole.
    fn put(&mut self, channel: u32, kind: u8, bytes: &[u8]) -> bool {
        let Some(mut record) = self.writer.begin(bytes.len()).unwrap() else { return false };
        if record.room() < bytes.len() {
            return false;
        }
        record.put(bytes);
        record.finish(channel, kind);
        true
    }

    /// Appends and publishes a record. The peer must not sleep.
    fn send(&mut self, channel: u32, kind: u8, bytes: &[u8]) {
        assert!(self.put(channel, kind, bytes));
        assert!(!self.writer.publish());
    }

    /// Takes the front record as a whole, without releasing it.
    fn receive(&mut self) -> Option<(u32, u8, Vec<u8>)> {
        let Front { channel, kind, left } = self.reader.front().unwrap()?;
        let mut bytes = vec![0; left];
        assert_eq!(self.reader.take(&mut bytes), left);
        Some((channel, kind, bytes))
    }
}

/// Both ends of a new segment: the creator and the joiner.
fn ends() -> (Arc<Heap>, End, End) {
    let segment = Arc::new(Heap::new());
    let (creator, joiner) = (End::open(&segment, Side::Creator), End::open(&segment, Side::Joiner));
    (segment, creator, joiner)
}

/// Bytes that differ from their neighbours and from those of other seeds.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern_at(seed + at)).collect()
}

/// A byte of a long stream.
fn pattern_at(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).to_le_bytes()[0]
}
