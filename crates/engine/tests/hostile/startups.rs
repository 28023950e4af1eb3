//! The first bytes of a connection: garbage, other protocols, and silence in every state that is half open.

use crate::common::PATIENCE;
use crate::common::peer::{ENHANCED, Heard, Peer, Way, startup};
use crate::common::victim::Victim;
use ironwarp_engine::{ConnectError, ConnectOptions, EventChannel, Incoming, Listening, Watcher};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::StartupError;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::Operation;
use ironwarp_wire::mpa::{Enhanced, Revision, Role, RtrSet, Startup};
use ironwarp_wire::{Cause, Header, MpaFault, Parse};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Makes something wrong in a frame.
type Bend = fn(&mut Vec<u8>);

const STARTUP: Duration = Duration::from_millis(300);

const SEND: Operation = Operation::Send { invalidate: None };

/// Revision 2, and no RTR: the initiator's program speaks first (RFC 6581 §9.2).
const SPEAKS_FIRST: Enhanced = Enhanced { rtr: None, ..ENHANCED };

fn hasty() -> Config {
    Config { startup: STARTUP, ..Config::default() }
}

fn request() -> Vec<u8> {
    startup(Role::Request, Way::default(), b"peer")
}

/// The victim ends the connection without a word: there is no stream yet that could carry one (RFC 5044 §7.1.2).
fn cut_off(peer: &mut Peer) {
    let heard = peer.hear();
    assert!(matches!(heard, Heard::End | Heard::Reset), "{heard:?}");
}

// --- A peer that dials ---

/// What does not begin like MPA is found out by its first byte.
#[test]
fn other_protocols() {
    let victim = Victim::new();
    let others: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: victim\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS
        b"SSH-2.0-OpenSSH_9.6\r\n",
        &[0; 100],
        b"X",
    ];
    for bytes in others {
        let mut peer = Peer::dial(victim.addr());
        peer.raw(bytes);
        cut_off(&mut peer);
    }
    assert!(victim.listener().incoming().next().is_none(), "the program was bothered");
    victim.survives();
}

/// A Request with one thing wrong.
#[test]
fn requests_that_are_wrong() {
    let victim = Victim::new();
    let bent: [(&str, Bend); 6] = [
        ("key", |request| request[15] ^= 1),
        ("a Reply", |request| request[8..11].copy_from_slice(b"Rep")),
        ("revision 0", |request| request[17] = 0),
        ("revision 3", |request| request[17] = 3),
        ("513 bytes of private data", |request| request[18..20].copy_from_slice(&513_u16.to_be_bytes())),
        ("no room for IRD and ORD", |request| {
            request[18..20].copy_from_slice(&2_u16.to_be_bytes());
            request.truncate(22);
        }),
    ];
    for (name, bend) in bent {
        let mut peer = Peer::dial(victim.addr());
        let mut frame = request();
        bend(&mut frame);
        peer.raw(&frame);
        let heard = peer.hear();
        assert!(matches!(heard, Heard::End | Heard::Reset), "{name}: {heard:?}");
    }
    assert!(victim.listener().incoming().next().is_none(), "the program was bothered");
    victim.survives();
}

/// RFC 5044 §7.1.2: an initiator waits for the Reply. One that does not is not served, be it found out at once or while the
/// program decides.
#[test]
fn bytes_before_the_reply() {
    let victim = Victim::new();
    let mut peer = Peer::dial(victim.addr());
    let mut frame = request();
    frame.push(0);
    peer.raw(&frame);
    cut_off(&mut peer);
    let mut peer = Peer::dial(victim.addr());
    peer.request(Way::default());
    let incoming = victim.listener().incoming().wait(Some(PATIENCE)).unwrap();
    peer.raw(b"too early");
    cut_off(&mut peer);
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    let error = pair.wait_connected(PATIENCE).unwrap_err();
    assert!(matches!(*error, ConnectError::Closed), "{error}");
    assert_eq!(pair.qp().state(), State::Init);
    victim.survives();
}

/// The peer leaves while the program decides.
#[test]
fn a_peer_that_leaves_before_the_reply() {
    let victim = Victim::new();
    for reset in [false, true] {
        let mut peer = Peer::dial(victim.addr());
        peer.request(Way::default());
        let incoming = victim.listener().incoming().wait(Some(PATIENCE)).unwrap();
        if reset {
            peer.reset();
        } else {
            drop(peer);
        }
        let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
        // Whichever the victim sees first: it never gets a stream that works, and never hangs.
        incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
        match pair.wait_connected(PATIENCE) {
            Ok(_) => assert!(pair.wait_closed(PATIENCE)),
            Err(error) => assert!(!matches!(*error, ConnectError::TimedOut), "{error}"),
        }
    }
    victim.survives();
}

