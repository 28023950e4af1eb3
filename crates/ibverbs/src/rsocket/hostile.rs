//! Tests with hostile peers: each sends messages that an rsocket never sends, and the connection must end with EPROTO.
#![expect(unsafe_code, reason = "calls of the C ABI")]

use super::adapter::engine;
use super::close::rclose;
use super::data::rrecv;
use super::names::rgetsockname;
use super::setup::{raccept, rbind, rlisten, rsocket};
use super::wire::{Hello, Message};
use ironwarp_engine::{
    CompletionQueue, ConnectOptions, ConnectionEvent, ConnectionEventKind, EventSink, QueuePair,
    QueuePairAttributes, QueuePairOptions,
};
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Data, Operation, WorkRequest};
use ironwarp_wire::{RemoteAddr, Tag};
use std::ffi::c_int;
use std::ptr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// A queue pair that is connected to an rsocket, and sends arbitrary messages.
struct HostilePeer {
    pair: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    /// The hello of the rsocket.
    theirs: Hello,
}

/// Sends connection events to a channel.
#[derive(Debug)]
struct Forward(Mutex<Sender<ConnectionEventKind>>);

impl EventSink<ConnectionEvent> for Forward {
    fn send(&self, event: ConnectionEvent) {
        let _ = self.0.lock().unwrap().send(event.kind);
    }
}

impl HostilePeer {
    /// Connects to an rsocket that listens on a local port.
    fn connect(port: u16) -> Self {
        let engine = engine().unwrap();
        let cq = engine.create_cq(1024).unwrap();
        let (sender, events_received) = channel();
        let attributes = QueuePairAttributes {
            send_depth: 512,
            completes: Completes::WhenAcknowledged,
            receives: Receives::Own(16),
            ..QueuePairAttributes::new(Domain::default(), &cq)
        };
        let events = Some(Arc::new(Forward(Mutex::new(sender))) as _);
        let options = QueuePairOptions { events, ..QueuePairOptions::default() };
        let pair = engine.create_qp_with(attributes, options).unwrap();
        let hello = Hello { ring: Tag(1), len: 4096, messages: 16, mappings: 4 };
        let options = ConnectOptions { private_data: hello.to_bytes(), ..ConnectOptions::default() };
        engine.connect(&pair, ([127, 0, 0, 1], port).into(), &options).unwrap();
        match events_received.recv().unwrap() {
            ConnectionEventKind::Connected(established) => {
                let theirs = Hello::from_bytes(&established.private_data).unwrap();
                Self { pair, cq, theirs }
            }
            other => panic!("not connected: {other:?}"),
        }
    }

    /// Writes to the ring of the rsocket, with `claimed` as the length in the immediate.
    fn write(&self, offset: u64, bytes: &[u8], claimed: u32) {
        let addr = RemoteAddr { tag: self.theirs.ring, offset };
        let request = WorkRequest::new(0, Operation::Write(addr), Data::Inline(bytes.into()));
        self.pair.post_send(vec![WorkRequest { immediate: Some(claimed), ..request }]).unwrap();
    }

    /// Waits until this number of requests has completed.
    fn wait_for(&self, requests: usize) {
        let mut done = 0;
        while done < requests {
            done += self.cq.poll(requests, |_| ()).unwrap();
            std::thread::yield_now();
        }
    }

    /// Sends a control message.
    fn send(&self, bytes: &[u8]) {
        let send = Operation::Send { invalidate: None };
        // Fails once the rsocket has ended the connection.
        let _ = self.pair.post_send(vec![WorkRequest::new(0, send, Data::Inline(bytes.into()))]);
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// The C address 127.0.0.1, with port 0.
fn loopback() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().unwrap(),
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

/// Runs an attack on an rsocket that receives until the end of the data. Returns the errno of the receive, or the total
/// number of bytes received.
fn outcome(attack: impl FnOnce(&HostilePeer)) -> Result<usize, c_int> {
    let listener = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    let mut at = loopback();
    let mut len = libc::socklen_t::try_from(size_of_val(&at)).unwrap();
    let at = ptr::from_mut(&mut at).cast::<libc::sockaddr>();
    // SAFETY: `at` points to a local address of `len` bytes.
    unsafe {
        assert_eq!((rbind(listener, at, len), rlisten(listener, 1)), (0, 0));
        assert_eq!(rgetsockname(listener, at, &raw mut len), 0);
    }
    // SAFETY: `at` points to a local IPv4 address.
    let port = u16::from_be(unsafe { (*at.cast::<libc::sockaddr_in>()).sin_port });
    let peer = HostilePeer::connect(port);
    // SAFETY: both pointers may be NULL.
    let socket = unsafe { raccept(listener, ptr::null_mut(), ptr::null_mut()) };
    assert!(socket >= 0);
    attack(&peer);
    peer.send(&Message::End.to_bytes());
    let (mut buffer, mut all) = ([0_u8; 1024], 0);
    let outcome = loop {
        // SAFETY: a local buffer of the given length.
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
fn honest_peer_is_accepted() {
    assert_eq!(outcome(|peer| peer.write(0, b"hello", 5)), Ok(5));
}

/// If the claim were believed, the program would get bytes that the peer never sent.
#[test]
fn data_length_must_match_the_claim() {
    assert_eq!(outcome(|peer| peer.write(0, b"hello", 4000)), Err(libc::EPROTO));
    assert_eq!(outcome(|peer| peer.write(0, b"hello", 1)), Err(libc::EPROTO));
    assert_eq!(outcome(|peer| peer.write(0, b"hello", u32::MAX)), Err(libc::EPROTO));
}

/// Empty messages use no room in the ring, so that nothing would limit their number.
#[test]
fn data_must_not_be_empty() {
    assert_eq!(outcome(|peer| peer.write(0, b"", 0)), Err(libc::EPROTO));
}

#[test]
fn data_must_fit_into_the_ring() {
    let flood = |peer: &HostilePeer| {
        let (piece, ring) = (vec![7; 2048], u64::from(peer.theirs.len));
        let places = (0..=ring).step_by(piece.len());
        places.clone().for_each(|at| peer.write(at % ring, &piece, 2048));
        peer.wait_for(places.count()); // the program reads only after that, so that it makes no room
    };
    assert_eq!(outcome(flood), Err(libc::EPROTO));
}

#[test]
fn credit_must_be_plausible_and_new() {
    let credit = |bytes, messages| outcome(|peer| peer.send(&Message::Credit { bytes, messages }.to_bytes()));
    assert_eq!(credit(1, 0), Err(libc::EPROTO));
    assert_eq!(credit(0, 1), Err(libc::EPROTO));
    assert_eq!(credit(u64::MAX, u64::MAX), Err(libc::EPROTO));
    assert_eq!(credit(0, 0), Err(libc::EPROTO));
}

#[test]
fn mappings_must_be_valid() {
    let mapped =
        |offset, len| outcome(|peer| peer.send(&Message::Mapped { offset, len, tag: Tag(5) }.to_bytes()));
    assert_eq!(mapped(0, 1), Err(libc::EPROTO), "no mapping is allowed by default");
    assert_eq!(mapped(u64::MAX, u64::MAX), Err(libc::EPROTO));
    assert_eq!(outcome(|peer| peer.send(&Message::Unmapped { tag: Tag(5) }.to_bytes())), Err(libc::EPROTO));
}

#[test]
fn messages_must_be_known_and_complete() {
    assert_eq!(outcome(|peer| peer.send(&[0xff; 32])), Err(libc::EPROTO));
    assert_eq!(outcome(|peer| peer.send(b"short")), Err(libc::EPROTO));
}
