//! The first bytes of a connection: garbage, other protocols, and silence in every half-open state.

use crate::common::TIMEOUT;
use crate::common::peer::{ENHANCED, Peer, Received, StartupSettings, startup};
use crate::common::victim::Victim;
use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectError, ConnectOptions, EventChannel, EventSink, Incoming, Listening};
use ironwarp_rnic::connect::StartupError;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::Operation;
use ironwarp_testkit::wait::until;
use ironwarp_wire::mpa::{Enhanced, Revision, Role, RtrSet, Startup};
use ironwarp_wire::{Cause, Header, MpaFault, Parse};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Corrupts a frame.
type Bend = fn(&mut Vec<u8>);

const STARTUP: Duration = Duration::from_millis(300);

const SEND: Operation = Operation::Send { invalidate: None };

/// Revision 2 without RTR: the initiator's program sends first (RFC 6581 §9.2).
const SPEAKS_FIRST: Enhanced = Enhanced { rtr: None, ..ENHANCED };

fn hasty() -> Config {
    Config::default().startup(STARTUP)
}

fn request() -> Vec<u8> {
    startup(Role::Request, StartupSettings::default(), b"peer")
}

/// Checks that the victim closes the connection without a message: there is no stream yet that could carry
/// one (RFC 5044 §7.1.2).
fn cut_off(peer: &mut Peer) {
    let received = peer.receive_next();
    assert!(matches!(received, Received::End | Received::Reset), "{received:?}");
}

// --- A peer that dials ---

/// Data that does not begin like MPA is rejected by its first byte.
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
        peer.send_bytes(bytes);
        cut_off(&mut peer);
    }
    assert!(victim.listener().incoming().try_next().is_none(), "the program saw the connection");
    victim.assert_survives();
}

/// Requests with a single error.
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
        peer.send_bytes(&frame);
        let received = peer.receive_next();
        assert!(matches!(received, Received::End | Received::Reset), "{name}: {received:?}");
    }
    assert!(victim.listener().incoming().try_next().is_none(), "the program saw the connection");
    victim.assert_survives();
}

/// RFC 5044 §7.1.2: an initiator must wait for the Reply. If it does not, it is not served, whether this is
/// noticed at once or while the program decides.
#[test]
fn bytes_before_the_reply() {
    let victim = Victim::new();
    let mut peer = Peer::dial(victim.addr());
    let mut frame = request();
    frame.push(0);
    peer.send_bytes(&frame);
    cut_off(&mut peer);
    let mut peer = Peer::dial(victim.addr());
    peer.request(StartupSettings::default());
    let incoming = victim.listener().incoming().wait(Some(TIMEOUT)).unwrap();
    peer.send_bytes(b"too early");
    cut_off(&mut peer);
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    let error = pair.wait_connected(TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::Closed), "{error}");
    assert_eq!(pair.qp().state(), State::Init);
    victim.assert_survives();
}

/// The peer leaves while the program decides.
#[test]
fn a_peer_that_leaves_before_the_reply() {
    let victim = Victim::new();
    for reset in [false, true] {
        let mut peer = Peer::dial(victim.addr());
        peer.request(StartupSettings::default());
        let incoming = victim.listener().incoming().wait(Some(TIMEOUT)).unwrap();
        if reset {
            peer.reset();
        } else {
            drop(peer);
        }
        let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
        // Whichever the victim sees first: it never gets a stream that works, and never hangs.
        incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
        match pair.wait_connected(TIMEOUT) {
            Ok(_) => assert!(pair.wait_closed(TIMEOUT)),
            Err(error) => assert!(!matches!(error, ConnectError::TimedOut), "{error}"),
        }
    }
    victim.assert_survives();
}

/// A silent peer is disconnected after [`Config::startup`], in each state that waits for it.
#[test]
fn silence_before_the_request() {
    let victim = Victim::with(hasty());
    let frame = request();
    for len in [0, 1, 19, 20, frame.len() - 1] {
        let mut peer = Peer::dial(victim.addr());
        let begin = Instant::now();
        peer.send_bytes(&frame[..len]);
        cut_off(&mut peer);
        assert!(begin.elapsed() >= STARTUP / 2, "after {len} bytes: {:?}", begin.elapsed());
        assert!(begin.elapsed() < TIMEOUT / 2, "after {len} bytes: {:?}", begin.elapsed());
    }
    assert!(victim.listener().incoming().try_next().is_none(), "the program saw the connection");
    victim.assert_survives();
}

