//! Records: what is put arrives, and room is granted as promised.

use super::{End, ends, pattern};
use crate::layout::{HEADER, data_offset, record_len};
use crate::{Front, MAX_RECORD, MIN_GRANT, RING_LEN, SEGMENT_LEN, Segment, Sleep};
use std::convert::Infallible;

#[test]
fn records_arrive_in_both_directions() {
    let (_, mut creator, mut joiner) = ends();
    creator.send(1, 2, b"to the joiner");
    joiner.send(u32::MAX, 15, b"to the creator");
    assert_eq!(joiner.receive(), Some((1, 2, b"to the joiner".to_vec())));
    assert_eq!(creator.receive(), Some((u32::MAX, 15, b"to the creator".to_vec())));
    assert_eq!((creator.receive(), joiner.receive()), (None, None));
}

/// Processes with different builds share a segment, so the layout must not change unnoticed.
#[test]
fn words_and_records_are_where_the_layout_says() {
    let (segment, mut creator, mut joiner) = ends();
    creator.send(0x0102_0304, 5, b"payload, padded");
    joiner.receive();
    assert!(!joiner.reader.release());
    assert_eq!(joiner.watch.sleep(), Sleep::Asleep { peer_wants_room: false });
    assert!(creator.writer.await_room().unwrap());
    let word = |offset: usize| {
        let mut bytes = [0; 8];
        segment.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    assert_eq!([0, 128, 256].map(word), [24, 24, 1], "head, tail and sleeping of the creator's ring");
    assert_eq!([4096, 4224, 4352].map(word), [0; 3], "the other ring is unused");
    assert_eq!(word(8192), 0x5000_000f_0102_0304);
    let mut payload = [0; 15];
    segment.read(8200, &mut payload);
    assert_eq!(&payload, b"payload, padded");
    segment.write(8, &1_u32.to_ne_bytes());
    assert!(joiner.watch.peer_wants_room());
    assert_eq!((data_offset(1), SEGMENT_LEN), (8192 + 262_144, 8192 + 2 * 262_144));
}

#[test]
fn records_are_seen_when_they_are_published() {
    let (_, mut creator, mut joiner) = ends();
    assert!(creator.put(1, 0, b"one") && creator.put(2, 0, b"two"));
    assert_eq!(joiner.receive(), None);
    assert!(!joiner.watch.has_news());
    assert!(!creator.writer.publish());
    assert!(joiner.watch.has_news());
    assert_eq!(joiner.receive().unwrap().0, 1);
    assert_eq!(joiner.receive().unwrap().0, 2);
    assert!(!joiner.watch.has_news(), "also before the release");
}

#[test]
fn a_dropped_record_is_discarded() {
    let (_, mut creator, mut joiner) = ends();
    let mut record = creator.writer.begin(100).unwrap().unwrap();
    record.put(b"dropped");
    drop(record);
    creator.send(1, 0, b"kept");
    assert_eq!(joiner.receive(), Some((1, 0, b"kept".to_vec())));
    assert_eq!(joiner.receive(), None);
}

#[test]
fn a_record_is_taken_in_pieces() {
    let (_, mut creator, mut joiner) = ends();
    let mut record = creator.writer.begin(10).unwrap().unwrap();
    record.put(b"0123");
    record.put(b"");
    record.put(b"456789");
    assert_eq!((record.len(), record.room()), (10, 0));
    record.finish(7, 3);
    creator.send(8, 0, b"next");

    let mut into = [0; 6];
    assert_eq!(joiner.reader.take(&mut into), 0, "the front was not looked at");
    assert_eq!(joiner.reader.front(), Ok(Some(Front { channel: 7, kind: 3, left: 10 })));
    assert_eq!(joiner.reader.take(&mut into), 6);
    assert_eq!(&into, b"012345");
    assert_eq!(joiner.reader.front(), Ok(Some(Front { channel: 7, kind: 3, left: 4 })));
    assert!(joiner.watch.has_news());
    assert_eq!(joiner.reader.take(&mut into), 4);
    assert_eq!(&into, b"678945");
    joiner.reader.skip(); // the record is consumed, and the next one not looked at
    assert_eq!(joiner.receive(), Some((8, 0, b"next".to_vec())));
}

#[test]
fn the_rest_of_a_record_is_skipped() {
    let (_, mut creator, mut joiner) = ends();
    creator.send(1, 0, b"0123456789");
    creator.send(2, 0, b"");
    creator.send(3, 0, b"");
    creator.send(4, 0, b"last");
    assert_eq!(joiner.reader.front().unwrap().unwrap().left, 10);
    assert_eq!(joiner.reader.take(&mut [0; 3]), 3);
    joiner.reader.skip();
    assert_eq!(joiner.reader.front(), Ok(Some(Front { channel: 2, kind: 0, left: 0 })));
    assert_eq!(
        joiner.reader.front().unwrap().unwrap().channel,
        2,
        "an empty record stays until it is skipped"
    );
    joiner.reader.skip();
    assert_eq!(joiner.receive(), Some((3, 0, Vec::new())), "or until nothing is taken of it");
    assert_eq!(joiner.receive().unwrap().0, 4);
}

#[test]
fn room_is_granted_down_to_the_minimum() {
    let (_, mut creator, mut joiner) = ends();
    assert_eq!(creator.writer.begin(usize::MAX).unwrap().unwrap().room(), MAX_RECORD);
    let bytes = pattern(0, MAX_RECORD - HEADER);
    let records = RING_LEN / MAX_RECORD;
    (1..records).for_each(|_| creator.send(0, 0, &bytes));
    let rest = record_len(MIN_GRANT);
    creator.send(0, 0, &bytes[..bytes.len() - rest]);
    // A writer that wants more is granted the rest, but not less than that.
    assert_eq!(creator.writer.begin(MAX_RECORD).unwrap().unwrap().room(), MIN_GRANT);
    creator.send(0, 0, b"");
    assert!(creator.writer.begin(MIN_GRANT).unwrap().is_none());
    assert!(creator.writer.begin(MAX_RECORD).unwrap().is_none());
    assert_eq!(creator.writer.begin(MIN_GRANT - HEADER).unwrap().unwrap().room(), MIN_GRANT - HEADER);
    creator.send(0, 0, &bytes[..MIN_GRANT - HEADER]);
    assert!(creator.writer.begin(0).unwrap().is_none(), "the ring is full");
    // What is consumed is not free before it is released.
    joiner.receive();
    assert!(creator.writer.begin(0).unwrap().is_none());
    assert!(!joiner.reader.release());
    assert_eq!(creator.writer.begin(MAX_RECORD).unwrap().unwrap().room(), MAX_RECORD - HEADER);
}

#[test]
#[should_panic(expected = "4 bytes exceed the room of 3 bytes in a record")]
fn more_than_the_room_of_a_record_is_a_bug() {
    let (_, mut creator, _) = ends();
    creator.writer.begin(3).unwrap().unwrap().put(b"four");
}

#[test]
#[should_panic(expected = "kind 16 exceeds 15")]
fn a_kind_of_more_than_four_bits_is_a_bug() {
    let (_, mut creator, _) = ends();
    creator.writer.begin(0).unwrap().unwrap().finish(0, 16);
}

#[test]
#[should_panic(expected = "2 bytes exceed the 1 bytes left of a record")]
fn more_than_is_left_of_a_record_is_a_bug() {
    let (_, mut creator, mut joiner) = ends();
    creator.send(0, 0, b"1");
    joiner.reader.front().unwrap();
    let _ = joiner.reader.take_with(2, |_, _, _| Ok::<(), Infallible>(()));
}

/// Passes empty records from position `from` of the ring to position `to`.
fn pass(creator: &mut End, joiner: &mut End, from: usize, to: usize) {
    for _ in (from..to).step_by(HEADER) {
        creator.send(0, 0, b"");
        joiner.receive();
        assert!(!joiner.reader.release());
    }
}

#[test]
fn others_copy_from_and_to_the_segment() {
    let (segment, mut creator, mut joiner) = ends();
    let bytes = pattern(5, 64);
    for wrapped in [false, true] {
        if wrapped {
            let done = record_len(bytes.len()) + HEADER;
            pass(&mut creator, &mut joiner, done, RING_LEN - HEADER - bytes.len() / 2);
        }
        let mut record = creator.writer.begin(bytes.len()).unwrap().unwrap();
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        let written = record.put_with(bytes.len(), |_, offset, len| {
            let piece = rest.split_off(..len).unwrap();
            segment.write(usize::try_from(offset).unwrap(), piece);
            pieces.push((offset, len));
            Ok::<(), Infallible>(())
        });
        assert_eq!((written, record.len()), (Ok(()), bytes.len()));
        record.finish(0, 0);
        assert!(!creator.writer.publish());
        assert_eq!(pieces.iter().map(|(_, len)| len).sum::<usize>(), bytes.len());
        assert_eq!(pieces.len(), 1 + usize::from(wrapped), "{pieces:?}");

        let (mut seen, mut arrived) = (Vec::new(), Vec::new());
        joiner.reader.front().unwrap();
        let taken = joiner.reader.take_with(bytes.len(), |from, offset, len| {
            let at = usize::try_from(offset).unwrap();
            assert_eq!(from.addr(), segment.base().addr().get() + at, "both are the same place");
            assert!(at >= data_offset(0) && at + len <= data_offset(1));
            let mut piece = vec![0; len];
            segment.read(at, &mut piece);
            arrived.extend(piece);
            seen.push((offset, len));
            Ok::<(), Infallible>(())
        });
        assert_eq!(taken, Ok(()));
        assert_eq!((arrived, seen), (bytes.clone(), pieces));
        assert_eq!(joiner.receive(), None);
        creator.send(9, 0, b"");
        assert_eq!(joiner.receive().unwrap().0, 9);
    }
}

#[test]
fn a_copy_that_fails_changes_nothing() {
    let (_, mut creator, mut joiner) = ends();
    let mut record = creator.writer.begin(4).unwrap().unwrap();
    assert_eq!(record.put_with(3, |_, _, _| Err("fault")), Err("fault"));
    assert!(record.is_empty());
    record.put(b"good");
    record.finish(0, 0);
    assert!(!creator.writer.publish());
    joiner.reader.front().unwrap();
    assert_eq!(joiner.reader.take_with(4, |_, _, _| Err("fault")), Err("fault"));
    assert_eq!(joiner.receive().unwrap().2, b"good");
}
