//! Typed views of regions and chunks.

use ironwarp::Config;
use ironwarp::completion::Opcode;
use ironwarp::memory::{AccessError, Buffer, Pool};
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, pair};
use std::panic::{AssertUnwindSafe, catch_unwind};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Seven bytes: no multiple of a word, so that views begin and end inside of words.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Record {
    id: U32,
    kind: U16,
    flag: u8,
}

impl Record {
    fn new(n: u8) -> Self {
        Self { id: U32::new(0x0102_0300 + u32::from(n)), kind: U16::new(0x0a0b), flag: 0xf0 ^ n }
    }

    fn bytes(n: u8) -> [u8; 7] {
        [1, 2, 3, n, 0x0a, 0x0b, 0xf0 ^ n]
    }
}

/// At every offset, in one buffer and across several: the surrounding bytes must not change.
#[test]
fn views_are_exact_to_the_byte() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let one = end.region(&[0; 40], ALL);
    let several = [1, 6, 9, 24].map(|len| Buffer::new(len).unwrap());
    let several = end.domain.register_list(several, ALL).unwrap();
    for region in [&one, &several] {
        for at in 0..=33 {
            region.fill(0xaa).unwrap();
            let view = region.view::<Record>(at).unwrap();
            view.store(&Record::new(9));
            let mut expected = [0xaa; 40];
            expected[at..at + 7].copy_from_slice(&Record::bytes(9));
            assert_eq!(region.to_vec().unwrap(), expected, "at {at}");
            assert_eq!(view.load(), Record::new(9), "at {at}");
        }
        let error = AccessError::OutOfBounds { at: 34, len: 7, size: 40 };
        assert_eq!(region.view::<Record>(34).unwrap_err(), error);
        assert!(region.view::<Record>(usize::MAX).is_err());
    }
}

#[test]
fn arrays_are_exact_to_the_byte() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0xaa; 40], ALL);
    let array = region.array::<Record>(3, 5).unwrap();
    assert_eq!((array.len(), array.is_empty()), (5, false));
    let mut expected = [0xaa; 40];
    for n in [4, 0, 2] {
        let index = usize::from(n);
        array.store(index, &Record::new(n));
        expected[3 + 7 * index..][..7].copy_from_slice(&Record::bytes(n));
        assert_eq!(region.to_vec().unwrap(), expected, "element {n}");
        assert_eq!(array.load(index), Record::new(n));
    }
    array.write(1, &[Record::new(21), Record::new(22), Record::new(23)]);
    expected[10..31].copy_from_slice(&[21, 22, 23].map(Record::bytes).concat());
    assert_eq!(region.to_vec().unwrap(), expected);
    let mut some = [Record::new(0); 2];
    array.read(3, &mut some);
    assert_eq!(some, [Record::new(23), Record::new(4)]);
    let all = [0, 21, 22, 23, 4].map(Record::new);
    assert!(array.iter().eq(all) && array.iter().rev().eq(all.into_iter().rev()));
    assert_eq!(array.iter().len(), 5);

    assert_eq!(
        region.array::<Record>(6, 5).unwrap_err(),
        AccessError::OutOfBounds { at: 6, len: 35, size: 40 }
    );
    assert!(region.array::<Record>(5, 5).is_ok());
    assert!(region.array::<Record>(0, usize::MAX / 2).is_err(), "the length in bytes overflows");
    assert!(region.array::<Record>(40, 0).unwrap().is_empty());
}

/// An index out of bounds is a mistake in the program, as for slices, even if there are bytes at that place.
#[test]
fn indices_out_of_bounds_panic() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0xaa; 40], ALL);
    let array = region.array::<u16>(0, 3).unwrap();
    let panics = |access: &dyn Fn()| {
        let message = catch_unwind(AssertUnwindSafe(access)).expect_err("out of bounds");
        let message = message.downcast_ref::<String>().expect("a message");
        assert!(message.starts_with("index out of bounds"), "{message}");
    };
    panics(&|| assert_eq!(array.load(3), 0));
    panics(&|| array.store(3, &0));
    panics(&|| array.read(2, &mut [0; 2]));
    panics(&|| array.write(2, &[0; 2]));
    panics(&|| array.write(usize::MAX, &[0; 2]));
    assert_eq!(region.to_vec().unwrap(), [0xaa; 40]);
}

/// A view of a chunk ends where the chunk does, although the region goes on.
#[test]
fn views_of_chunks_stay_inside() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0xaa; 60], ALL);
    let everything = region.share(ALL).unwrap();
    let pool = Pool::new(region, 20);
    let _first = pool.take().unwrap();
    let mut chunk = pool.take().unwrap();
    chunk.view::<Record>(13).unwrap().store(&Record::new(1));
    chunk.array::<Record>(5, 1).unwrap().store(0, &Record::new(2));
    let mut expected = [0xaa; 60];
    expected[33..40].copy_from_slice(&Record::bytes(1));
    expected[25..32].copy_from_slice(&Record::bytes(2));
    assert_eq!(everything.to_vec().unwrap(), expected);
    assert_eq!(chunk.load::<Record>(13).unwrap(), Record::new(1));
    assert_eq!(chunk.view::<Record>(5).unwrap().load(), Record::new(2));

    let error = AccessError::OutOfBounds { at: 14, len: 7, size: 20 };
    assert_eq!(chunk.view::<Record>(14).unwrap_err(), error);
    assert_eq!(chunk.load::<Record>(14).unwrap_err(), error);
    assert_eq!(
        chunk.array::<Record>(0, 3).unwrap_err(),
        AccessError::OutOfBounds { at: 0, len: 21, size: 20 }
    );
    chunk.set_len(19).unwrap();
    assert!(chunk.view::<Record>(13).is_err(), "the length counts, not the capacity");
}

/// The peer finds exactly the bytes of the stored values, and a view finds what the peer wrote.
#[test]
fn peers_and_views_see_the_same_bytes() {
    for case in CASES {
        let (client, server) = pair(case);
        let (ours, theirs) = (client.region(&[0; 4096], ALL), server.region(&[0xaa; 4096], ALL));
        let records: Vec<Record> = (0..200).map(Record::new).collect();
        ours.array::<Record>(11, 200).unwrap().write(0, &records);
        let (from, to) = (ours.slice(11..1411).unwrap(), theirs.remote_addr(501).unwrap());
        client.qp.post_send(WorkRequest::write(1, &[from], to)).unwrap();
        client.done(Opcode::Write, 1);
        server.qp.post_receive(2, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(3, &[])).unwrap();
        server.done(Opcode::Receive, 2);
        client.done(Opcode::Send, 3);
        let bytes: Vec<u8> = (0..200).flat_map(Record::bytes).collect();
        let expected = [&[0xaa; 501][..], &bytes, &[0xaa; 2195]].concat();
        assert!(theirs.to_vec().unwrap() == expected);
        assert!(theirs.array::<Record>(501, 200).unwrap().iter().eq(records));
    }
}
