//! Hostile peers of a queue pair that acknowledges datagrams (requirement P2): they replay datagrams, forge answers and
//! source addresses, and open sessions without end. Nothing is delivered twice or completed falsely, memory stays bounded,
//! and no answer is longer than what it answers.

use super::datagrams::{LOCALHOST, Post, QKEY, Stranger, reseal};
use crate::common::TIMEOUT;
use ironwarp_engine::DatagramQueuePairAttributes;
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::qp::{Completes, Retries};
use ironwarp_rnic::queue::{Data, Opcode, Operation, Status, WorkRequest};
use ironwarp_wire::private::{Datagram, DatagramAnswer, DatagramKind};
use std::time::{Duration, Instant};

/// A queue pair that acknowledges datagrams, and keeps sessions of this many senders.
fn post(max_senders: usize) -> Post {
    Post::with(|attributes: &mut DatagramQueuePairAttributes| {
        attributes.completes = Completes::WhenAcknowledged;
        attributes.max_senders = max_senders;
        attributes.retries = Retries::default().retry_count(3).timeout(15).rnr_retry(1).rnr_timer(12);
    })
}

/// Receives the next datagram of a queue pair.
fn next(stranger: &Stranger) -> (Datagram, usize) {
    let mut bytes = [0; 5000];
    stranger.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let len = stranger.socket.recv(&mut bytes).expect("a datagram");
    (Datagram::parse(&bytes[..len]).unwrap().0, len)
}

/// Sends a datagram, and returns the kind of its answer, which must not be longer.
fn ask(stranger: &Stranger, kind: DatagramKind, sequence: u32, payload: &[u8]) -> DatagramKind {
    let bytes = stranger.datagram(kind, sequence, payload);
    stranger.send(&bytes);
    let (answer, len) = next(stranger);
    assert!(len <= bytes.len(), "{len} bytes answer {}", bytes.len());
    assert_eq!(answer.sequence, sequence);
    answer.kind
}

/// Opens a session as the protocol demands.
fn open(stranger: &Stranger, session: u64) {
    let challenge = ask(stranger, DatagramKind::Open { session, cookie: 0 }, 0, b"");
    let DatagramKind::Challenge { session: same, cookie } = challenge else { panic!("{challenge}") };
    assert_eq!(same, session);
    let opened = ask(stranger, DatagramKind::Open { session, cookie }, 0, b"");
    assert_eq!(opened, DatagramKind::Answer { session, answer: DatagramAnswer::Opened });
}

/// Sends a message of a session, and returns the answer.
fn send(stranger: &Stranger, session: u64, sequence: u32, payload: &[u8]) -> DatagramAnswer {
    match ask(stranger, DatagramKind::Acknowledged { session }, sequence, payload) {
        DatagramKind::Answer { session: same, answer } if same == session => answer,
        other => panic!("{other}"),
    }
}

#[test]
fn a_replayed_datagram_is_answered_but_not_delivered_again() {
    let post = post(8);
    let stranger = Stranger::new(post.port());
    (0..3).for_each(|id| post.receive(id, 0, 200));
    open(&stranger, 77);
    assert_eq!(send(&stranger, 77, 0, b"once"), DatagramAnswer::Placed);
    for _ in 0..100 {
        assert_eq!(send(&stranger, 77, 0, b"once"), DatagramAnswer::Placed);
    }
    assert_eq!(send(&stranger, 77, 100, b"later"), DatagramAnswer::Placed);
    // Older than the window: not even answered.
    stranger.send(&stranger.datagram(DatagramKind::Acknowledged { session: 77 }, 0, b"once"));
    assert_eq!(send(&stranger, 77, 99, b"late"), DatagramAnswer::Placed);
    for id in 0..3 {
        post.completes(Opcode::Receive, id, Status::Success);
    }
    assert!(!post.cq.wait(Some(Duration::from_millis(20))).unwrap(), "delivered again");
    assert_eq!(post.pair.qp().drops().duplicates, 101);
    assert_eq!(send(&stranger, 77, 101, b"no receive"), DatagramAnswer::NotReady);
}

