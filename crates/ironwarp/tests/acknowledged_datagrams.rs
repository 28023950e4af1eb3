//! Acknowledged datagrams over real UDP sockets (requirement P2). Every byte is verified.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::{Completion, CompletionQueue, Opcode, Status};
use ironwarp::datagram::{DatagramQueuePair, DatagramRequest, Destination, Grh};
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{Completes, QpError, Retries, State};
use ironwarp::{Adapter, Config};
use ironwarp_rnic::fault::Rng;
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::native::{ALL, Completions, SOON, pattern};
use ironwarp_wire::private::Datagram;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const GRH: usize = Grh::LEN;
const QKEY: u32 = 0x0001_1ee7;
/// Room for a GRH and the longest message.
const ROOM: usize = GRH + 4096;
/// Number of receives that fit the memory of an end.
const RECEIVES: usize = 120;

/// A queue pair that acknowledges datagrams, with memory for receives.
struct End {
    qp: DatagramQueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    _adapter: Adapter,
}

impl End {
    fn new() -> Self {
        Self::with(Config::default(), ironwarp::datagram::DEFAULT_RETRIES)
    }

    fn with(config: Config, retries: Retries) -> Self {
        let adapter = Adapter::open(config).unwrap();
        let cq = adapter.completion_queue(1024).unwrap();
        let domain = adapter.protection_domain();
        let builder = domain.datagram_queue_pair(&cq).qkey(QKEY).completes(Completes::WhenAcknowledged);
        let qp = builder.retries(retries).create().unwrap();
        let region = domain.register(Buffer::new(RECEIVES * ROOM).unwrap(), ALL).unwrap();
        Self { qp, cq, region, _adapter: adapter }
    }

    /// Posts the receive with this number, which is its identifier.
    fn receive(&self, number: usize) {
        let slice = self.region.slice(number * ROOM..(number + 1) * ROOM).unwrap();
        self.qp.post_receive(number as u64, &[slice]).unwrap();
    }

    /// Returns the message that a completed receive has placed.
    fn message(&self, received: &Completion) -> Vec<u8> {
        let mut bytes = vec![0; received.byte_len as usize];
        self.region.read(usize::try_from(received.wr_id).unwrap() * ROOM, &mut bytes).unwrap();
        Grh::split(&bytes).unwrap().1.to_vec()
    }

    fn destination(&self, from: &Self) -> Destination {
        from.to_number(self.qp.qpn())
    }

    /// Returns the destination with this number on this host.
    fn to_number(&self, qpn: u32) -> Destination {
        Destination {
            address: self.qp.address_handle("127.0.0.1".parse().unwrap()).unwrap(),
            qpn,
            qkey: QKEY,
        }
    }

    fn send(&self, id: u64, bytes: &[u8], to: Destination) {
        self.qp.post_send(DatagramRequest::send_inline(id, bytes, to)).unwrap();
    }
}

impl Completions for End {
    fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}

/// Few attempts in a short time.
fn impatient() -> Retries {
    Retries::default().retry_count(2).timeout(10).rnr_retry(2).rnr_timer(12)
}

#[test]
fn an_acknowledged_datagram_completes_when_it_is_placed() {
    let (one, other) = (End::new(), End::new());
    for (number, size) in [0, 1, 100, 4096].into_iter().enumerate() {
        let data = pattern(7, size);
        one.region.write(0, &data).unwrap();
        other.receive(number);
        let request = DatagramRequest::send(2, &[one.region.slice(..size).unwrap()], other.destination(&one));
        one.qp.post_send(request.immediate(9).solicited()).unwrap();
        assert_eq!(one.done(Opcode::Send, 2).byte_len as usize, size);
        // Not waited for: it is there already.
        let received = other.cq.poll_one().unwrap().expect("placed before it was acknowledged");
        assert_eq!((received.wr_id, received.immediate), (number as u64, Some(9)));
        assert_eq!((received.solicited, received.sender.unwrap().qp), (true, one.qp.qpn()));
        assert_eq!(other.message(&received), data);
    }
    // Both directions, and to itself.
    one.receive(3);
    other.send(5, b"back", one.destination(&other));
    other.done(Opcode::Send, 5);
    assert_eq!(one.message(&one.done(Opcode::Receive, 3)), b"back");
    one.receive(4);
    one.send(6, b"to myself", one.destination(&one));
    assert_eq!(one.message(&one.done(Opcode::Receive, 4)), b"to myself");
    one.done(Opcode::Send, 6);
}

