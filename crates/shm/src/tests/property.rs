//! Random operations, compared with a queue.

use super::{End, ends, pattern};
use crate::layout::{HEADER, record_len};
use crate::{Front, MAX_RECORD, MIN_GRANT, RING_LEN, Record};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::convert::Infallible;

#[derive(Debug, Clone)]
enum Operation {
    Put(Put),
    Publish,
    /// Takes up to that many bytes of the front record.
    Take(usize),
    Skip,
    Release,
}

/// Begins a record of `wanted` bytes, puts what is granted, or `less` than that, in pieces of `piece` bytes, and finishes
/// or drops it.
#[derive(Debug, Clone)]
struct Put {
    wanted: usize,
    less: usize,
    piece: usize,
    channel: u32,
    kind: u8,
    finish: bool,
}

fn operations() -> impl Strategy<Value = Operation> {
    let len = || prop_oneof![0..40_usize, 0..600_usize, 0..=MAX_RECORD, Just(MAX_RECORD + 1)];
    let less = prop_oneof![3 => Just(0), 1 => 0..100_usize];
    let finish = prop_oneof![9 => Just(true), 1 => Just(false)];
    let put = (len(), less, 1..5000_usize, any::<u32>(), 0..16_u8, finish);
    let put = put.prop_map(|(wanted, less, piece, channel, kind, finish)| {
        Operation::Put(Put { wanted, less, piece, channel, kind, finish })
    });
    prop_oneof![
        4 => put,
        2 => Just(Operation::Publish),
        4 => len().prop_map(Operation::Take),
        1 => Just(Operation::Skip),
        1 => Just(Operation::Release),
    ]
}

/// What the ring should contain.
#[derive(Default)]
struct Model {
    finished: VecDeque<(Front, Vec<u8>)>,
    published: VecDeque<(Front, Vec<u8>)>,
    /// Lengths of consumed records that were not released.
    consumed: usize,
    /// Length of all records that were not released.
    used: usize,
    /// Number of bytes put so far, which determines the next.
    put: usize,
}

impl Model {
    fn put(&mut self, end: &mut End, put: &Put) {
        let &Put { wanted, less, piece, channel, kind, finish } = put;
        let room = RING_LEN - self.used;
        let granted = wanted.min(MAX_RECORD).min(room.saturating_sub(HEADER));
        let expected = (room >= record_len(wanted.min(MIN_GRANT))).then_some(granted);
        let record = end.writer.begin(wanted).unwrap();
        assert_eq!(record.as_ref().map(Record::room), expected);
        let Some(mut record) = record else { return };
        let bytes = pattern(self.put, granted.saturating_sub(less));
        bytes.chunks(piece).for_each(|piece| record.put(piece));
        if finish {
            record.finish(channel, kind);
            self.put += bytes.len();
            self.used += record_len(bytes.len());
            self.finished.push_back((Front { channel, kind, left: bytes.len() }, bytes));
        }
    }

    /// Takes up to `len` bytes of the front record, in one of two ways.
    fn take(&mut self, end: &mut End, len: usize) {
        let expected = self.published.front();
        assert_eq!(end.reader.front(), Ok(expected.map(|(front, _)| *front)));
        let Some((front, bytes)) = self.published.front_mut() else { return };
        let taken = len.min(front.left);
        if len.is_multiple_of(2) {
            let mut into = vec![0; len];
            assert_eq!(end.reader.take(&mut into), taken);
            let from = bytes.len() - front.left;
            assert_eq!(&into[..taken], &bytes[from..from + taken]);
        } else {
            let mut copied = 0;
            let count = |_, _, len| {
                copied += len;
                Ok::<(), Infallible>(())
            };
            end.reader.take_with(taken, count).unwrap();
            assert_eq!(copied, taken);
        }
        front.left -= taken;
        if front.left == 0 {
            self.consume();
        }
    }

    fn skip(&mut self, end: &mut End) {
        if end.reader.front().unwrap().is_some() {
            end.reader.skip();
            self.consume();
        }
    }

    fn consume(&mut self) {
        let (_, bytes) = self.published.pop_front().unwrap();
        self.consumed += record_len(bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_a_queue_of_records(operations in vec(operations(), 1..200)) {
        let (_, mut creator, mut joiner) = ends();
        let mut model = Model::default();
        for operation in operations {
            match operation {
                Operation::Put(put) => model.put(&mut creator, &put),
                Operation::Publish => {
                    prop_assert!(!creator.writer.publish());
                    model.published.append(&mut model.finished);
                }
                Operation::Take(len) => model.take(&mut joiner, len),
                Operation::Skip => model.skip(&mut joiner),
                Operation::Release => {
                    prop_assert!(!joiner.reader.release());
                    model.used -= std::mem::take(&mut model.consumed);
                }
            }
            prop_assert_eq!(joiner.watch.has_news(), !model.published.is_empty());
        }
    }
}
