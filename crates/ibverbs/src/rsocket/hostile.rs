//! Peers that lie: each sends what no rsocket of ours would, and the connection must end with EPROTO.
#![expect(unsafe_code, reason = "calls of the C ABI")]

use super::data::rrecv;
use super::names::rgetsockname;
use super::setup::{raccept, rbind, rlisten, rsocket};
use super::wire::{Hello, Message};
use super::{close::rclose, engine};
use ironwarp_engine::{
    CompletionQueue, ConnectOptions, ConnectionEvent, QueuePair, QueuePairAttributes, Watcher, What,
};
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Data, Operation, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::ffi::c_int;
use std::ptr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// A queue pair of the adapter, connected to an rsocket, that sends whatever it is told to.
struct Liar {
    pair: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    /// What the rsocket said with the connection.
    theirs: Hello,
}

#[derive(Debug)]
struct Forward(Mutex<Sender<What>>);

impl Watcher<ConnectionEvent> for Forward {
    fn tell(&self, event: ConnectionEvent) {
        let _ = self.0.lock().unwrap().send(event.what);
    }
}

impl Liar {
    fn connect(port: u16) -> Self {
        let engine = engine().unwrap();
        let cq = engine.create_cq(1024).unwrap();
        let (sender, news) = channel();
        let pair = engine.create_qp(QueuePairAttributes {
            send_depth: 512,
            completes: Completes::WhenAcknowledged,
            receives: Receives::Own(16),
            events: Some(Arc::new(Forward(Mutex::new(sender)))),
            ..QueuePairAttributes::new(Domain::default(), &cq)
        });
        let pair = pair.unwrap();
        let hello = Hello { ring: Tag(1), len: 4096, messages: 16, mappings: 4 };
        let options = ConnectOptions { private_data: hello.to_bytes(), ..ConnectOptions::default() };
        engine.connect(&pair, ([127, 0, 0, 1], port).into(), &options).unwrap();
        match news.recv().unwrap() {
            What::Connected(established) => {
                let theirs = Hello::from_bytes(&established.private_data).unwrap();
                Self { pair, cq, theirs }
            }
            other => panic!("not connected: {other:?}"),
        }
    }

    /// Writes to the peer's ring, and says that it was `claimed` bytes.
    fn write(&self, offset: u64, bytes: &[u8], claimed: u32) {
        let place = Place { tag: self.theirs.ring, offset };
        let request = WorkRequest::new(0, Operation::Write(place), Data::Inline(bytes.into()));
        self.pair.post_send(vec![WorkRequest { immediate: Some(claimed), ..request }]).unwrap();
    }

    /// Waits until the peer's adapter has delivered this number of requests.
    fn wait_for(&self, requests: usize) {
        let mut done = 0;
        while done < requests {
            done += self.cq.poll(requests, |_| ()).unwrap();
            std::thread::yield_now();
        }
    }

    fn say(&self, bytes: &[u8]) {
        let send = Operation::Send { invalidate: None };
        // Refused once the rsocket has cut the connection.
        let _ = self.pair.post_send(vec![WorkRequest::new(0, send, Data::Inline(bytes.into()))]);
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// An address of IPv4, as C has it.
fn local() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().unwrap(),
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

/// What a program that receives from such a peer is told in the end: EPROTO, or, if the lie was believed, how many bytes it
/// got.
fn told(lie: impl FnOnce(&Liar)) -> Result<usize, c_int> {
    let listener = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    let mut at = local();
    let mut len = libc::socklen_t::try_from(size_of_val(&at)).unwrap();
    let at = ptr::from_mut(&mut at).cast::<libc::sockaddr>();
    // SAFETY: an address that is as long as is said, and room for one.
    unsafe {
        assert_eq!((rbind(listener, at, len), rlisten(listener, 1)), (0, 0));
        assert_eq!(rgetsockname(listener, at, &raw mut len), 0);
    }
    // SAFETY: it was just written there.
    let port = u16::from_be(unsafe { (*at.cast::<libc::sockaddr_in>()).sin_port });
    let liar = Liar::connect(port);
    // SAFETY: no address is wanted.
    let socket = unsafe { raccept(listener, ptr::null_mut(), ptr::null_mut()) };
    assert!(socket >= 0);
    lie(&liar);
    liar.say(&Message::End.to_bytes());
    let (mut buffer, mut all) = ([0_u8; 1024], 0);
    let outcome = loop {
        // SAFETY: a buffer of ours.
        match unsafe { rrecv(socket, buffer.as_mut_ptr().cast(), buffer.len(), 0) } {
            -1 => break Err(errno()),
            0 => break Ok(all),
            got => all += got.unsigned_abs(),
        }
    };
    assert_eq!((rclose(socket), rclose(listener)), (0, 0));
    outcome
}

#[test]
fn an_honest_peer_is_heard() {
    assert_eq!(told(|peer| peer.write(0, b"hello", 5)), Ok(5));
}

/// Whoever believed the claim would hand bytes to the program that the peer never sent.
#[test]
fn data_must_be_as_long_as_the_peer_says() {
    assert_eq!(told(|peer| peer.write(0, b"hello", 4000)), Err(libc::EPROTO));
    assert_eq!(told(|peer| peer.write(0, b"hello", 1)), Err(libc::EPROTO));
    assert_eq!(told(|peer| peer.write(0, b"hello", u32::MAX)), Err(libc::EPROTO));
}

/// Such messages use no room, so that nothing would bound their number.
#[test]
fn data_must_not_be_empty() {
    assert_eq!(told(|peer| peer.write(0, b"", 0)), Err(libc::EPROTO));
}

#[test]
fn data_must_fit_into_the_ring() {
    let flood = |peer: &Liar| {
        let (piece, ring) = (vec![7; 2048], u64::from(peer.theirs.len));
        let places = (0..=ring).step_by(piece.len());
        places.clone().for_each(|at| peer.write(at % ring, &piece, 2048));
        peer.wait_for(places.count()); // else the program might read meanwhile, and make room
    };
    assert_eq!(told(flood), Err(libc::EPROTO));
}

#[test]
fn credit_must_be_for_what_was_sent_and_must_tell_something_new() {
    let credit = |bytes, messages| told(|peer| peer.say(&Message::Credit { bytes, messages }.to_bytes()));
    assert_eq!(credit(1, 0), Err(libc::EPROTO));
    assert_eq!(credit(0, 1), Err(libc::EPROTO));
    assert_eq!(credit(u64::MAX, u64::MAX), Err(libc::EPROTO));
    assert_eq!(credit(0, 0), Err(libc::EPROTO));
}

#[test]
fn mappings_must_be_possible() {
    let mapped =
        |offset, len| told(|peer| peer.say(&Message::Mapped { offset, len, tag: Tag(5) }.to_bytes()));
    assert_eq!(mapped(0, 1), Err(libc::EPROTO), "none are taken note of by default");
    assert_eq!(mapped(u64::MAX, u64::MAX), Err(libc::EPROTO));
    assert_eq!(told(|peer| peer.say(&Message::Unmapped { tag: Tag(5) }.to_bytes())), Err(libc::EPROTO));
}

#[test]
fn messages_must_be_known_and_whole() {
    assert_eq!(told(|peer| peer.say(&[0xff; 32])), Err(libc::EPROTO));
    assert_eq!(told(|peer| peer.say(b"short")), Err(libc::EPROTO));
}