/// More requests than the window of 64, from memory that is shared by several requests.
#[test]
fn many_acknowledged_datagrams_arrive_exactly_once() {
    const MESSAGES: usize = 1000;
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one);
    (0..RECEIVES).for_each(|number| other.receive(number));
    let (mut posted, mut seen, mut done) = (0, vec![false; MESSAGES], 0);
    let until = Instant::now() + SOON;
    while done < MESSAGES {
        assert!(Instant::now() < until, "{posted} posted, {done} completed");
        while posted < MESSAGES && posted < done + 100 {
            let bytes = [&posted.to_le_bytes()[..], &pattern(posted.to_le_bytes()[0], posted % 500)].concat();
            one.send(posted as u64, &bytes, to);
            posted += 1;
        }
        let sent: Vec<_> = std::iter::from_fn(|| one.cq.poll_one().unwrap()).collect();
        while let Some(received) = other.cq.poll_one().unwrap() {
            let message = other.message(&received.clone().success().unwrap());
            let number = usize::from_le_bytes(*message.first_chunk().unwrap());
            assert!(!std::mem::replace(&mut seen[number], true), "message {number} arrived twice");
            assert_eq!(message[8..], pattern(number.to_le_bytes()[0], number % 500));
            other.receive(usize::try_from(received.wr_id).unwrap());
        }
        for sent in sent {
            let number = usize::try_from(sent.success().unwrap().wr_id).unwrap();
            assert!(seen[number], "message {number} completed before it was placed");
            done += 1;
        }
    }
}

/// A relay between two queue pairs, which drops, duplicates and reorders datagrams by a seed. Both ends take it for the
/// other one: it has a number of its own, and rewrites the numbers in the headers.
struct Relay {
    socket: UdpSocket,
    ends: [u32; 2],
    rng: Rng,
    held: Vec<(Vec<u8>, u16)>,
    /// Number of datagrams that were dropped and that were sent twice.
    counts: [u32; 2],
}

impl Relay {
    fn new(ends: [u32; 2], seed: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        Self { socket, ends, rng: Rng::new(seed), held: Vec::new(), counts: [0; 2] }
    }

    fn qpn(&self) -> u32 {
        u32::from(self.socket.local_addr().unwrap().port()) << 8 | 255
    }

    /// Relays datagrams until `done`.
    fn run(mut self, done: &AtomicBool) -> [u32; 2] {
        let mut bytes = [0; 5000];
        while !done.load(Ordering::Relaxed) {
            if let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
                self.relay(&bytes[..len], from);
            }
            // Those that are held back are sent in another order.
            while self.held.len() > 4 || !self.held.is_empty() && self.rng.below(3) == 0 {
                let at = usize::try_from(self.rng.below(self.held.len() as u64)).unwrap();
                let (bytes, port) = self.held.swap_remove(at);
                self.socket.send_to(&bytes, ("127.0.0.1", port)).unwrap();
            }
        }
        self.counts
    }

    fn relay(&mut self, bytes: &[u8], from: SocketAddr) {
        let (header, payload) = Datagram::parse(bytes).unwrap();
        let [one, other] = self.ends;
        let destination = if header.source == one { other } else { one };
        assert_eq!(header.source, u32::from(from.port()) << 8 | 255);
        let header = Datagram { source: self.qpn(), destination, ..header };
        let bytes = [&header.emit(payload).unwrap()[..], payload].concat();
        let copies = match self.rng.below(10) {
            0 => {
                self.counts[0] += 1;
                return;
            }
            1..3 => 2,
            _ => 1,
        };
        self.counts[1] += u32::from(copies == 2);
        let port = u16::try_from(destination >> 8).unwrap();
        self.held.extend(std::iter::repeat_n((bytes, port), copies));
    }
}