/// Silence in each state that waits for the peer: the victim gives up after [`Config::startup`].
#[test]
fn silence_before_the_request() {
    let victim = Victim::with(hasty());
    let frame = request();
    for len in [0, 1, 19, 20, frame.len() - 1] {
        let mut peer = Peer::dial(victim.addr());
        let begin = Instant::now();
        peer.raw(&frame[..len]);
        cut_off(&mut peer);
        assert!(begin.elapsed() >= STARTUP / 2, "after {len} bytes: {:?}", begin.elapsed());
        assert!(begin.elapsed() < PATIENCE / 2, "after {len} bytes: {:?}", begin.elapsed());
    }
    assert!(victim.listener().incoming().next().is_none(), "the program was bothered");
    victim.survives();
}

/// A byte now and then does not buy more time.
#[test]
fn a_slow_request() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    let begin = Instant::now();
    for byte in request() {
        peer.raw(&[byte]);
        if peer.hear_for(Duration::from_millis(60)) != Heard::Silence {
            break;
        }
    }
    assert!(begin.elapsed() < 5 * STARTUP, "{:?}", begin.elapsed());
    victim.survives();
}

/// A program may take longer than a peer: the deadline is the peer's. And a peer that says nothing behind the Reply is a
/// connection like any other.
#[test]
fn silence_behind_the_request_is_not_the_peers_fault() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    peer.request(Way::default());
    let incoming = victim.listener().incoming().wait(Some(PATIENCE)).unwrap();
    assert_eq!(peer.hear_for(2 * STARTUP), Heard::Silence);
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    peer.established(Way::default());
    assert_eq!(peer.hear_for(2 * STARTUP), Heard::Silence, "a responder is silent (RFC 5044 §7.1.2)");
    assert_eq!(pair.qp().state(), State::ReadyToSend);
    pair.disconnect();
    assert_eq!(peer.hear(), Heard::End);
    peer.finish();
    assert!(pair.wait_closed(PATIENCE));
    victim.survives();
}

/// A program has six times as long as a peer. Then the peer is rejected instead of waiting forever.
#[test]
fn a_program_that_never_decides() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    let begin = Instant::now();
    peer.request(Way::default());
    let incoming = victim.listener().incoming().wait(Some(PATIENCE)).unwrap();
    rejected(&mut peer);
    assert!(begin.elapsed() >= 6 * STARTUP, "{:?}", begin.elapsed());
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    let error = pair.wait_connected(PATIENCE).unwrap_err();
    assert!(matches!(*error, ConnectError::Closed), "{error}");
    victim.survives();
}

/// The victim has sent a Reply that rejects, and closed.
fn rejected(peer: &mut Peer) {
    let reply = peer.hear_startup();
    let Ok(Parse::Done((reply, _))) = Startup::parse_reply(&reply) else { panic!("{reply:?}") };
    assert_eq!(reply.role, Role::Reply { rejected: true });
    assert_eq!(peer.hear(), Heard::End);
}

/// A program that notes who it is told of.
#[derive(Debug)]
struct Program {
    channel: Arc<EventChannel<Incoming>>,
    told: Mutex<Vec<SocketAddr>>,
}

impl Program {
    fn new() -> Arc<Self> {
        Arc::new(Self { channel: EventChannel::new().unwrap(), told: Mutex::default() })
    }

    /// Has it listen, and returns at which address.
    fn listen(self: &Arc<Self>, victim: &Victim, backlog: usize) -> (Listening, SocketAddr) {
        let program: Arc<dyn Watcher<Incoming>> = Arc::<Self>::clone(self);
        let at = "127.0.0.1:0".parse().unwrap();
        let listening = victim.engine.listen_and_tell(at, program, backlog).unwrap();
        let at = listening.local_addr().unwrap();
        (listening, at)
    }

    /// Waits until it is told of this peer.
    fn await_request(&self, peer: &Peer) {
        let peer = peer.stream.local_addr().unwrap();
        until(|| self.told.lock().unwrap().contains(&peer));
    }
}

impl Watcher<Incoming> for Program {
    fn tell(&self, incoming: Incoming) {
        let peer = incoming.peer();
        self.channel.tell(incoming);
        self.told.lock().unwrap().push(peer);
    }

    fn withdraw(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        self.channel.withdraw(is_gone);
    }
}

