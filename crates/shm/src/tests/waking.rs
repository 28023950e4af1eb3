//! Who is told to ring a bell, without concurrency: loom checks that.

use super::{End, ends, pattern};
use crate::layout::{HEADER, ROOM_WANTED, control_offset};
use crate::{MAX_RECORD, RING_LEN, Sleep};

const ASLEEP: Sleep = Sleep::Asleep { peer_wants_room: false };
const RECORDS: usize = RING_LEN / MAX_RECORD;

/// Fills the ring with `RECORDS` records.
fn fill(end: &mut End) {
    let bytes = pattern(0, MAX_RECORD - HEADER);
    (0..RECORDS).for_each(|_| end.send(0, 0, &bytes));
    assert_eq!(end.writer.await_room(), Ok(false));
}

/// Consumes and releases one record. Returns whether the writer is to be rung.
fn release_one(end: &mut End) -> bool {
    end.receive().unwrap();
    end.reader.release()
}

#[test]
fn a_sleeping_reader_is_rung_once() {
    let (_, mut creator, mut joiner) = ends();
    assert_eq!(joiner.watch.sleep(), ASLEEP);
    assert!(!creator.writer.publish(), "nothing to publish");
    assert!(creator.put(1, 0, b"") && creator.writer.publish());
    creator.send(2, 0, b"");
    joiner.receive();
    assert_eq!(joiner.watch.sleep(), Sleep::News);
    joiner.receive();
    assert!(!joiner.reader.release());
    assert_eq!(joiner.watch.sleep(), ASLEEP);
    joiner.watch.wake();
    creator.send(3, 0, b"");
}

#[test]
fn a_reader_with_news_does_not_sleep() {
    let (_, mut creator, joiner) = ends();
    creator.send(1, 0, b"");
    assert_eq!(joiner.watch.sleep(), Sleep::News);
    creator.send(2, 0, b""); // is not told to ring
}

#[test]
fn the_ends_sleep_apart() {
    let (_, mut creator, joiner) = ends();
    assert_eq!(creator.watch.sleep(), ASLEEP);
    creator.send(1, 0, b"");
    assert!(joiner.watch.has_news() && !creator.watch.has_news());
}

#[test]
fn a_writer_is_rung_when_a_quarter_is_free() {
    let (_, mut creator, mut joiner) = ends();
    fill(&mut creator);
    let released: Vec<bool> = (0..RECORDS).map(|_| release_one(&mut joiner)).collect();
    assert_eq!(released, [false, true, false, false, false, false, false, false]);
    assert!(!joiner.watch.peer_wants_room(), "it was answered");
    assert_eq!(creator.writer.await_room(), Ok(true));
    assert!(!joiner.watch.peer_wants_room(), "it was withdrawn");
}

#[test]
fn a_poll_of_the_empty_ring_finds_a_writer_that_waits() {
    let (_, mut creator, joiner) = ends();
    fill(&mut creator);
    assert!(joiner.watch.clone().peer_wants_room());
    assert!(!joiner.watch.peer_wants_room());
}

#[test]
fn a_reader_that_goes_to_sleep_finds_a_writer_that_waits() {
    let (segment, mut creator, mut joiner) = ends();
    fill(&mut creator);
    while joiner.receive().is_some() {}
    assert!(joiner.reader.release());
    // As if the release had missed the request.
    segment.write(control_offset(0) + ROOM_WANTED, &1_u32.to_ne_bytes());
    assert_eq!(joiner.watch.sleep(), Sleep::Asleep { peer_wants_room: true });
    assert_eq!(joiner.watch.sleep(), ASLEEP);
}

#[test]
fn a_request_of_another_sender_is_not_withdrawn() {
    let (_, mut creator, mut joiner) = ends();
    fill(&mut creator);
    assert!(!release_one(&mut joiner));
    // A second sender finds room, while the first one waits for the bell.
    assert_eq!(creator.writer.await_room(), Ok(true));
    assert!(release_one(&mut joiner));
}

#[test]
fn room_news_are_told_once() {
    let (_, mut creator, mut joiner) = ends();
    assert!(!creator.watch.has_room_news());
    fill(&mut creator);
    assert!(!creator.watch.has_room_news());
    release_one(&mut joiner);
    assert!(creator.watch.has_room_news());
    assert!(!creator.watch.has_room_news());
    release_one(&mut joiner);
    assert!(!creator.watch.has_room_news(), "nobody waits any more");
}

#[test]
#[should_panic(expected = "the reader cannot release what is not published")]
#[cfg(debug_assertions)]
fn waiting_before_publishing_is_a_bug() {
    let (_, mut creator, _) = ends();
    assert!(creator.put(0, 0, b""));
    let _ = creator.writer.await_room();
}