/// Stops the relay, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn acknowledged_datagrams_arrive_exactly_once_over_a_network_that_loses_them() {
    const MESSAGES: usize = 200;
    // Up to 8 attempts, from 4 ms on.
    let retries = Retries::default().retry_count(7).timeout(10).rnr_retry(6).rnr_timer(16);
    let (one, other) = (End::with(Config::default(), retries), End::new());
    let relay = Relay::new([one.qp.qpn(), other.qp.qpn()], 7);
    let to = one.to_number(relay.qpn());
    (0..RECEIVES).for_each(|number| other.receive(number));
    let done = AtomicBool::new(false);
    let mut delivered = vec![0; MESSAGES];
    let mut ended = [None; MESSAGES];
    let counts = std::thread::scope(|scope| {
        let relaying = scope.spawn(|| relay.run(&done));
        let stop = StopOnDrop(&done);
        let (mut posted, mut completed) = (0, 0);
        let until = Instant::now() + SOON;
        while completed < MESSAGES {
            assert!(Instant::now() < until, "{posted} posted, {completed} completed");
            while posted < MESSAGES && posted < completed + 100 {
                let bytes = [&posted.to_le_bytes()[..], &pattern(posted.to_le_bytes()[0], 300)].concat();
                one.send(posted as u64, &bytes, to);
                posted += 1;
            }
            let sent: Vec<_> = std::iter::from_fn(|| one.cq.poll_one().unwrap()).collect();
            while let Some(received) = other.cq.poll_one().unwrap() {
                let message = other.message(&received.clone().success().unwrap());
                let number = usize::from_le_bytes(*message.first_chunk().unwrap());
                assert_eq!(message[8..], pattern(number.to_le_bytes()[0], 300));
                delivered[number] += 1;
                assert_eq!(delivered[number], 1, "message {number} arrived twice");
                other.receive(usize::try_from(received.wr_id).unwrap());
            }
            for sent in sent {
                let number = usize::try_from(sent.wr_id).unwrap();
                assert!(
                    sent.status != Status::Success || delivered[number] == 1,
                    "{number} is not delivered"
                );
                ended[number] = Some(sent.status);
                completed += 1;
            }
        }
        drop(stop);
        relaying.join().unwrap()
    });
    // One of 600,000 messages gets no answer in 8 attempts, if one in ten datagrams is dropped.
    let succeeded = ended.iter().filter(|status| **status == Some(Status::Success)).count();
    assert!(succeeded >= MESSAGES - 2, "only {succeeded} succeeded");
    assert!(counts.iter().all(|count| *count > 10), "dropped and duplicated: {counts:?}");
    assert!(other.qp.drops().duplicates > 10, "{:?}", other.qp.drops());
}

#[test]
fn an_acknowledged_datagram_waits_for_a_receive() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one);
    one.send(1, b"early", to);
    let until = Instant::now() + SOON;
    while other.qp.drops().no_receive == 0 {
        assert!(Instant::now() < until, "{:?}", other.qp.drops());
        other.cq.poll_one().unwrap();
    }
    other.receive(0);
    one.done(Opcode::Send, 1);
    assert_eq!(other.message(&other.done(Opcode::Receive, 0)), b"early");
}

/// A request fails alone: others, also to other queue pairs, go on.
#[test]
fn an_acknowledged_datagram_fails_when_its_retries_are_used_up() {
    let one = End::with(Config::default(), impatient());
    let (busy, good) = (End::new(), End::new());
    let unused = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = one.to_number(u32::from(unused.local_addr().unwrap().port()) << 8 | 255);
    one.send(1, b"to nobody", nobody);
    one.send(2, b"no receive is posted", busy.destination(&one));
    good.receive(0);
    one.send(3, b"fine", good.destination(&one));
    let mut ended: Vec<_> = (0..3).map(|_| one.next()).collect();
    ended.sort_by_key(|completion| completion.wr_id);
    let causes: Vec<_> = ended.iter().map(|it| (it.status, it.cause.as_deref().cloned())).collect();
    let expected = [
        (Status::RetryExceeded, Some(QpError::Unreachable)),
        (Status::RnrRetryExceeded, Some(QpError::NotReady)),
        (Status::Success, None),
    ];
    assert_eq!(causes, expected);
    assert_eq!(one.qp.state(), State::ReadyToSend);
    assert_eq!(good.message(&good.done(Opcode::Receive, 0)), b"fine");
}

