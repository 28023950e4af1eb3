//! A peer that writes anything to the segment at any time.

use super::{End, ends};
use crate::layout::{
    HEAD, HEADER, PAGE, ROOM_WANTED, SLEEPING, TAIL, control_offset, data_offset, record_len,
};
use crate::{Corrupt, Heap, MAX_RECORD, RING_LEN, Segment};
use std::convert::Infallible;

/// Length of the records of an honest peer.
const RECORD: usize = 20_000;
const FULL: u64 = RING_LEN as u64;

fn set(segment: &Heap, offset: usize, word: u64) {
    segment.write(offset, &word.to_ne_bytes());
}

/// The joiner publishes `head` and a header; what does the creator find?
fn published(head: u64, header: u64) -> Result<Option<usize>, Corrupt> {
    let (segment, mut creator, _) = ends();
    set(&segment, data_offset(1), header);
    set(&segment, control_offset(1) + HEAD, head);
    assert_eq!(creator.watch.has_news(), head != 0);
    let found = creator.reader.front();
    set(&segment, data_offset(1), 0);
    set(&segment, control_offset(1) + HEAD, 8);
    assert_eq!(creator.reader.front(), found, "neither an error nor a header is ever looked at again");
    found.map(|front| front.map(|front| front.left))
}

#[test]
fn heads_are_checked() {
    assert_eq!(published(8, 0), Ok(Some(0)));
    assert_eq!(published(FULL, 0), Ok(Some(0)));
    assert_eq!(published(FULL + 8, 0), Err(Corrupt::Overrun { head: FULL + 8, tail: 0 }));
    assert_eq!(published(u64::MAX - 7, 0), Err(Corrupt::Overrun { head: u64::MAX - 7, tail: 0 }));
    assert_eq!(published(12, 0), Err(Corrupt::Misaligned { position: 12 }));
}

#[test]
fn lengths_are_checked() {
    let len = |len: usize| (len as u64) << 32;
    assert_eq!(published(FULL, len(MAX_RECORD)), Ok(Some(MAX_RECORD)));
    assert_eq!(published(FULL, len(32_769)), Err(Corrupt::TooLong { len: 32_769 }));
    assert_eq!(published(FULL, u64::MAX), Err(Corrupt::TooLong { len: (1 << 28) - 1 }));
    assert_eq!(published(16, len(8)), Ok(Some(8)));
    assert_eq!(published(16, len(9)), Err(Corrupt::Incomplete { len: 9, published: 16 }));
    assert_eq!(published(8, len(1)), Err(Corrupt::Incomplete { len: 1, published: 8 }));
}

#[test]
fn a_head_that_goes_backwards_is_found() {
    let (segment, mut creator, mut joiner) = ends();
    creator.send(0, 0, b"");
    creator.send(0, 0, b"");
    joiner.receive();
    joiner.receive();
    set(&segment, control_offset(0) + HEAD, 8);
    assert!(joiner.watch.has_news());
    assert_eq!(joiner.reader.front(), Err(Corrupt::Backwards { from: 16, to: 8 }));
    assert!(!joiner.reader.release());
}

#[test]
fn tails_are_checked() {
    let cases = [
        (0, Ok(false)),
        (8, Ok(false)),
        (FULL / 2, Ok(true)),
        (FULL / 2 + 4, Err(Corrupt::Misaligned { position: FULL / 2 + 4 })),
        (FULL, Ok(true)),
        (FULL + 8, Err(Corrupt::TailAfterHead { tail: FULL + 8, head: FULL })),
        (u64::MAX, Err(Corrupt::TailAfterHead { tail: u64::MAX, head: FULL })),
    ];
    for (tail, expected) in cases {
        let (segment, mut creator, _) = ends();
        let bytes = vec![0; MAX_RECORD - HEADER];
        while creator.put(0, 0, &bytes) {}
        assert!(!creator.writer.publish());
        set(&segment, control_offset(0) + TAIL, tail);
        assert_eq!(creator.writer.await_room(), expected, "tail {tail}");
        if let Err(corrupt) = expected {
            set(&segment, control_offset(0) + TAIL, FULL);
            assert_eq!(creator.writer.begin(0).err(), Some(corrupt), "for ever");
            assert_eq!(creator.writer.await_room(), expected);
        }
    }
}

#[test]
fn a_tail_that_goes_backwards_is_found() {
    let (segment, mut creator, _) = ends();
    creator.send(0, 0, b"");
    set(&segment, control_offset(0) + TAIL, 8);
    assert_eq!(creator.writer.await_room(), Ok(true));
    set(&segment, control_offset(0) + TAIL, 0);
    let backwards = Corrupt::Backwards { from: 8, to: 0 };
    assert_eq!(creator.writer.await_room(), Err(backwards));
    assert_eq!(creator.writer.begin(0).err(), Some(backwards), "although there is room");
    assert_eq!(backwards.to_string(), "corrupt ring: position went backwards, from 8 to 0");
}