#[test]
fn a_sender_without_a_cookie_gets_no_session() {
    let post = post(8);
    let (stranger, other) = (Stranger::new(post.port()), Stranger::new(post.port()));
    post.receive(1, 0, 200);
    assert_eq!(send(&stranger, 5, 0, b"no session"), DatagramAnswer::Unknown);
    let challenge = ask(&stranger, DatagramKind::Open { session: 5, cookie: 0 }, 0, b"");
    let DatagramKind::Challenge { cookie, .. } = challenge else { panic!("{challenge}") };
    // The cookie belongs to this session of this sender.
    let wrong = [(&stranger, 6, cookie), (&other, 5, cookie), (&stranger, 5, cookie ^ 1), (&stranger, 5, 0)];
    for (sender, session, cookie) in wrong {
        let answer = ask(sender, DatagramKind::Open { session, cookie }, 0, b"");
        assert!(matches!(answer, DatagramKind::Challenge { .. }), "{answer}");
        assert_eq!(send(sender, session, 0, b"still none"), DatagramAnswer::Unknown);
    }
    let opened = ask(&stranger, DatagramKind::Open { session: 5, cookie }, 0, b"");
    assert_eq!(opened, DatagramKind::Answer { session: 5, answer: DatagramAnswer::Opened });
    assert_eq!(send(&stranger, 5, 0, b"at last"), DatagramAnswer::Placed);
    post.completes(Opcode::Receive, 1, Status::Success);
    assert_eq!(post.memory.read(40, 7), b"at last");
    assert_eq!(post.pair.qp().drops().no_session, 5);
}

/// What was delivered in a session that was replaced is not delivered again, whatever is replayed.
#[test]
fn a_flood_of_senders_replaces_sessions_but_delivers_nothing_twice() {
    const SENDERS: usize = 40;
    let post = post(4);
    let victim = Stranger::new(post.port());
    post.receive(1, 0, 200);
    post.receive(2, 0, 200);
    let challenge = ask(&victim, DatagramKind::Open { session: 9, cookie: 0 }, 0, b"");
    let DatagramKind::Challenge { cookie, .. } = challenge else { panic!("{challenge}") };
    let open_again = DatagramKind::Open { session: 9, cookie };
    ask(&victim, open_again, 0, b"");
    assert_eq!(send(&victim, 9, 0, b"once"), DatagramAnswer::Placed);
    post.completes(Opcode::Receive, 1, Status::Success);
    for session in 0..SENDERS as u64 {
        open(&Stranger::new(post.port()), session);
    }
    assert_eq!(send(&victim, 9, 0, b"once"), DatagramAnswer::Unknown);
    // The old cookie does not open the old session again, though it has not expired.
    let answer = ask(&victim, open_again, 0, b"");
    assert!(matches!(answer, DatagramKind::Challenge { .. }), "{answer}");
    assert_eq!(send(&victim, 9, 0, b"once"), DatagramAnswer::Unknown);
    // A new session works.
    open(&victim, 10);
    assert_eq!(send(&victim, 10, 0, b"again"), DatagramAnswer::Placed);
    post.completes(Opcode::Receive, 2, Status::Success);
}

/// Sessions of thousands of senders, and requests for sessions that are never opened, do not make the queue pair larger.
#[test]
fn opening_sessions_without_end_takes_no_more_memory() {
    let post = post(64);
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let flood = || {
        for session in 0..5000 {
            let stranger = Stranger::new(post.port());
            ask(&stranger, DatagramKind::Open { session: session | 1 << 40, cookie: 0 }, 0, b"");
            open(&stranger, session);
        }
    };
    flood();
    let before = resident();
    flood();
    let grown = resident().saturating_sub(before);
    assert!(grown < 256 << 10, "{grown} bytes more");
}

