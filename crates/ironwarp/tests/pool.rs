//! Pools: memory whose owner is known to the compiler.

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{AccessError, Chunk, Pool};
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, pair, pattern};
use std::iter;

/// Registers `len` zero bytes, and splits them into chunks.
fn pool(end: &End, len: usize, chunk_len: usize) -> Pool {
    Pool::new(end.region(&vec![0; len], ALL), chunk_len)
}

/// Chunks that share words with their neighbours, and a rest of the region that belongs to no chunk.
#[test]
fn chunks_do_not_overlap() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0xee; 100], ALL);
    let everything = region.share(ALL).unwrap();
    let pool = Pool::new(region, 13);
    assert_eq!((pool.available(), pool.chunk_len()), (7, 13));

    let mut chunks: Vec<Chunk> = iter::from_fn(|| pool.take()).collect();
    assert_eq!((chunks.len(), pool.available()), (7, 0));
    for (seed, chunk) in (0..).zip(&mut chunks) {
        chunk.write(0, &pattern(seed, 13)).unwrap();
    }
    for (seed, chunk) in (0..).zip(&chunks) {
        assert_eq!(chunk.to_vec().unwrap(), pattern(seed, 13));
    }
    let expected: Vec<u8> = (0..7).flat_map(|seed| pattern(seed, 13)).chain([0xee; 9]).collect();
    assert_eq!(everything.to_vec().unwrap(), expected);

    drop(chunks.remove(3));
    assert_eq!(pool.available(), 1);
    let again = pool.take().unwrap();
    assert_eq!((again.len(), again.to_vec().unwrap()), (13, pattern(3, 13)), "the same memory");
}

/// Every offset and length: nothing outside of the chunk's length is accessed.
#[test]
fn chunks_are_accessed_within_their_length() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0xee; 24], ALL);
    let everything = region.share(ALL).unwrap();
    let pool = Pool::new(region, 8);
    let _first = pool.take().unwrap();
    let mut chunk = pool.take().unwrap();
    for length in 0..=8 {
        chunk.set_len(length).unwrap();
        assert_eq!((chunk.len(), chunk.capacity(), chunk.is_empty()), (length, 8, length == 0));
        assert_eq!(chunk.to_vec().unwrap(), vec![0xee; length]);
        assert_eq!((chunk.as_sge().len as usize, chunk.as_sge().addr), (length, 8));
        for (at, len) in (0..=9).flat_map(|at| (0..=9).map(move |len| (at, len))) {
            let inside = at + len <= length;
            let error = AccessError::OutOfBounds { at, len, size: length };
            let expected = if inside { Ok(()) } else { Err(error) };
            let bytes = pattern(1, len);
            assert_eq!(chunk.write(at, &bytes), expected, "{len} bytes at {at} of {length}");
            let mut around = [0xee; 24];
            if inside {
                around[8 + at..][..len].copy_from_slice(&bytes);
            }
            assert_eq!(everything.to_vec().unwrap(), around, "{len} bytes at {at} of {length}");
            let mut back = vec![0; len];
            assert_eq!(chunk.read(at, &mut back), expected);
            assert!(!inside || back == bytes);
            let slice = chunk.slice(at..at + len);
            assert_eq!(slice.map(|it| (it.addr, it.len as usize)), expected.map(|()| (8 + at as u64, len)));
            everything.fill(0xee).unwrap();
        }
        assert_eq!(chunk.remote_addr(length).unwrap().offset, 8 + length as u64);
        assert!(chunk.remote_addr(length + 1).is_err());
    }
    assert!(chunk.read(usize::MAX, &mut [0; 2]).is_err());
    assert_eq!(chunk.set_len(9), Err(AccessError::OutOfBounds { at: 0, len: 9, size: 8 }));
    assert_eq!(chunk.len(), 8, "a refused length changes nothing");
    chunk.set_len(3).unwrap();
    drop(chunk);
    assert_eq!(pool.take().unwrap().len(), 8, "a chunk is taken with its full length");
}

