//! A listener moves with its adapter: peers that connect meanwhile wait, and are accepted (requirement X2).
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::hand_over::{Failure, HandOverOptions, Owner, TakeOverOptions, TakenOver};
use ironwarp::prelude::*;
use ironwarp_engine::hand_over::{Refusal, Target, TargetOptions, take_over};
use ironwarp_testkit::native::SOON;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

/// Number of hand-overs.
const ROUNDS: usize = 20;
/// Number of clients that connect during each.
const CLIENTS: usize = 3;
/// Length of the part of the region that a client has.
const SLOT: usize = 64;
/// Maximum time for which a loop waits before it looks at something else.
const TURN: Duration = Duration::from_millis(1);

/// A server that receives one message of each client, and sends it back.
struct Server {
    adapter: Adapter,
    listener: Listener,
    cq: CompletionQueue,
    domain: ProtectionDomain,
    region: MemoryRegion,
    pairs: Mutex<Vec<QueuePair>>,
}

impl Server {
    fn start() -> Self {
        let adapter = Adapter::new().unwrap();
        let (cq, domain) = (adapter.completion_queue(256).unwrap(), adapter.protection_domain());
        let buffer = Buffer::builder().shareable().allocate((CLIENTS + 1) * SLOT).unwrap();
        let region = domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE).unwrap();
        let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { adapter, listener, cq, domain, region, pairs: Mutex::default() }
    }

    fn of(mut taken: TakenOver) -> Self {
        assert_eq!(taken.listeners.len(), 1);
        Self {
            listener: taken.listeners.remove(0),
            cq: taken.completion_queues.remove(0),
            domain: taken.protection_domains.remove(0),
            region: taken.regions.remove(0),
            pairs: Mutex::new(taken.queue_pairs),
            adapter: taken.adapter,
        }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Accepts the next client, if one is there soon. Returns whether there was one.
    fn accept(&self) -> bool {
        let Ok(incoming) = self.listener.accept(TURN) else { return false };
        let index = usize::from(incoming.private_data()[0]);
        let qp = self.domain.queue_pair(&self.cq).create().unwrap();
        qp.post_receive(index as u64, &[self.region.slice(index * SLOT..(index + 1) * SLOT).unwrap()])
            .unwrap();
        incoming.accept(&qp, &AcceptOptions::new()).unwrap();
        self.pairs.lock().unwrap().push(qp);
        true
    }

    /// Accepts clients and sends their messages back, until this number of clients was served.
    fn serve(&self, clients: usize) {
        let mut served = 0;
        while served < clients {
            self.accept();
            let Ok(completion) = self.cq.wait(TURN) else { continue };
            let received = completion.success().unwrap();
            let mut message = vec![0; received.byte_len as usize];
            self.region.read(usize::try_from(received.wr_id).unwrap() * SLOT, &mut message).unwrap();
            let pairs = self.pairs.lock().unwrap();
            let qp = pairs.iter().find(|qp| qp.id() == received.qp).unwrap();
            qp.post_send(WorkRequest::send_inline(0, &message).unsignaled()).unwrap();
            served += 1;
        }
    }
}

struct Client {
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

impl Client {
    /// Connects to the server.
    fn connect(server: SocketAddr, index: usize) -> Self {
        let adapter = Adapter::new().unwrap();
        let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
        let region = domain.register(Buffer::new(SLOT).unwrap(), Access::LOCAL_WRITE).unwrap();
        let qp = domain.queue_pair(&cq).create().unwrap();
        qp.post_receive(1, &[region.slice(..).unwrap()]).unwrap();
        let index = u8::try_from(index).unwrap();
        qp.connect(server, &ConnectOptions::new().private_data(&[index])).unwrap();
        Self { cq, qp, region }
    }

    /// Sends a message, and checks that it comes back.
    fn exchange(&self, message: &str) {
        self.qp.post_send(WorkRequest::send_inline(2, message.as_bytes()).unsignaled()).unwrap();
        let received = self.cq.wait(SOON).unwrap().success().unwrap();
        assert_eq!((received.wr_id, received.byte_len as usize), (1, message.len()));
        assert_eq!(&self.region.to_vec().unwrap()[..message.len()], message.as_bytes());
    }
}

/// Connects to the server, sends it a message, and checks that it comes back.
fn be_client(server: SocketAddr, index: usize, message: &str) {
    Client::connect(server, index).exchange(message);
}

fn channel() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

#[test]
fn clients_that_connect_during_a_hand_over_are_accepted() {
    let mut server = Server::start();
    let addr = server.addr();
    for round in 0..ROUNDS {
        let before = server;
        let (done, start) = (AtomicBool::new(false), Barrier::new(CLIENTS + 1));
        server = thread::scope(|scope| {
            for index in 0..CLIENTS {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    be_client(addr, index, &format!("round {round}, client {index}"));
                });
            }
            // A program decides on connections until its adapter has moved.
            let (here, there) = channel();
            let target = scope.spawn(move || Adapter::take_over(there, TakeOverOptions::new()));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        before.accept();
                    }
                });
                start.wait();
                let handed_over = before.adapter.hand_over(here, &HandOverOptions::new());
                done.store(true, Ordering::Release);
                handed_over.unwrap();
            });
            drop(before); // the socket of the listener is the target's
            let server = Server::of(target.join().unwrap().unwrap());
            assert_eq!(server.addr(), addr);
            server.serve(CLIENTS);
            server
        });
        thread::scope(|scope| {
            scope.spawn(|| be_client(addr, CLIENTS, &format!("round {round}, afterwards")));
            server.serve(1);
        });
        server.pairs.lock().unwrap().clear();
    }
}

