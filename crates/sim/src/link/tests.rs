use super::*;
use LinkError::{Ended, Lost, Unmapped, WouldBlock};

const BOTH: Ready = Ready { readable: true, writable: true };
const READABLE: Ready = Ready { readable: true, writable: false };
const WRITABLE: Ready = Ready { readable: false, writable: true };
const NEITHER: Ready = Ready { readable: false, writable: false };

const LATENCY: Duration = Duration::from_micros(10);

struct Scene {
    clock: Clock,
    arenas: [Arc<Arena>; 2],
    ends: [Arc<SimLink>; 2],
}

fn scene(path: Path) -> Scene {
    seeded(path, 1)
}

fn seeded(path: Path, seed: u64) -> Scene {
    let (clock, arenas) = (Clock::new(), [Arena::new(0), Arena::new(1)]);
    let ends = SimLink::pair(path, seed, &clock, [&arenas[0], &arenas[1]]);
    Scene { clock, arenas, ends }
}

fn send(link: &SimLink, bytes: &[u8]) -> Result<usize, LinkError> {
    link.send(&[Piece::Own(bytes)])
}

fn recv(link: &SimLink) -> Result<Vec<u8>, LinkError> {
    let mut own = [0; 64];
    link.recv(&[], &mut own).map(|len| own[..len].to_vec())
}

#[test]
fn bytes_arrive_after_the_latency_and_in_order() {
    let Scene { clock, ends: [left, right], .. } = scene(Path::default());
    assert_eq!(send(&left, b"abc"), Ok(3));
    clock.advance(LATENCY / 2);
    assert_eq!(left.send(&[Piece::Own(b"d"), Piece::Own(b""), Piece::Own(b"ef")]), Ok(3));
    assert_eq!(send(&right, b"back"), Ok(4));
    assert_eq!(recv(&right), Err(WouldBlock));
    clock.advance(LATENCY / 2);
    assert_eq!((recv(&right), recv(&right)), (Ok(b"abc".to_vec()), Err(WouldBlock)));
    assert_eq!(recv(&left), Err(WouldBlock));
    clock.advance(LATENCY / 2);
    assert_eq!((recv(&right), recv(&left)), (Ok(b"def".to_vec()), Ok(b"back".to_vec())));
    assert_eq!(left.segment_size(), 1448);
}

#[test]
fn memory_is_read_on_one_side_and_written_on_the_other() {
    let Scene { clock, arenas, ends: [left, right] } = scene(Path::default());
    let (from, one, other) = (arenas[0].alloc(100), arenas[1].alloc(30), arenas[1].alloc(40));
    arenas[0].fill_pattern(from, 3);
    assert_eq!(left.send(&[Piece::Own(b"head"), Piece::Host(from), Piece::Own(b"tail")]), Ok(108));
    clock.advance(LATENCY);
    let mut head = [0; 4];
    assert_eq!(right.recv(&[], &mut head), Ok(4));
    assert_eq!(&head, b"head");
    let mut rest = [0; 64];
    assert_eq!(right.recv(&[one, other], &mut rest), Ok(104));
    let sent = arenas[0].read(from);
    let came = [arenas[1].read(one), arenas[1].read(other), rest[..30].to_vec()].concat();
    assert_eq!(came, sent);
    assert_eq!(&rest[30..35], b"tail\0");
}

#[test]
fn a_send_stops_at_unmapped_memory() {
    let Scene { clock, arenas, ends: [left, right] } = scene(Path::default());
    let from = arenas[0].alloc(10);
    arenas[0].fill(from, b'x');
    arenas[0].unmap(Span::new(from.addr + 4, 1));
    let behind = |offset: usize| Piece::Host(Span::new(from.addr + offset as u64, 10 - offset));
    assert_eq!(left.send(&[Piece::Own(b"a long header"), behind(0), Piece::Own(b"t")]), Ok(17));
    assert_eq!(left.send(&[behind(4), Piece::Own(b"t")]), Err(Unmapped));
    assert_eq!(left.send(&[Piece::Own(b""), behind(5)]), Ok(5));
    clock.advance(LATENCY);
    assert_eq!(recv(&right), Ok(b"a long headerxxxxxxxxx".to_vec()));
}