#[test]
fn messages_go_from_chunk_to_chunk() {
    for case in CASES {
        let (client, server) = pair(case);
        let (from, to) = (pool(&client, 300, 100), pool(&server, 200_000, 100_000));
        let mut message = from.take().unwrap();
        message.set_len(77).unwrap();
        message.write(0, &pattern(1, 77)).unwrap();
        let mut received = to.take().unwrap();
        server.qp.post_receive(1, &[received.as_sge()]).unwrap();
        client.qp.post_send(WorkRequest::send(2, &[message.as_sge()])).unwrap();
        let len = server.done(Opcode::Receive, 1).byte_len as usize;
        received.set_len(len).unwrap();
        assert_eq!(received.to_vec().unwrap(), pattern(1, 77));
        client.done(Opcode::Send, 2);
    }
}

/// One message out of three regions, two of them of pools, into a chunk and a region: the bytes around the slices are
/// neither sent nor changed.
#[test]
fn a_send_is_gathered_from_three_regions_and_scattered_into_two() {
    for case in CASES {
        let (client, server) = pair(case);
        let (headers, trailers) = (pool(&client, 64, 32), pool(&client, 50_000, 50_000));
        let (mut header, mut trailer) = (headers.take().unwrap(), trailers.take().unwrap());
        let body = client.region(&pattern(2, 100_000), ALL);
        header.write(0, &pattern(1, 32)).unwrap();
        trailer.write(0, &pattern(3, 50_000)).unwrap();

        let sinks = pool(&server, 300, 100);
        let _other = sinks.take().unwrap();
        let mut first = sinks.take().unwrap();
        first.write(0, &[0xee; 100]).unwrap();
        let second = server.region(&vec![0xee; 200_000], ALL);
        let sink = [first.slice(5..75).unwrap(), second.slice(1001..1001 + 150_000).unwrap()];
        server.qp.post_receive(1, &sink).unwrap();

        let source =
            [header.slice(3..=30).unwrap(), body.slice(7..7 + 90_001).unwrap(), trailer.slice(11..).unwrap()];
        client.qp.post_send(WorkRequest::send(2, &source)).unwrap();
        let sent =
            [&pattern(1, 32)[3..31], &pattern(2, 100_000)[7..90_008], &pattern(3, 50_000)[11..]].concat();
        assert_eq!(server.done(Opcode::Receive, 1).byte_len as usize, sent.len());
        client.done(Opcode::Send, 2);
        assert_eq!(first.to_vec().unwrap(), [&[0xee; 5][..], &sent[..70], &[0xee; 25]].concat());
        let rest = vec![0xee; 200_000 - 1001 - (sent.len() - 70)];
        assert!(second.to_vec().unwrap() == [&[0xee; 1001][..], &sent[70..], &rest].concat());
    }
}

/// The region of a pool lives as long as the pool, a clone, or a chunk: until then peers can access it, and not after.
#[test]
fn a_chunk_keeps_its_region_registered() {
    let (client, server) = pair(CASES[1]);
    let pool = pool(&server, 64, 32);
    let (first, last) = (pool.take().unwrap(), pool.clone().take().unwrap());
    let addr = last.remote_addr(3).unwrap();
    drop(first);
    drop(pool);
    client.qp.post_send(WorkRequest::write_inline(1, b"hello", addr)).unwrap();
    client.done(Opcode::Write, 1);
    assert_eq!(last.to_vec().unwrap(), [&[0; 3][..], b"hello", &[0; 24]].concat());
    drop(last);
    client.qp.post_send(WorkRequest::write_inline(2, b"hello", addr)).unwrap();
    client.failed(Opcode::Write, 2, Status::RemoteAccess);
}

/// More threads than chunks: whoever owns a chunk finds only its own bytes there.
#[test]
fn a_chunk_has_one_owner() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let pool = pool(&end, 30, 10);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                let (bytes, mut taken) = (pattern(thread, 10), 0);
                while taken < 5000 {
                    let Some(mut chunk) = pool.take() else {
                        std::thread::yield_now();
                        continue;
                    };
                    chunk.write(0, &bytes).unwrap();
                    assert_eq!(chunk.to_vec().unwrap(), bytes);
                    taken += 1;
                }
            });
        }
    });
    assert_eq!(pool.available(), 3);
}

#[test]
#[should_panic(expected = "chunks of 0 bytes in a region of 8 bytes")]
fn chunks_cannot_be_empty() {
    pool(&End::new(Config::default(), Completes::WhenSent), 8, 0);
}

#[test]
#[should_panic(expected = "chunks of 9 bytes in a region of 8 bytes")]
fn chunks_cannot_be_longer_than_their_region() {
    pool(&End::new(Config::default(), Completes::WhenSent), 8, 9);
}