/// A target that looks at the listener of the source while that is frozen, and then refuses.
struct Refusing<'a> {
    listener: &'a Listener,
    waiting: &'a Mutex<Option<TcpStream>>,
    client: &'a QueuePair,
}

impl Target for Refusing<'_> {
    type Active = ();

    fn copy(&mut self, _: &[u8], _: OwnedFd) -> Result<(), Refusal> {
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn load(&mut self, _: u16, _: &[u8]) -> Result<(), Refusal> {
        let addr = self.listener.local_addr().unwrap();
        // The kernel accepts both, and the source neither.
        *self.waiting.lock().unwrap() = Some(TcpStream::connect(addr).unwrap());
        self.client.start_connect(addr, &ConnectOptions::new().private_data(b"hello")).unwrap();
        assert!(self.listener.accept(Duration::from_millis(100)).is_err(), "accepted while frozen");
        Err(Refusal("not today".into()))
    }

    fn activate(self) {}

    fn discard(self) {}
}

#[test]
fn listeners_and_connections_that_are_not_taken_go_on_at_the_source() {
    let (server, adapter) = (Server::start(), Adapter::new().unwrap());
    let cq = adapter.completion_queue(16).unwrap();
    let client = adapter.protection_domain().queue_pair(&cq).create().unwrap();
    let connected = thread::scope(|scope| {
        let connecting = scope.spawn(|| Client::connect(server.addr(), 0));
        while !server.accept() {}
        connecting.join().unwrap()
    });
    let (waiting, (here, there)) = (Mutex::new(None), channel());
    let target = Refusing { listener: &server.listener, waiting: &waiting, client: &client };
    thread::scope(|scope| {
        scope.spawn(|| take_over(there, target, &TargetOptions::default()).map(|_| ()).unwrap_err());
        let error = server.adapter.hand_over(here, &HandOverOptions::new()).unwrap_err();
        assert!(matches!(&error.failure, Failure::Refused(reason) if reason.0 == "not today"), "{error}");
        assert_eq!(error.owner, Owner::Source);
    });
    thread::scope(|scope| {
        scope.spawn(|| connected.exchange("still here"));
        let incoming = server.listener.accept(SOON).unwrap();
        assert_eq!(incoming.private_data(), b"hello");
        let qp = server.domain.queue_pair(&server.cq).create().unwrap();
        incoming.accept(&qp, &AcceptOptions::new()).unwrap();
        client.wait_connected(SOON).unwrap();
        server.serve(1);
    });
}

#[test]
fn a_connection_that_waits_for_the_program_prevents_a_hand_over() {
    let (server, adapter) = (Server::start(), Adapter::new().unwrap());
    let cq = adapter.completion_queue(16).unwrap();
    let client = adapter.protection_domain().queue_pair(&cq).create().unwrap();
    client.start_connect(server.addr(), &ConnectOptions::new()).unwrap();
    let incoming = server.listener.accept(SOON).unwrap();
    let (here, there) = channel();
    let target = thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new()).map(|_| ()));
    let options = HandOverOptions::new().pause(Duration::from_millis(50));
    let error = server.adapter.hand_over(here, &options).unwrap_err();
    assert_eq!(error.owner, Owner::Source);
    let expected = "1 incoming connections have not been accepted or rejected";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(target.join().unwrap().unwrap_err().to_string().contains(expected));
    // The program decides, and others can connect again.
    let qp = server.domain.queue_pair(&server.cq).create().unwrap();
    incoming.accept(&qp, &AcceptOptions::new()).unwrap();
    client.wait_connected(SOON).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| be_client(server.addr(), 0, "later"));
        server.serve(1);
    });
}

#[test]
fn a_peer_that_sends_no_request_does_not_prevent_a_hand_over() {
    let server = Server::start();
    let addr = server.addr();
    let _silent = TcpStream::connect(addr).unwrap();
    // The backlog is in order: after this, the silent peer is not in it any more.
    thread::scope(|scope| {
        scope.spawn(|| be_client(addr, 1, "first"));
        server.serve(1);
    });
    let (here, there) = channel();
    let target = thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new()));
    let options = HandOverOptions::new().pause(Duration::from_secs(1));
    server.adapter.hand_over(here, &options).unwrap();
    drop(server);
    let server = Server::of(target.join().unwrap().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| be_client(addr, 0, "hello"));
        server.serve(1);
    });
}
