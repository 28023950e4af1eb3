//! How connections are refused, and how they end: by one end or the other, by a process that is killed, by siw's patience.
//! Before this: `main.rs`; after: `session.rs` runs them.

use crate::doomed;
use crate::end::{End, STEP, next};
use crate::guest::Guest;
use crate::operations::{a_little, basic};
use crate::pattern;
use crate::session::{Bench, Ending, Session, Settings, Variant};
use crate::shape::Shape;
use ironwarp::{AcceptOptions, Completes, ConnectError, Fault, Status, WorkRequest};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

pub(crate) fn all(variant: Variant) -> Vec<Session> {
    let mut all = Vec::new();
    for len in [0, 251] {
        all.extend([rejected_by_us(len), rejected_by_siw(len)]);
    }
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        for connects in [false, true] {
            let server = basic("the server disconnects").shape(|shape| shape.server_parts = true);
            let mut sessions = vec![server, siw_is_killed_while_it_writes()];
            // Long Writes, and CRCs: see `operations::SHORT`.
            if connects || variant != Variant::Crc {
                sessions.push(siw_is_killed_while_it_is_written().settings(Settings::NoCrc));
            }
            all.extend(sessions.into_iter().map(|session| session.connects(connects).completes(completes)));
        }
    }
    all.push(we_are_killed());
    // Only these take their time, and none of the settings has to do with it.
    if variant == Variant::Plain {
        all.extend([five_seconds(), ten_seconds()]);
    }
    all
}

// --- Refused ---

fn rejected_by_us(len: usize) -> Session {
    let ours = move |bench: &Bench, _: &Guest| {
        let incoming = bench.desk(Settings::Usual).listener.accept(STEP).expect("siw connects");
        incoming.reject(&pattern::SAID.bytes(0, len, 0)).unwrap();
    };
    // siw may see that the connection is closed before it has seen all of the Reply; then its program gets no private data,
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
        guest.says("PEER ok listen");
        let error = end.connect(bench.outward).unwrap_err();
        let ConnectError::Rejected { private_data, .. } = &*error else { panic!("{error}") };
        assert_eq!(private_data[..], pattern::SAID_BY_SIW.bytes(0, len, 0));
        assert!(error.to_string().starts_with("the peer rejected the connection"), "{error}");
    };
    Session::alone(&format!("siw rejects with {len} bytes"), format!("reject={len}"), ours).connects(true)
}

fn unconnected(bench: &Bench, connects: bool) -> End {
    let desk = bench.desk(Settings::Usual);
    End::new(&desk.adapter, connects, Completes::WhenSent, Shape::default())
}

// --- Killed ---

/// A process that is gone closes its connections, wherever they are in a message.
fn gone(end: &End) {
    let text = end.ended();
    let fault = end.qp.fault().unwrap();
    assert!(matches!(&*fault, Fault::CutShort | Fault::Closed | Fault::Lost(_)), "{text}");
    let receive = next(&end.received, "a receive to be flushed");
    assert_eq!((receive.status, receive.cause), (Status::Flushed, Some(fault)));
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

/// Writes that siw took were done, unless it has to say so. All others fail.
fn siw_is_killed_while_it_is_written() -> Session {
    let ours = |end: &mut End| {
        const WRITES: usize = 32;
        // siw dies of it, and may not come to say that it has it.
        let message = end.says(8);
        end.qp.post_send(WorkRequest::send(2, &[message])).unwrap();
        let source = end.source.slice(0, MIB).unwrap();
        for _ in 0..WRITES {
            end.qp.post_send(WorkRequest::write(1, &[source], end.to(0))).unwrap();
        }
        let mut ends = (0..=WRITES).map(|_| next(&end.sent, "a request to end").status);
        let sent = ends.next().unwrap();
        let ends: Vec<Status> = ends.collect();
        let good = ends.iter().take_while(|&&status| status == Status::Success).count();
        assert!(sent == Status::Success || good == 0, "{sent:?}, then {ends:?}");
        assert!(good < WRITES, "siw was gone before it could take all");
        assert!(matches!(ends[good], Status::RetryExceeded | Status::Flushed), "{sent:?}, then {ends:?}");
        assert!(ends[good + 1..].iter().all(|&status| status == Status::Flushed), "{ends:?}");
        gone(end);
    };
    Session::new("siw is killed while it is written to", "connect advert receive=8 die", ours)
        .half(MIB)
        .ending(Ending::Broken)
        .exit(137)
}

/// A process of ours, with siw in the midst of its Writes.
fn we_are_killed() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        guest.says("PEER ok listen");
        // Its own Send may be here, and yet not be done there: it would fail.
        doomed::run_and_kill(bench.outward, || guest.says("PEER ok advert"));
    };
    Session::alone("Ironwarp is killed while it writes", "connect advert see", ours)
        .connects(true)
        .half(MIB)
        .ending(Ending::Broken)
        .seen(&["receive: Work Request Flushed Error"])
}

// --- Patience ---

/// siw gives a connection five seconds to send its Request. Whoever connects properly meanwhile, and after that, is served.
fn five_seconds() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        guest.says("PEER ok listen");
        let mut silent = TcpStream::connect(bench.outward).unwrap();
        silent.set_read_timeout(Some(STEP)).unwrap();
        let before = Instant::now();
        assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0, "siw says nothing, and closes");
        let waited = before.elapsed();
        assert!((4..9).contains(&waited.as_secs()), "siw waited {waited:?}");

        let mut end = unconnected(bench, true);
        end.connect(bench.outward).unwrap();
        end.advert();
        a_little(&mut end);
        guest.says("PEER ok parting");
        end.disconnect();
    };
    let siw = "connect advert write=1000@0 read=1000@0 send=8 receive=8 written=1000 parting disconnected";
    Session::alone("five seconds without a Request", siw, ours).connects(true)
}

/// siw gives a server ten seconds to reply, and an emulated processor some more to say so. One that replies later finds the
/// connection closed.
fn ten_seconds() -> Session {
    let ours = |bench: &Bench, guest: &Guest| {
        let incoming = bench.desk(Settings::Usual).listener.accept(STEP).expect("siw connects");
        let end = unconnected(bench, false);
        guest.says("PEER ok unanswered");
        let before = Instant::now();
        let error = incoming.accept(&end.qp, &AcceptOptions::new()).unwrap_err();
        assert!(before.elapsed() < Duration::from_secs(5), "it does not wait for siw again");
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