#[test]
fn an_acknowledged_datagram_fails_if_its_receive_does() {
    let (one, other) = (End::new(), End::new());
    other.qp.post_receive(0, &[other.region.slice(..GRH + 4).unwrap()]).unwrap();
    one.send(1, b"too long", other.destination(&one));
    let cause = one.failed(Opcode::Send, 1, Status::RemoteOperation).cause;
    assert_eq!(cause.as_deref(), Some(&QpError::ReceiveFailed));
    other.failed(Opcode::Receive, 0, Status::LocalLength);
    assert_eq!((one.qp.state(), other.qp.state()), (State::ReadyToSend, State::ReadyToSend));
}

/// The receiver does not know any more which messages it has placed, so the sender is told.
#[test]
fn a_receiver_that_starts_again_receives_nothing_twice() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one);
    other.receive(0);
    one.send(1, b"before", to);
    one.done(Opcode::Send, 1);
    other.done(Opcode::Receive, 0);
    for state in [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend] {
        other.qp.set_state(state).unwrap();
    }
    (0..2).for_each(|number| other.receive(number));
    one.send(2, b"in the old session", to);
    let cause = one.failed(Opcode::Send, 2, Status::RetryExceeded).cause;
    assert_eq!(cause.as_deref(), Some(&QpError::SessionLost));
    one.send(3, b"in a new session", to);
    one.done(Opcode::Send, 3);
    assert_eq!(other.message(&other.done(Opcode::Receive, 0)), b"in a new session");
    assert_eq!(other.qp.drops().no_session, 1);
}

/// The two attributes of a channel belong to both of its ends.
#[test]
fn acknowledged_and_unacknowledged_queue_pairs_do_not_mix() {
    let one = End::with(Config::default(), impatient());
    let adapter = Adapter::new().unwrap();
    let cq = adapter.completion_queue(16).unwrap();
    let plain = adapter.protection_domain().datagram_queue_pair(&cq).qkey(QKEY).create().unwrap();
    one.send(1, b"answer me", one.to_number(plain.qpn()));
    one.failed(Opcode::Send, 1, Status::RetryExceeded);
    let address = plain.address_handle("127.0.0.1".parse().unwrap()).unwrap();
    let to = Destination { address, qpn: one.qp.qpn(), qkey: QKEY };
    plain.post_send(DatagramRequest::send_inline(2, b"do not answer", to)).unwrap();
    let until = Instant::now() + SOON;
    while one.qp.drops().other_service == 0 || plain.drops().other_service == 0 {
        assert!(Instant::now() < until, "{:?}, {:?}", one.qp.drops(), plain.drops());
        one.cq.poll_one().unwrap();
        cq.poll_one().unwrap();
    }
}

/// The other process of [`a_process_that_is_killed_and_started_again_receives_nothing_twice`]. Does nothing when run as a
/// test.
#[test]
fn acknowledging_process() {
    let Some(role) = child::role() else { return };
    let ports = role.strip_prefix("port ").unwrap_or("").parse().unwrap();
    let end = End::with(Config::default().ports(ports), ironwarp::datagram::DEFAULT_RETRIES);
    (0..3).for_each(|number| end.receive(number));
    println!("\nnumber {}", end.qp.qpn());
    std::io::stdout().flush().unwrap();
    loop {
        let message = end.message(&end.next().success().unwrap());
        println!("\nreceived {}", String::from_utf8(message).unwrap());
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_process_that_is_killed_and_started_again_receives_nothing_twice() {
    let one = End::new();
    let mut first = Partner::start(child::command("acknowledging_process", "any"));
    let qpn: u32 = first.wait_for("number ").parse().unwrap();
    let to = one.to_number(qpn);
    one.send(1, b"before", to);
    one.done(Opcode::Send, 1);
    assert_eq!(first.wait_for("received "), "before");
    first.kill();
    let mut second = Partner::start(child::command("acknowledging_process", &format!("port {}", qpn >> 8)));
    assert_eq!(second.wait_for("number ").parse(), Ok(qpn));
    one.send(2, b"in the old session", to);
    let cause = one.failed(Opcode::Send, 2, Status::RetryExceeded).cause;
    assert_eq!(cause.as_deref(), Some(&QpError::SessionLost));
    one.send(3, b"in a new session", to);
    one.done(Opcode::Send, 3);
    assert_eq!(second.wait_for("received "), "in a new session");
    second.kill();
}