/// A program that does not ask for its peers: as many wait as its backlog says, the latest, and the others are rejected.
#[test]
fn a_program_that_does_not_ask() {
    const BACKLOG: usize = 8;
    let victim = Victim::new();
    let program = Program::new();
    let (_listening, at) = program.listen(&victim, BACKLOG);
    let mut peers = Vec::new();
    for _ in 0..3 * BACKLOG {
        let mut peer = Peer::dial(at);
        peer.request(Way::default());
        program.await_request(&peer);
        peers.push(peer);
    }
    for peer in &mut peers[..2 * BACKLOG] {
        rejected(peer);
    }
    for peer in &peers[2 * BACKLOG..] {
        let incoming = program.channel.next().expect("it waits");
        assert_eq!(incoming.peer(), peer.stream.local_addr().unwrap(), "in order of arrival");
    }
    assert!(program.channel.next().is_none(), "what was rejected is forgotten");
    victim.survives();
}

/// Waits until this is so.
fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

/// Peers that send a Request and leave are not kept for the program.
#[test]
fn peers_that_leave_are_forgotten() {
    let victim = Victim::new();
    let program = Program::new();
    let (_listening, at) = program.listen(&victim, 100);
    for _ in 0..20 {
        let mut peer = Peer::dial(at);
        peer.request(Way::default());
        peer.reset();
    }
    let mut peer = Peer::dial(at);
    peer.request(Way::default());
    program.await_request(&peer);
    // What the lane counts is as new as its last turn.
    for _ in 0..2 {
        let (done, turn) = std::sync::mpsc::channel();
        victim.engine.call_at(Instant::now(), move || done.send(()).unwrap()).unwrap();
        turn.recv_timeout(PATIENCE).unwrap();
    }
    until(|| victim.engine.steering().load().iter().map(|lane| lane.making).sum::<usize>() == 1);
    assert_eq!(program.channel.next().unwrap().peer(), peer.stream.local_addr().unwrap());
    assert!(program.channel.next().is_none());
    victim.survives();
}

/// Linux siw promises that its program speaks first, or says nothing of it (revision 1), and connects for programs that do not.
/// It is spoken to all the same, but not before it had time to read the Reply: more than that behind it, and siw gives up.
#[test]
fn who_agreed_to_no_rtr_and_says_nothing_is_spoken_to() {
    for revision in [Revision::Two(Some(SPEAKS_FIRST)), Revision::Two(None), Revision::One] {
        let victim = Victim::new();
        let mut attacked = victim.attacked_by(Way { revision, ..Way::default() }, 1);
        let begin = Instant::now();
        attacked.post(7, SEND, victim.open.sge(0, 8));
        let heard = attacked.peer.hear();
        assert!(begin.elapsed() > Duration::from_millis(300), "{revision:?}: after {:?}", begin.elapsed());
        assert!(
            matches!(&heard, Heard::Message(Header::Send(send), payload, _) if send.msn == 1 && payload.len() == 8),
            "{revision:?}: {heard:?}"
        );
        assert_eq!(attacked.one().wr_id, 7);
        // What it says later is heard as ever.
        attacked.goes_on(1);
        victim.survives();
    }
}

/// Whoever agreed to an RTR owes one, and who wants nothing but the RFCs waits for ever (RFC 5044 §7.1.2, RFC 6581 §9.2).
#[test]
fn who_owes_an_rtr_is_not_spoken_to() {
    let strict = Config { private: false, ..Config::default() };
    let speaks_first = Revision::Two(Some(SPEAKS_FIRST));
    for (config, revision) in [(Config::default(), Way::default().revision), (strict, speaks_first)] {
        let victim = Victim::with(config);
        let mut attacked = victim.attacked_by(Way { revision, ..Way::default() }, 0);
        attacked.post(7, SEND, victim.open.sge(0, 8));
        assert_eq!(attacked.peer.hear_for(Duration::from_millis(1500)), Heard::Silence, "{revision:?}");
        attacked.peer.open();
        let heard = attacked.peer.hear();
        assert!(matches!(&heard, Heard::Message(Header::Send(_), _, _)), "{revision:?}: {heard:?}");
    }
}

/// Many at once that say nothing: others still get in.
#[test]
fn many_silent_peers() {
    let victim = Victim::with(Config { startup: Duration::from_secs(1), ..Config::default() });
    let mut silent: Vec<_> = (0..200).map(|_| Peer::dial(victim.addr())).collect();
    let begin = Instant::now();
    victim.attacked().goes_on(1);
    assert!(begin.elapsed() < Duration::from_secs(1), "it waited for those who say nothing");
    for peer in &mut silent {
        cut_off(peer);
    }
    victim.survives();
}

// --- A peer that is dialled ---

