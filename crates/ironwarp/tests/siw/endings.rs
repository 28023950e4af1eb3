//! Rejected connections, and how connections end: closed by either end, by a killed process, by siw's timeouts.

use crate::end::{End, STEP, next};
use crate::guest::Guest;
use crate::killed_peer;
use crate::operations::{a_little, basic};
use crate::pattern;
use crate::session::{Bench, Ending, Session, Settings, Variant};
use crate::shape::Shape;
use ironwarp::completion::Status;
use ironwarp::connection::{AcceptOptions, ConnectError, Incoming};
use ironwarp::queue::{Completes, QpError, WorkRequest};
use ironwarp_testkit::wait::until;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

pub(crate) fn all(variant: Variant) -> Vec<Session> {
    let mut all = Vec::new();
    for len in [0, 251] {
        all.extend([rejected_by_us(len), rejected_by_siw(len)]);
    }
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        for connects in [false, true] {
            let server = basic("the server disconnects").shape(|shape| shape.server_closes = true);
            let mut sessions = vec![server, siw_is_killed_while_it_writes()];
            // Long Writes, and CRCs: see `operations::SHORT`.
            if connects || variant != Variant::Crc {
                sessions.push(siw_is_killed_while_it_is_written().settings(Settings::NoCrc));
            }
            all.extend(sessions.into_iter().map(|session| session.connects(connects).completes(completes)));
        }
    }
    all.push(we_are_killed());
    // Only these are slow, and do not depend on the settings.
    if variant == Variant::Plain {
        all.extend([five_seconds(), ten_seconds()]);
    }
    all
}

// --- Rejected ---

fn rejected_by_us(len: usize) -> Session {
    let ours = move |bench: &Bench, _: &Guest| {
        let incoming = bench.endpoint(Settings::Usual).listener.accept(STEP).expect("siw connects");
        incoming.reject(&pattern::SAID.bytes(0, len, 0)).unwrap();
    };
    // siw may notice the close before it has read all of the Reply; then its program gets no private data,
    // or the wrong event.
    let private = format!("private data: {len} bytes|private data: 0 bytes");
    Session::alone(&format!("Ironwarp rejects with {len} bytes"), format!("rejected={len}"), ours).seen(&[
        "RDMA_CM_EVENT_REJECTED: Connection reset by peer|RDMA_CM_EVENT_CONNECT_ERROR: Invalid argument",
        &private,
    ])
}

fn rejected_by_siw(len: usize) -> Session {
    let ours = move |bench: &Bench, guest: &Guest| {
        let end = unconnected(bench, true);
        guest.wait_for_line("PEER ok listen");
        let error = end.connect(bench.outward).unwrap_err();
        let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error}") };
        assert_eq!(private_data[..], pattern::SAID_BY_SIW.bytes(0, len, 0));
        assert!(error.to_string().starts_with("the peer rejected the connection"), "{error}");
    };
    Session::alone(&format!("siw rejects with {len} bytes"), format!("reject={len}"), ours).connects(true)
}

fn unconnected(bench: &Bench, connects: bool) -> End {
    let endpoint = bench.endpoint(Settings::Usual);
    End::new(&endpoint.adapter, connects, Completes::WhenSent, Shape::default())
}

// --- Killed ---

/// A killed process closes its connections, even in the middle of a message.
fn gone(end: &End) {
    let text = end.wait_for_end();
    let error = end.qp.error().unwrap();
    assert!(matches!(&error, QpError::CutShort | QpError::Closed | QpError::Lost(_)), "{text}");
    let receive = next(&end.received, "a receive to be flushed");
    assert_eq!((receive.status, receive.cause.as_deref()), (Status::Flushed, Some(&error)));
}

fn siw_is_killed_while_it_writes() -> Session {
    let ours = |end: &mut End| {
        gone(end);
    };
    Session::new("siw is killed while it writes", "connect advert stream=32 die", ours)
        .half(MIB)
        .ending(Ending::Broken)
        .exit(137)
}