/// Sending a byte now and then does not extend the time limit.
#[test]
fn a_slow_request() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    let begin = Instant::now();
    for byte in request() {
        peer.send_bytes(&[byte]);
        if peer.receive_within(Duration::from_millis(60)) != Received::Silence {
            break;
        }
    }
    assert!(begin.elapsed() < 5 * STARTUP, "{:?}", begin.elapsed());
    victim.assert_survives();
}

/// The time limit applies to the peer, not to the program, which may take longer. A peer that is silent after
/// the Reply is a normal connection.
#[test]
fn a_slow_program_does_not_time_out_its_peer() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    peer.request(StartupSettings::default());
    let incoming = victim.listener().incoming().wait(Some(TIMEOUT)).unwrap();
    assert_eq!(peer.receive_within(2 * STARTUP), Received::Silence);
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    peer.await_reply(StartupSettings::default());
    assert_eq!(
        peer.receive_within(2 * STARTUP),
        Received::Silence,
        "a responder is silent (RFC 5044 §7.1.2)"
    );
    assert_eq!(pair.qp().state(), State::ReadyToSend);
    pair.disconnect();
    assert_eq!(peer.receive_next(), Received::End);
    peer.finish();
    assert!(pair.wait_closed(TIMEOUT));
    victim.assert_survives();
}

/// The program has six times as long as a peer. After that, the peer is rejected instead of waiting forever.
#[test]
fn a_program_that_never_decides() {
    let victim = Victim::with(hasty());
    let mut peer = Peer::dial(victim.addr());
    let begin = Instant::now();
    peer.request(StartupSettings::default());
    let incoming = victim.listener().incoming().wait(Some(TIMEOUT)).unwrap();
    rejected(&mut peer);
    assert!(begin.elapsed() >= 6 * STARTUP, "{:?}", begin.elapsed());
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
    let error = pair.wait_connected(TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::Closed), "{error}");
    victim.assert_survives();
}

/// Checks that the victim has rejected the connection and closed it.
fn rejected(peer: &mut Peer) {
    let reply = peer.receive_startup();
    let Ok(Parse::Done((reply, _))) = Startup::parse_reply(&reply) else { panic!("{reply:?}") };
    assert_eq!(reply.role, Role::Reply { rejected: true });
    assert_eq!(peer.receive_next(), Received::End);
}

/// A program that records the peers reported to it.
#[derive(Debug)]
struct Program {
    channel: Arc<EventChannel<Incoming>>,
    told: Mutex<Vec<SocketAddr>>,
}

impl Program {
    fn new() -> Arc<Self> {
        Arc::new(Self { channel: EventChannel::new().unwrap(), told: Mutex::default() })
    }

    /// Starts listening, and returns the address.
    fn listen(self: &Arc<Self>, victim: &Victim, backlog: usize) -> (Listening, SocketAddr) {
        let program: Arc<dyn EventSink<Incoming>> = Arc::<Self>::clone(self);
        let at = "127.0.0.1:0".parse().unwrap();
        let listening = victim.engine.listen_with(at, program, backlog).unwrap();
        let at = listening.local_addr().unwrap();
        (listening, at)
    }

    /// Waits until this peer is reported.
    fn await_request(&self, peer: &Peer) {
        let peer = peer.stream.local_addr().unwrap();
        until(|| self.told.lock().unwrap().contains(&peer));
    }
}

impl EventSink<Incoming> for Program {
    fn send(&self, incoming: Incoming) {
        let peer = incoming.peer();
        self.channel.send(incoming);
        self.told.lock().unwrap().push(peer);
    }

    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        self.channel.revoke(is_gone);
    }
}