/// A request to open a session that is four bytes shorter than its answer would be: its extensions are not padded.
#[test]
fn a_request_that_is_shorter_than_its_answer_is_not_answered() {
    let post = post(8);
    let stranger = Stranger::new(post.port());
    let open = stranger.datagram(DatagramKind::Open { session: 5, cookie: 0 }, 0, b"");
    let mut short = [&open[..58], &open[60..70]].concat();
    short[5] = 17;
    reseal(&mut short);
    assert!(
        Datagram::parse(&short)
            .is_ok_and(|(header, _)| header.kind == DatagramKind::Open { session: 5, cookie: 0 })
    );
    stranger.send(&short);
    // The answer to the second one is the first to arrive.
    let answer = ask(&stranger, DatagramKind::Open { session: 6, cookie: 0 }, 0, b"");
    assert!(matches!(answer, DatagramKind::Challenge { session: 6, .. }), "{answer}");
}

/// Posts a message to a stranger, and returns its session and sequence number once the stranger has it.
fn message_to(post: &Post, stranger: &Stranger, id: u64) -> (u64, u32) {
    let address = AddressHandle::new(Gid::from(LOCALHOST), Gid::from(LOCALHOST));
    let destination = Destination { address, qpn: stranger.number(), qkey: QKEY };
    let data = Data::Inline(b"for you".as_slice().into());
    let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
    post.pair.qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
    loop {
        let (header, _) = next(stranger);
        match header.kind {
            DatagramKind::Open { session, .. } => {
                let answer = DatagramAnswer::Opened;
                stranger.send(&stranger.datagram(DatagramKind::Answer { session, answer }, 0, b""));
            }
            DatagramKind::Acknowledged { session } => return (session, header.sequence),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn forged_answers_neither_complete_nor_fail_a_request() {
    const ANSWERS: [DatagramAnswer; 5] = [
        DatagramAnswer::Opened,
        DatagramAnswer::Placed,
        DatagramAnswer::NotReady,
        DatagramAnswer::Rejected,
        DatagramAnswer::Unknown,
    ];
    let post = post(8);
    let (receiver, forger) = (Stranger::new(post.port()), Stranger::new(post.port()));
    let (session, sequence) = message_to(&post, &receiver, 1);
    for answer in ANSWERS {
        // From another address; of another session; to another message.
        forger.send(&forger.datagram(DatagramKind::Answer { session, answer }, sequence, b""));
        let wrong = DatagramKind::Answer { session: session ^ 1, answer };
        receiver.send(&receiver.datagram(wrong, sequence, b""));
        let right = DatagramKind::Answer { session, answer };
        receiver.send(&receiver.datagram(right, sequence ^ 1, b""));
    }
    forger.send(&forger.datagram(DatagramKind::Challenge { session, cookie: 1 }, 0, b""));
    assert!(!post.cq.wait(Some(Duration::from_millis(5))).unwrap(), "a forged answer ended the request");
    let right = DatagramKind::Answer { session, answer: DatagramAnswer::Placed };
    receiver.send(&receiver.datagram(right, sequence, b""));
    post.completes(Opcode::Send, 1, Status::Success);
}

/// Whatever a receiver answers, a request ends: in time, and after a bounded number of datagrams.
#[test]
fn a_receiver_that_only_challenges_cannot_keep_a_sender_busy() {
    let post = post(8);
    let receiver = Stranger::new(post.port());
    let address = AddressHandle::new(Gid::from(LOCALHOST), Gid::from(LOCALHOST));
    let destination = Destination { address, qpn: receiver.number(), qkey: QKEY };
    let data = Data::Inline(b"for you".as_slice().into());
    let request = WorkRequest::new(1, Operation::Send { invalidate: None }, data);
    post.pair.qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
    receiver.socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let (mut bytes, mut opens, until) = ([0; 200], 0, Instant::now() + TIMEOUT);
    while !post.cq.wait(Some(Duration::ZERO)).unwrap() {
        assert!(Instant::now() < until, "the request does not end");
        let Ok(len) = receiver.socket.recv(&mut bytes) else { continue };
        let DatagramKind::Open { session, .. } = Datagram::parse(&bytes[..len]).unwrap().0.kind else {
            panic!()
        };
        opens += 1;
        receiver.send(&receiver.datagram(DatagramKind::Challenge { session, cookie: opens }, 0, b""));
    }
    let cause = post.completes(Opcode::Send, 1, Status::RetryExceeded).cause.unwrap();
    assert_eq!(*cause, QpError::Unreachable);
    assert_eq!(opens, 4, "one attempt and three retries");
}