/// Writes that siw acknowledged succeed; all others fail.
fn siw_is_killed_while_it_is_written() -> Session {
    let ours = |end: &mut End| {
        const WRITES: usize = 32;
        // siw's process is killed, and may not acknowledge the last one.
        let message = end.fill_message(8);
        end.qp.post_send(WorkRequest::send(2, &[message])).unwrap();
        let source = end.source.slice(..MIB).unwrap();
        for _ in 0..WRITES {
            end.qp.post_send(WorkRequest::write(1, &[source], end.to(0))).unwrap();
        }
        let mut ends = (0..=WRITES).map(|_| next(&end.sent, "a request to end").status);
        let sent = ends.next().unwrap();
        let ends: Vec<Status> = ends.collect();
        let good = ends.iter().take_while(|&&status| status == Status::Success).count();
        assert!(sent == Status::Success || good == 0, "{sent:?}, then {ends:?}");
        assert!(good < WRITES, "siw was killed before the last Write");
        assert!(matches!(ends[good], Status::RetryExceeded | Status::Flushed), "{sent:?}, then {ends:?}");
        assert!(ends[good + 1..].iter().all(|&status| status == Status::Flushed), "{ends:?}");
        gone(end);
    };
    Session::new("siw is killed while it is written to", "connect advert receive=8 die", ours)
        .half(MIB)
        .ending(Ending::Broken)
        .exit(137)
}

/// One of our processes is killed while siw writes to it.
fn we_are_killed() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        guest.wait_for_line("PEER ok listen");
        // siw's Send may have arrived here without being complete there: it would fail.
        killed_peer::run_and_kill(bench.outward, || guest.wait_for_line("PEER ok advert"));
    };
    Session::alone("Ironwarp is killed while it writes", "connect advert see", ours)
        .connects(true)
        .half(MIB)
        .ending(Ending::Broken)
        .seen(&["receive: Work Request Flushed Error"])
}

// --- Timeouts ---

/// siw allows five seconds for a Request. Proper connections meanwhile and afterwards succeed.
fn five_seconds() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        guest.wait_for_line("PEER ok listen");
        let mut silent = TcpStream::connect(bench.outward).unwrap();
        silent.set_read_timeout(Some(STEP)).unwrap();
        let before = Instant::now();
        assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0, "siw closes without a reply");
        let waited = before.elapsed();
        assert!((4..9).contains(&waited.as_secs()), "siw waited {waited:?}");

        let mut end = unconnected(bench, true);
        end.connect(bench.outward).unwrap();
        end.advert();
        a_little(&mut end);
        guest.wait_for_line("PEER ok parting");
        end.disconnect();
    };
    let siw = "connect advert write=1000@0 read=1000@0 send=8 receive=8 written=1000 parting disconnected";
    Session::alone("five seconds without a Request", siw, ours).connects(true)
}

/// Returns whether the TCP connection of a request is established: the peer has neither closed nor reset it.
fn is_established(incoming: &Incoming) -> bool {
    let in_hex = |addr: SocketAddr| {
        let IpAddr::V4(ip) = addr.ip() else { panic!("{addr} is not IPv4") };
        format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), addr.port())
    };
    let row = format!(" {} {} 01 ", in_hex(incoming.local_addr()), in_hex(incoming.peer_addr()));
    std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&row)
}

/// siw waits ten seconds for a Reply, and the emulated processor takes longer. A later Reply finds the connection
/// closed.
fn ten_seconds() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        let incoming = bench.endpoint(Settings::Usual).listener.accept(STEP).expect("siw connects");
        assert!(is_established(&incoming));
        let end = unconnected(bench, false);
        guest.wait_for_line("PEER ok unanswered");
        // The line may overtake the end of the connection on its way out of the guest.
        until(|| !is_established(&incoming));
        let before = Instant::now();
        let error = incoming.accept(&end.qp, &AcceptOptions::new()).unwrap_err();
        assert!(before.elapsed() < Duration::from_secs(5), "does not wait for siw again");
        assert_eq!(
            error.to_string(),
            "the peer closed the connection before it answered: it may not speak MPA"
        );
    };
    Session::alone("ten seconds without a Reply", "unanswered", ours).ending(Ending::Broken).seen(&[
        "RDMA_CM_EVENT_UNREACHABLE: Connection timed out",
        "seconds: 10|seconds: 11|seconds: 12|seconds: 13",
    ])
}