#[test]
fn a_receive_stops_at_memory_that_cannot_be_written() {
    let Scene { clock, arenas, ends: [left, right] } = scene(Path::default());
    let to = arenas[1].alloc(10);
    arenas[1].set_writable(Span::new(to.addr + 4, 1), false);
    let behind = Span::new(to.addr + 4, 6);
    assert_eq!(right.recv(&[behind], &mut []), Err(WouldBlock), "nothing to write yet");
    assert_eq!(send(&left, b"0123456789"), Ok(10));
    clock.advance(LATENCY);
    let mut own = [0; 4];
    assert_eq!(right.recv(&[to], &mut own), Ok(4));
    assert_eq!((right.recv(&[behind], &mut own), own), (Err(Unmapped), [0; 4]));
    assert_eq!(recv(&right), Ok(b"456789".to_vec()), "no bytes were lost");
    assert_eq!(arenas[1].read(to), b"0123\0\0\0\0\0\0");
}

#[test]
fn a_full_pipe_takes_no_more_until_it_is_read() {
    let Scene { clock, ends: [left, right], .. } = scene(Path { capacity: 5, ..Path::default() });
    assert_eq!(left.send(&[Piece::Own(b"123"), Piece::Own(b"456")]), Ok(5));
    assert_eq!(send(&left, b"6"), Err(WouldBlock));
    assert_eq!(
        (send(&right, b"123"), send(&right, b"456")),
        (Ok(3), Ok(2)),
        "the other direction has room of its own"
    );
    clock.advance(LATENCY);
    assert_eq!(right.recv(&[], &mut [0]), Ok(1));
    assert_eq!((send(&left, b"67"), send(&left, b"7")), (Ok(1), Err(WouldBlock)));
}

#[test]
fn receives_are_split_at_random_but_lose_nothing() {
    let path = Path { split: Chance::in_a_million(500_000), ..Path::default() };
    let split = |seed| {
        let Scene { clock, ends: [left, right], .. } = seeded(path, seed);
        let bytes: Vec<u8> = (0..200).collect();
        assert_eq!(send(&left, &bytes), Ok(200));
        clock.advance(LATENCY);
        let parts: Vec<Vec<u8>> = std::iter::from_fn(|| recv(&right).ok()).collect();
        assert_eq!(parts.concat(), bytes);
        parts
    };
    assert!((1..50).all(|seed| split(seed) == split(seed)));
    assert!((1..50).any(|seed| split(seed).len() > 6) && split(1) != split(2));
}

#[test]
fn the_end_is_seen_after_all_bytes() {
    let Scene { clock, ends: [left, right], .. } = scene(Path::default());
    send(&left, b"last words").unwrap();
    left.finish();
    left.finish();
    assert_eq!(send(&left, b"more"), Err(Lost(EPIPE)));
    assert_eq!(recv(&right), Err(WouldBlock));
    clock.advance(LATENCY);
    assert_eq!(right.recv(&[], &mut [0; 4]), Ok(4));
    assert_eq!((recv(&right), recv(&right)), (Ok(b" words".to_vec()), Err(Ended)));
    assert_eq!(recv(&right), Err(Ended));
    assert_eq!(send(&right, b"answer"), Ok(6), "the other direction is open");
    clock.advance(LATENCY);
    assert_eq!(recv(&left), Ok(b"answer".to_vec()));
}

#[test]
fn an_abort_ends_both_directions_of_both_ends() {
    let Scene { clock, ends: [left, right], .. } = scene(Path::default());
    send(&right, b"never read").unwrap();
    left.abort();
    left.abort();
    left.finish();
    assert_eq!((send(&left, b"x"), recv(&left)), (Err(Lost(ECONNABORTED)), Err(Lost(ECONNABORTED))));
    assert_eq!((send(&right, b"x"), recv(&right)), (Ok(1), Err(WouldBlock)), "not notified yet");
    clock.advance(LATENCY);
    assert_eq!((recv(&right), recv(&right)), (Err(Lost(ECONNRESET)), Err(Lost(ECONNRESET))));
    assert_eq!((send(&right, b"x"), send(&right, b"x")), (Err(Lost(ECONNRESET)), Err(Lost(EPIPE))));
    assert_eq!(recv(&left), Err(Lost(ECONNABORTED)));
}

#[test]
fn an_abort_may_discard_bytes_that_were_not_read() {
    let mut kept = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let Scene { clock, ends: [left, right], .. } = seeded(Path::default(), seed);
        send(&left, b"0123").unwrap();
        clock.advance(LATENCY);
        send(&left, b"4567").unwrap();
        left.abort();
        let mut came = Vec::new();
        for _ in 0..2 {
            while let Ok(more) = recv(&right) {
                came.extend(more);
            }
            clock.advance(LATENCY);
        }
        assert_eq!(recv(&right), Err(Lost(ECONNRESET)));
        assert!(b"01234567".starts_with(&came));
        kept.insert(came.len());
    }
    assert!(kept.into_iter().eq(0..=8));
}