/// A program that does not accept its peers: the latest of them wait, up to the backlog, and the others are
/// rejected.
#[test]
fn a_program_that_does_not_accept_its_peers() {
    const BACKLOG: usize = 8;
    let victim = Victim::new();
    let program = Program::new();
    let (_listening, at) = program.listen(&victim, BACKLOG);
    let mut peers = Vec::new();
    for _ in 0..3 * BACKLOG {
        let mut peer = Peer::dial(at);
        peer.request(StartupSettings::default());
        program.await_request(&peer);
        peers.push(peer);
    }
    for peer in &mut peers[..2 * BACKLOG] {
        rejected(peer);
    }
    for peer in &peers[2 * BACKLOG..] {
        let incoming = program.channel.try_next().expect("a waiting peer");
        assert_eq!(incoming.peer(), peer.stream.local_addr().unwrap(), "in order of arrival");
    }
    assert!(program.channel.try_next().is_none(), "rejected peers are not reported");
    victim.assert_survives();
}

/// Peers that send a Request and leave are not kept for the program.
#[test]
fn peers_that_leave_are_forgotten() {
    let victim = Victim::new();
    let program = Program::new();
    let (_listening, at) = program.listen(&victim, 100);
    for _ in 0..20 {
        let mut peer = Peer::dial(at);
        peer.request(StartupSettings::default());
        peer.reset();
    }
    let mut peer = Peer::dial(at);
    peer.request(StartupSettings::default());
    program.await_request(&peer);
    // The counters of a lane are updated once per turn.
    for _ in 0..2 {
        let (done, turn) = std::sync::mpsc::channel();
        victim.engine.call_at(Instant::now(), move || done.send(()).unwrap()).unwrap();
        turn.recv_timeout(TIMEOUT).unwrap();
    }
    until(|| victim.engine.steering().load().iter().map(|lane| lane.handshakes).sum::<usize>() == 1);
    assert_eq!(program.channel.try_next().unwrap().peer(), peer.stream.local_addr().unwrap());
    assert!(program.channel.try_next().is_none());
    victim.assert_survives();
}

/// Linux siw announces that its program sends first, or announces nothing (revision 1), and also connects for
/// programs that do not. This end sends first in that case, but not before siw had time to read the Reply:
/// siw fails if other data follows it directly.
#[test]
fn a_silent_peer_without_rtr_is_sent_to_after_a_while() {
    for revision in [Revision::Two(Some(SPEAKS_FIRST)), Revision::Two(None), Revision::One] {
        let victim = Victim::new();
        let mut attacked =
            victim.connect_peer_with(StartupSettings { revision, ..StartupSettings::default() }, 1);
        let begin = Instant::now();
        attacked.post(7, SEND, victim.open.sge(0, 8));
        let received = attacked.peer.receive_next();
        assert!(begin.elapsed() > Duration::from_millis(300), "{revision:?}: after {:?}", begin.elapsed());
        assert!(
            matches!(&received, Received::Message(Header::Send(send), payload, _) if send.msn == 1 && payload.len() == 8),
            "{revision:?}: {received:?}"
        );
        assert_eq!(attacked.one().wr_id, 7);
        // Messages that it sends later are received as usual.
        attacked.assert_works(1);
        victim.assert_survives();
    }
}

/// A peer that agreed to an RTR must send one, and without private extensions this end waits forever (RFC
/// 5044 §7.1.2, RFC 6581 §9.2).
#[test]
fn a_peer_that_owes_an_rtr_is_not_sent_to_first() {
    let strict = Config::default().private(false);
    let speaks_first = Revision::Two(Some(SPEAKS_FIRST));
    for (config, revision) in
        [(Config::default(), StartupSettings::default().revision), (strict, speaks_first)]
    {
        let victim = Victim::with(config);
        let mut attacked =
            victim.connect_peer_with(StartupSettings { revision, ..StartupSettings::default() }, 0);
        attacked.post(7, SEND, victim.open.sge(0, 8));
        assert_eq!(
            attacked.peer.receive_within(Duration::from_millis(1500)),
            Received::Silence,
            "{revision:?}"
        );
        attacked.peer.open();
        let received = attacked.peer.receive_next();
        assert!(matches!(&received, Received::Message(Header::Send(_), _, _)), "{revision:?}: {received:?}");
    }
}

