//! `TcpLink` on loopback: vectors, unmapped memory, full buffers, and how a connection ends.

use super::super::testing::{KERNEL, PAGE, Pages, Random, pair, wait};
use super::*;
use rustix::event::PollFlags;

/// Receives `len` bytes, with as many calls as it takes.
fn receive(link: &TcpLink, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match link.recv(&[], &mut bytes[done..]) {
            Ok(received) => done += received,
            Err(LinkError::WouldBlock) => wait(link, PollFlags::IN),
            Err(error) => panic!("{error:?} after {done} of {len}"),
        }
    }
    bytes
}

/// Waits until `len` bytes have arrived, without receiving them.
fn wait_for(link: &TcpLink, len: usize) {
    let mut bytes = vec![0; len];
    loop {
        wait(link, PollFlags::IN);
        let peeked = rustix::net::recv(link, &mut *bytes, rustix::net::RecvFlags::PEEK).unwrap();
        if peeked.0 == len {
            return;
        }
    }
}

/// Checks that no bytes are left to receive.
fn assert_empty(link: &TcpLink) {
    assert_eq!(link.recv(&[], &mut [0]), Err(LinkError::WouldBlock));
}

#[test]
fn own_and_host_pieces_mixed() {
    let (a, b) = pair();
    let mut random = Random(0xfeed_beef_1234_5678);
    let (from, to) = (Pages::new(64), Pages::new(64));
    let source = random.bytes(64 * PAGE);
    from.write(&source);
    for round in 0..200 {
        // The last is more pieces than one system call takes.
        let count = [1, 2, 17, 1500][round % 4];
        let cuts: Vec<_> =
            (0..count).map(|_| (random.below(64 * PAGE - 200), random.below(200), random.below(2))).collect();
        let pieces: Vec<_> = cuts
            .iter()
            .map(|&(at, len, own)| match own {
                1 => Piece::Own(&source[at..at + len]),
                _ => Piece::Host(from.span(at, len)),
            })
            .collect();
        let whole: Vec<u8> = cuts.iter().flat_map(|&(at, len, _)| &source[at..at + len]).copied().collect();
        if whole.is_empty() {
            continue;
        }
        let sent = a.send(&pieces).unwrap();
        assert!(sent == whole.len() || count > MAX_VECTORS && sent > 0, "{sent} of {}", whole.len());
        wait_for(&b, sent);

        let (first, second) = (random.below(sent), random.below(PAGE));
        let spans = [to.span(7, first), to.span(40 * PAGE, second)];
        let mut own = vec![0; sent];
        assert_eq!(b.recv(&spans, &mut own), Ok(sent));
        let after = to.read();
        let second = second.min(sent - first);
        assert_eq!(after[7..7 + first], whole[..first]);
        assert_eq!(after[40 * PAGE..40 * PAGE + second], whole[first..first + second]);
        assert_eq!(own[..sent - first - second], whole[first + second..sent]);
        assert_empty(&b);
    }
}

#[test]
fn bad_memory_at_the_receiver_loses_no_byte() {
    let (a, b) = pair();
    let pages = Pages::new(4);
    pages.unmap(1);
    pages.protect(3, libc::PROT_READ);
    let bytes = Random(5).bytes(20_000);
    assert_eq!(a.send(&[Piece::Own(&bytes)]), Ok(20_000));
    wait_for(&b, 20_000);

    for bad in [pages.span(PAGE, 100), pages.span(3 * PAGE, 1), Span::new(KERNEL, 9)] {
        assert_eq!(b.recv(&[bad], &mut [0; 50]), Err(LinkError::Unmapped));
    }
    // Bytes before the bad memory are received.
    assert_eq!(b.recv(&[pages.span(PAGE - 100, 5000)], &mut []), Ok(100));
    assert_eq!(b.recv(&[pages.span(2 * PAGE, 300), pages.span(PAGE, 300)], &mut [0; 9]), Ok(300));
    assert_eq!(b.recv(&[pages.span(2 * PAGE + 300, 60), Span::new(KERNEL, 9)], &mut []), Ok(60));
    pages.map_again(1);
    let after = pages.read();
    assert_eq!(after[PAGE - 100..PAGE], bytes[..100]);
    assert_eq!(after[2 * PAGE..2 * PAGE + 360], bytes[100..460]);
    assert_eq!(receive(&b, 20_000 - 460), bytes[460..]);
    assert_empty(&b);
}

#[test]
fn bad_memory_at_the_sender_ends_a_send_before_it() {
    let (a, b) = pair();
    let pages = Pages::new(4);
    let bytes = Random(6).bytes(4 * PAGE);
    pages.write(&bytes);
    pages.unmap(1);
    pages.protect(2, libc::PROT_NONE);
    pages.protect(3, libc::PROT_READ);
    let own = [1, 2, 3];

    for bad in [pages.span(PAGE, 9), pages.span(2 * PAGE, 9), Span::new(KERNEL, 9)] {
        assert_eq!(a.send(&[Piece::Host(bad)]), Err(LinkError::Unmapped));
        assert_eq!(a.send(&[Piece::Host(bad), Piece::Own(&own)]), Err(LinkError::Unmapped));
        assert_eq!(a.send(&[Piece::Own(&own), Piece::Host(bad)]), Ok(3));
        assert_eq!(receive(&b, 3), own);
    }
    // A piece whose first page is mapped, and the next one is not.
    assert_eq!(a.send(&[Piece::Host(pages.span(100, 5000))]), Ok(PAGE - 100));
    assert_eq!(receive(&b, PAGE - 100), bytes[100..PAGE]);
    // This page is write-protected, and can be sent.
    assert_eq!(a.send(&[Piece::Host(pages.span(3 * PAGE, PAGE))]), Ok(PAGE));
    assert_eq!(receive(&b, PAGE), bytes[3 * PAGE..]);
    assert_empty(&b);
}