#[test]
fn a_reset_discards_the_end_too() {
    let Scene { clock, ends: [left, right], .. } = scene(Path::default());
    left.finish();
    left.abort();
    clock.advance(LATENCY);
    assert_eq!(recv(&right), Err(Lost(ECONNRESET)));
}

#[test]
fn readiness_is_reported_once_per_would_block() {
    let Scene { clock, ends: [left, right], .. } = scene(Path::default());
    assert_eq!((right.take_ready(), right.take_ready()), (WRITABLE, NEITHER), "a new socket is writable");
    assert_eq!(right.next_ready(), None);
    send(&left, b"1").unwrap();
    assert_eq!((right.take_ready(), right.next_ready()), (NEITHER, Some(LATENCY)), "still in transit");
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), right.take_ready()), (READABLE, NEITHER));
    send(&left, b"2").unwrap();
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), right.next_ready()), (NEITHER, None), "already reported, but not read");
    assert_eq!(
        (recv(&right), right.take_ready()),
        (Ok(b"12".to_vec()), NEITHER),
        "no reason to stop reading"
    );
    assert_eq!((recv(&right), right.take_ready()), (Err(WouldBlock), NEITHER));
    send(&left, b"3").unwrap();
    clock.advance(LATENCY);
    assert_eq!((right.next_ready(), right.take_ready()), (Some(2 * LATENCY + LATENCY), READABLE));
}

#[test]
fn a_sender_that_found_no_room_is_notified() {
    let Scene { clock, ends: [left, right], .. } = scene(Path { capacity: 4, ..Path::default() });
    assert_eq!(left.take_ready(), WRITABLE);
    assert_eq!(send(&left, b"12345"), Ok(4));
    clock.advance(LATENCY);
    recv(&right).unwrap();
    assert_eq!(left.take_ready(), NEITHER, "a short send does not wait");
    assert_eq!((send(&left, b"5678"), send(&left, b"9")), (Ok(4), Err(WouldBlock)));
    assert_eq!((left.take_ready(), left.next_ready()), (NEITHER, None));
    clock.advance(LATENCY);
    right.recv(&[], &mut [0]).unwrap();
    assert_eq!((left.take_ready(), left.take_ready()), (WRITABLE, NEITHER));
}

#[test]
fn the_end_is_reported_to_a_waiting_receiver() {
    let Scene { clock, ends: [left, right], .. } = scene(Path { capacity: 1, ..Path::default() });
    right.take_ready();
    left.finish();
    assert_eq!((right.take_ready(), right.next_ready()), (NEITHER, Some(LATENCY)));
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), recv(&right)), (READABLE, Err(Ended)));
    assert_eq!((send(&right, b"12"), send(&right, b"2")), (Ok(1), Err(WouldBlock)));
    assert_eq!(right.next_ready(), None);
    right.finish();
    assert_eq!((right.take_ready(), send(&right, b"2")), (WRITABLE, Err(Lost(EPIPE))), "its own end, too");
}

#[test]
fn a_reset_is_reported_once_to_each_caller() {
    let Scene { clock, ends: [left, right], .. } = scene(Path { capacity: 1, ..Path::default() });
    assert_eq!(right.take_ready(), WRITABLE);
    assert_eq!((left.take_ready(), send(&left, b"12")), (WRITABLE, Ok(1)));
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), right.take_ready(), right.next_ready()), (READABLE, NEITHER, None));
    left.abort();
    assert_eq!((right.lost(), right.take_ready(), right.next_ready()), (None, NEITHER, Some(2 * LATENCY)));
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), right.take_ready(), right.next_ready()), (BOTH, NEITHER, None));
    assert_eq!((right.lost(), right.lost()), (Some(ECONNRESET), None));
    assert_eq!((left.lost(), left.take_ready()), (Some(ECONNABORTED), READABLE), "its own abort, too");
}

#[test]
fn a_sender_that_waits_for_room_is_notified_of_a_reset() {
    let Scene { clock, ends: [left, right], .. } = scene(Path { capacity: 1, ..Path::default() });
    right.take_ready();
    assert_eq!((send(&right, b"12"), send(&right, b"2")), (Ok(1), Err(WouldBlock)));
    left.abort();
    assert_eq!((right.take_ready(), right.next_ready()), (NEITHER, Some(LATENCY)));
    clock.advance(LATENCY);
    assert_eq!((right.take_ready(), send(&right, b"2")), (BOTH, Err(Lost(ECONNRESET))));
}