/// Many silent peers at once do not keep others out.
#[test]
fn many_silent_peers() {
    let victim = Victim::with(Config::default().startup(Duration::from_secs(1)));
    let mut silent: Vec<_> = (0..200).map(|_| Peer::dial(victim.addr())).collect();
    let begin = Instant::now();
    victim.connect_peer().assert_works(1);
    assert!(begin.elapsed() < Duration::from_secs(1), "it waited for the silent peers");
    for peer in &mut silent {
        cut_off(peer);
    }
    victim.assert_survives();
}

// --- A peer that is dialled ---

/// Lets the victim dial a peer that does something wrong, and returns the error.
fn dialled(victim: &Victim, does: impl FnOnce(&TcpListener)) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    let to = listener.local_addr().unwrap();
    victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
    does(&listener);
    let error = pair.wait_connected(TIMEOUT).expect_err("connecting must fail");
    assert!(pair.wait_closed(TIMEOUT));
    error
}

#[test]
fn replies_that_are_wrong() {
    let victim = Victim::new();
    let reply = || startup(Role::Reply { rejected: false }, StartupSettings::default(), b"peer");
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
        let mut peer = Peer::accept(&listener);
        let mut frame = reply();
        bend(&mut frame);
        peer.send_bytes(&frame);
        let error = pair.wait_connected(TIMEOUT).expect_err(name);
        assert!(matches!(&error, ConnectError::Startup(StartupError::Malformed(_))), "{name}: {error}");
        cut_off(&mut peer);
    }
    victim.assert_survives();
}

/// A peer that closes the connection on a Request of revision 2 is dialled again with revision 1 (RFC 6581
/// §10), and not a third time.
#[test]
fn a_peer_that_closes_at_the_request() {
    let victim = Victim::new();
    let error = dialled(&victim, |listener| {
        for _ in 0..2 {
            drop(Peer::accept(listener));
        }
    });
    assert!(matches!(error, ConnectError::Closed | ConnectError::System(_)), "{error}");
    victim.assert_survives();
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
        let mut peer = Peer::accept(&listener);
        peer.send_bytes(
            &startup(Role::Reply { rejected: false }, StartupSettings::default(), b"peer")[..len],
        );
        let error = pair.wait_connected(TIMEOUT).unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut), "{error}");
        assert!(begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
        cut_off(&mut peer);
    }
    victim.assert_survives();
}

/// RFC 6581 §8 and §9: an initiator that cannot agree sends the reason and closes. 2/0/05: more Reads than it
/// can hold; 2/0/06: no RTR in common.
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
        let mut peer = Peer::answer(
            &listener,
            StartupSettings { revision: Revision::Two(Some(enhanced)), ..StartupSettings::default() },
        );
        assert_eq!(peer.receive_terminate().cause, cause);
        let error = pair.wait_connected(TIMEOUT).unwrap_err();
        assert!(matches!(&error, ConnectError::Startup(_)), "{error}");
    }
    victim.assert_survives();
}

/// Garbage after the Reply, in the same TCP segment: the stream has begun, and ends with the corresponding
/// Terminate.
#[test]
fn garbage_after_the_reply() {
    let victim = Victim::new();
    let (pair, _) = victim.queue_pair(Completes::WhenSent, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    victim.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    let mut frame = startup(Role::Reply { rejected: false }, StartupSettings::default(), b"peer");
    frame.extend([0; 64]);
    peer.send_bytes(&frame);
    peer.start_stream(StartupSettings::default());
    assert_eq!(peer.receive_terminate().cause, Cause::Mpa(MpaFault::Length));
    peer.finish();
    assert!(pair.wait_closed(TIMEOUT));
    assert!(pair.qp().error().is_some());
    victim.assert_survives();
}

/// A stream to a peer that was dialled is as safe as any other.
#[test]
fn a_peer_that_was_dialled_breaks_a_rule() {
    let victim = Victim::new();
    let mut attacked = victim.dial_peer(Completes::WhenSent, StartupSettings::default());
    let header = crate::common::write(victim.foreign.tag, victim.foreign.addr);
    let fpdu = attacked.peer.send(&header, &[0xee; 64]);
    attacked.assert_terminated(Cause::TaggedBuffer(ironwarp_wire::TaggedBuffer::Stream), &fpdu);
    victim.assert_untouched();
    victim.assert_survives();
}