/// A tail between what is published and what is only finished.
#[test]
fn what_is_not_published_cannot_be_released() {
    let (segment, mut creator, _) = ends();
    let bytes = vec![0; MAX_RECORD - HEADER];
    while creator.put(0, 0, &bytes) {}
    set(&segment, control_offset(0) + TAIL, 8);
    assert_eq!(creator.writer.begin(0).err(), Some(Corrupt::TailAfterHead { tail: 8, head: 0 }));
}

#[test]
fn own_positions_are_not_read_back() {
    let (segment, mut creator, mut joiner) = ends();
    for round in 0..3 {
        creator.send(round, 0, b"bytes");
        assert_eq!(joiner.receive(), Some((round, 0, b"bytes".to_vec())));
        assert!(!joiner.reader.release());
        // Each end overwrites these words with its own positions.
        set(&segment, control_offset(0) + TAIL, u64::MAX);
        set(&segment, control_offset(1) + HEAD, 12);
        joiner.send(round, 0, b"answer");
        assert_eq!(creator.receive(), Some((round, 0, b"answer".to_vec())));
        assert!(!creator.reader.release());
        set(&segment, control_offset(1) + TAIL, u64::MAX);
        set(&segment, control_offset(0) + HEAD, 12);
    }
}

/// Steps of one end, which must neither panic nor leave its ring. `Err` ends it, as it ends a connection.
fn step(segment: &Heap, end: &mut End, number: usize) -> Result<(), Corrupt> {
    let inside = |ring: usize, at: usize, offset: u64, len: usize| {
        let offset = usize::try_from(offset).unwrap();
        assert_eq!(at, segment.base().addr().get() + offset);
        assert!(offset >= data_offset(ring) && offset + len <= data_offset(ring) + RING_LEN);
        Ok::<(), Infallible>(())
    };
    match number % 5 {
        0 | 1 => {
            let Some(mut record) = end.writer.begin(MAX_RECORD)? else {
                return end.writer.await_room().map(|_| ());
            };
            let room = record.room();
            assert!(room <= MAX_RECORD);
            record.put(&vec![1; room / 2]);
            let Ok(()) =
                record.put_with(room - room / 2, |at, offset, len| inside(0, at.addr(), offset, len));
            record.finish(1, 1);
            let _: bool = end.writer.publish();
        }
        2 => {
            while let Some(front) = end.reader.front()? {
                assert!(front.left <= MAX_RECORD && front.kind <= 15);
                let taken = end.reader.take(&mut vec![0; front.left / 2]);
                assert_eq!(taken, front.left / 2);
                let left = front.left - taken;
                let Ok(()) = end.reader.take_with(left, |at, offset, len| inside(1, at.addr(), offset, len));
                end.reader.skip();
            }
        }
        3 => {
            let _: bool = end.reader.release();
        }
        _ => {
            let _: bool = end.watch.has_news() | end.watch.has_room_news() | end.watch.peer_wants_room();
            let _ = end.watch.sleep();
            end.watch.wake();
        }
    }
    Ok(())
}

/// Publishes a record, unless that fails: the scribbling can hit the ring of this end as well.
fn publish(end: &mut End) {
    if let Ok(Some(mut record)) = end.writer.begin(RECORD) {
        record.put(&vec![2; record.room()]);
        record.finish(0, 0);
        let _: bool = end.writer.publish();
    }
}

/// Values at the limits of what is valid, around a position of either end.
fn boundaries(position: u64) -> Vec<u64> {
    let near = [0, 1, 4, 7, 8, 16, FULL - 8, FULL, FULL + 8];
    let around = near.iter().flat_map(|by| [position.wrapping_add(*by), position.wrapping_sub(*by)]);
    let lengths = [MAX_RECORD, MAX_RECORD + 1, (1 << 28) - 1].map(|len| (len as u64) << 32);
    around.chain(lengths).chain([u64::MAX, u64::MAX - 7, 1 << 63, 1 << 32]).collect()
}

/// Each word is overwritten with each value before each step of the creator, while the joiner is honest.
#[test]
fn scribbling_neither_panics_nor_leaves_the_ring() {
    const STEPS: usize = 22;
    let words = [HEAD, TAIL, ROOM_WANTED, SLEEPING].into_iter();
    let words: Vec<usize> = words.flat_map(|word| [word, PAGE + word]).collect();
    for at in 0..STEPS {
        // A word of the control pages, or the header at the creator's front: step 2 of 5 reads all records.
        let front = (at + 2) / 5 * 5;
        let front = front.saturating_sub(2) * record_len(RECORD);
        let header = data_offset(1) + front % RING_LEN;
        for offset in words.iter().copied().chain([header]) {
            boundaries(front as u64).into_iter().for_each(|value| scribble(STEPS, at, offset, value));
        }
    }
}

/// Runs the steps of the creator; before step `at`, a word is overwritten.
fn scribble(steps: usize, at: usize, offset: usize, value: u64) {
    let (segment, mut creator, mut joiner) = ends();
    for number in 0..steps {
        publish(&mut joiner);
        if number == at {
            set(&segment, offset, value);
        }
        if step(&segment, &mut creator, number).is_err() {
            return;
        }
    }
}