#[test]
fn a_bad_piece_among_many_stops_the_send_at_or_before_it() {
    let (a, b) = pair();
    let pages = Pages::new(3);
    pages.unmap(2);
    let bytes = Random(8).bytes(200_000);
    // The kernel sends some of the first piece before it comes to the bad one.
    let pieces = [Piece::Own(&bytes), Piece::Host(pages.span(2 * PAGE, 5)), Piece::Own(&bytes)];
    let sent = a.send(&pieces).unwrap();
    assert!((1..=200_000).contains(&sent));
    assert_eq!(receive(&b, sent), bytes[..sent]);
    assert_empty(&b);
}

#[test]
fn a_full_connection_would_block() {
    let (a, b) = pair();
    let bytes = Random(9).bytes(1 << 20);
    let mut sent = Vec::new();
    let error = loop {
        match a.send(&[Piece::Own(&bytes)]) {
            Ok(len) => sent.extend_from_slice(&bytes[..len]),
            Err(error) => break error,
        }
        assert!(sent.len() < 1 << 30);
    };
    assert_eq!(error, LinkError::WouldBlock);
    assert!(receive(&b, sent.len()) == sent);
    wait(&a, PollFlags::OUT);
    assert!(a.send(&[Piece::Own(&bytes)]).is_ok());
}

#[test]
fn finishing_ends_one_direction() {
    let (a, b) = pair();
    assert_eq!(a.send(&[Piece::Own(b"last")]), Ok(4));
    a.finish();
    assert_eq!(receive(&b, 4), b"last");
    wait(&b, PollFlags::IN);
    for _ in 0..2 {
        assert_eq!(b.recv(&[], &mut [0; 8]), Err(LinkError::Ended));
    }
    assert_eq!(a.send(&[Piece::Own(b"x")]), Err(LinkError::Lost(libc::EPIPE)));
    assert_eq!(b.send(&[Piece::Own(b"answer")]), Ok(6));
    assert_eq!(receive(&a, 6), b"answer");
}

/// The socket stays open for a while: a reset that was sent only when it is closed would be too late.
#[test]
fn aborting_resets_at_once() {
    let (a, b) = pair();
    assert!(b.send(&[Piece::Own(b"never read")]).is_ok());
    a.abort();
    wait(&b, PollFlags::IN);
    assert_eq!(b.recv(&[], &mut [0; 8]), Err(LinkError::Lost(libc::ECONNRESET)));
    assert_eq!(b.send(&[Piece::Own(b"x")]), Err(LinkError::Lost(libc::EPIPE)));
    for _ in 0..2 {
        assert!(matches!(a.recv(&[], &mut [0; 8]), Err(LinkError::Lost(_))));
        assert!(matches!(a.send(&[Piece::Own(b"x")]), Err(LinkError::Lost(_))));
    }
    a.abort();
}

/// The kernel reports a reset only once. `recv` finds the reset even if a `send` got the error.
#[test]
fn a_reset_that_a_send_was_told_is_no_orderly_end() {
    let (a, b) = pair();
    a.abort();
    wait(&b, PollFlags::IN);
    assert_eq!(b.send(&[Piece::Own(b"x")]), Err(LinkError::Lost(libc::ECONNRESET)));
    assert_eq!(b.recv(&[], &mut [0; 8]), Err(LinkError::Lost(libc::ECONNRESET)));
}

/// Both ends have closed their direction. The socket is not connected any more then, but the end is an orderly one.
#[test]
fn an_end_on_both_sides_is_an_orderly_end() {
    let (a, b) = pair();
    b.finish();
    wait(&a, PollFlags::IN);
    assert_eq!(a.recv(&[], &mut [0; 8]), Err(LinkError::Ended));
    a.finish();
    wait(&b, PollFlags::IN);
    assert_eq!(b.recv(&[], &mut [0; 8]), Err(LinkError::Ended));
}

#[test]
fn the_path_tells_its_segment_size() {
    let (a, b) = pair();
    // Loopback carries more than Ethernet.
    assert!(a.segment_size() > 1460 && b.segment_size() > 1460);

    let listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let listener = listener.unwrap();
    set_option(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1000).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let port = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap().port();
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    // TCP timestamps, where enabled, take 12 bytes of each segment.
    let client = Fd::open(|| io::Result::Ok(client.into())).unwrap();
    assert!([1000, 988].contains(&TcpLink::new(client).segment_size()));
}

#[test]
#[should_panic(expected = "something to move")]
fn receiving_into_no_room_is_not_the_end() {
    let _ = pair().0.recv(&[], &mut []);
}

#[test]
fn lengths_beyond_a_call_are_cut() {
    let (a, b) = pair();
    let pages = Pages::new(2);
    pages.unmap(1);
    // The kernel would refuse a call with this length.
    let long = Span::new(pages.span(0, 0).addr, usize::MAX - 1);
    assert_eq!(a.send(&[Piece::Host(long), Piece::Own(b"x")]), Ok(PAGE));
    assert_eq!(receive(&b, PAGE), [0; PAGE]);
    assert_eq!(b.send(&[Piece::Own(b"abc")]), Ok(3));
    wait_for(&a, 3);
    assert_eq!(a.recv(&[long, long], &mut [0; 4]), Ok(3));
}