/// The victim dials, and the peer does something.
fn dialled(victim: &Victim, does: impl FnOnce(&TcpListener)) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    let to = listener.local_addr().unwrap();
    victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
    does(&listener);
    let error = pair.wait_connected(PATIENCE).expect_err("there is no connection");
    assert!(pair.wait_closed(PATIENCE));
    drop(pair);
    std::sync::Arc::into_inner(error).unwrap_or(ConnectError::Closed)
}

#[test]
fn replies_that_are_wrong() {
    let victim = Victim::new();
    let reply = || startup(Role::Reply { rejected: false }, Way::default(), b"peer");
    let bent: [(&str, Bend); 4] = [
        ("key", |reply| reply[15] ^= 1),
        ("a Request", |reply| reply[8..11].copy_from_slice(b"Req")),
        ("revision 3", |reply| reply[17] = 3),
        ("HTTP", |reply| *reply = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    for (name, bend) in bent {
        let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
        let mut peer = Peer::accepts(&listener);
        let mut frame = reply();
        bend(&mut frame);
        peer.raw(&frame);
        let error = pair.wait_connected(PATIENCE).expect_err(name);
        assert!(matches!(&*error, ConnectError::Startup(StartupError::Malformed(_))), "{name}: {error}");
        cut_off(&mut peer);
    }
    victim.survives();
}

/// A peer that closes at the Request of revision 2 is dialled again, with revision 1 (RFC 6581 §10), and not a third time.
#[test]
fn a_peer_that_closes_at_the_request() {
    let victim = Victim::new();
    let error = dialled(&victim, |listener| {
        for _ in 0..2 {
            drop(Peer::accepts(listener));
        }
    });
    assert!(matches!(error, ConnectError::Closed | ConnectError::System(_)), "{error}");
    victim.survives();
}

#[test]
fn silence_instead_of_a_reply() {
    let victim = Victim::with(hasty());
    for len in [0, 1, 19, 27] {
        let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let begin = Instant::now();
        victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
        let mut peer = Peer::accepts(&listener);
        peer.raw(&startup(Role::Reply { rejected: false }, Way::default(), b"peer")[..len]);
        let error = pair.wait_connected(PATIENCE).unwrap_err();
        assert!(matches!(*error, ConnectError::TimedOut), "{error}");
        assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
        cut_off(&mut peer);
    }
    victim.survives();
}

/// RFC 6581 §8 and §9: an initiator that cannot agree says why, and closes. 2/0/05: more Reads than it can hold; 2/0/06:
/// no RTR in common.
#[test]
fn replies_that_cannot_be_agreed_to() {
    let victim = Victim::new();
    let replies = [
        (Enhanced { ord: 10_000, ..ENHANCED }, Cause::Mpa(MpaFault::InsufficientIrd)),
        (Enhanced { rtr: Some(RtrSet::SEND), ..ENHANCED }, Cause::Mpa(MpaFault::NoRtr)),
        (Enhanced { rtr: Some(RtrSet::empty()), ..ENHANCED }, Cause::Mpa(MpaFault::NoRtr)),
    ];
    for (enhanced, cause) in replies {
        let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
        let mut peer =
            Peer::answer(&listener, Way { revision: Revision::Two(Some(enhanced)), ..Way::default() });
        assert_eq!(peer.hear_terminate().cause, cause);
        let error = pair.wait_connected(PATIENCE).unwrap_err();
        assert!(matches!(&*error, ConnectError::Startup(_)), "{error}");
    }
    victim.survives();
}

/// Garbage behind the Reply, in the same segment: the stream has begun, and ends with the Terminate that is due.
#[test]
fn garbage_behind_the_reply() {
    let victim = Victim::new();
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
    let mut peer = Peer::accepts(&listener);
    let mut frame = startup(Role::Reply { rejected: false }, Way::default(), b"peer");
    frame.extend([0; 64]);
    peer.raw(&frame);
    peer.begins(Way::default());
    assert_eq!(peer.hear_terminate().cause, Cause::Mpa(MpaFault::Length));
    peer.finish();
    assert!(pair.wait_closed(PATIENCE));
    assert!(pair.qp().fault().is_some());
    victim.survives();
}

/// A stream to a peer that was dialled is as safe as any other.
#[test]
fn a_peer_that_was_dialled_breaks_a_rule() {
    let victim = Victim::new();
    let mut attacked = victim.dials(Completes::WhenSent, Way::default());
    let header = crate::common::write(victim.foreign.tag, victim.foreign.addr);
    let fpdu = attacked.peer.send(&header, &[0xee; 64]);
    attacked.terminated_for(Cause::TaggedBuffer(ironwarp_wire::TaggedBuffer::Stream), &fpdu);
    victim.untouched();
    victim.survives();
}
