//! The two completion semantics (requirement P2), between two adapters over loopback.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, Engine, QueuePair};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation, Status};
use ironwarp_testkit::engine::{SEND, Side, connect};
use ironwarp_wire::{RemoteAddr, Tag};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

struct End {
    side: Side,
    pair: Arc<QueuePair>,
}

/// Two connected ends.
fn ends(completes: Completes) -> (End, End) {
    let end = || {
        let side = Side::new(&Engine::new(Config::default()).unwrap(), 64, 4096);
        End { pair: side.pair(16, completes), side }
    };
    let (client, server) = (end(), end());
    connect((&client.side, &client.pair), (&server.side, &server.pair));
    (client, server)
}

impl End {
    fn receive(&self, at: u64) {
        self.side.receive(&self.pair, at, at, 64);
    }

    fn post(&self, id: u64, operation: Operation, len: u32) {
        self.pair.qp().post_send(vec![self.side.request(id, operation, len)]).unwrap();
    }

    fn completes(&self, opcode: Opcode, id: u64) {
        self.side.succeeds(opcode, id);
    }
}

/// Each side posts its receives only after its own acknowledged Sends are complete: this must not deadlock.
#[test]
fn receives_are_posted_after_sends_complete() {
    let (client, server) = ends(Completes::WhenAcknowledged);
    std::thread::scope(|scope| {
        for end in [&client, &server] {
            scope.spawn(|| {
                for round in 0..50 {
                    end.post(round, SEND, 32);
                    end.post(round + 100, SEND, 0);
                    end.completes(Opcode::Send, round);
                    end.completes(Opcode::Send, round + 100);
                    end.receive(1024);
                    end.receive(2048);
                    end.completes(Opcode::Receive, 1024);
                    end.completes(Opcode::Receive, 2048);
                }
            });
        }
    });
}

/// A Send completes before the reply to it is received: programs rely on this, because adapters acknowledge
/// at once. It also holds for a thread that polls and replies at once while a lane drives the connection.
#[test]
fn a_send_completes_before_the_answer_to_it_comes() {
    let (client, server) = ends(Completes::WhenAcknowledged);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..500 {
                server.receive(1024);
                let (start, mut asked) = (Instant::now(), false);
                while !asked {
                    assert!(start.elapsed() < TIMEOUT, "the client stopped sending");
                    server.side.cq.poll(4, |found| asked |= found.opcode == Opcode::Receive).unwrap();
                }
                server.post(round, SEND, 16);
            }
        });
        for round in 0..500 {
            client.receive(2048);
            client.post(round, SEND, 32);
            client.completes(Opcode::Send, round);
            client.completes(Opcode::Receive, 2048);
        }
    });
}

/// A Send does not complete before the peer has posted a receive, unless that would be a deadlock.
#[test]
fn an_acknowledged_send_waits_for_its_receive() {
    let (client, server) = ends(Completes::WhenAcknowledged);
    client.post(1, SEND, 32);
    // A Read completes meanwhile: the waiting Send delays nothing else.
    server.post(7, Operation::Read(client.side.remote_addr()), 64);
    std::thread::scope(|scope| {
        scope.spawn(|| server.completes(Opcode::Read, 7));
        assert!(
            !client.side.cq.wait(Some(Duration::from_millis(200))).unwrap(),
            "complete without a receive"
        );
    });
    server.receive(1024);
    server.completes(Opcode::Receive, 1024);
    // The server's program no longer polls; its lane sends the acknowledgement.
    client.completes(Opcode::Send, 1);
}

/// An acknowledged Write that the peer refuses fails with the peer's error; a Write with iWARP semantics has
/// completed long before.
#[test]
fn an_acknowledged_write_carries_the_peers_error() {
    let wrong = RemoteAddr { tag: Tag(0x1234), offset: 0 };
    let (client, server) = ends(Completes::WhenAcknowledged);
    client.post(1, Operation::Write(wrong), 32);
    let completion = client.side.next();
    assert_eq!((completion.wr_id, completion.status), (1, Status::RemoteAccess));
    let cause = completion.cause.unwrap().to_string();
    assert!(cause.contains("invalid STag"), "{cause}");
    drop(server);

    let (client, _server) = ends(Completes::WhenSent);
    client.post(1, Operation::Write(wrong), 32);
    client.completes(Opcode::Write, 1);
}

/// A thread may poll while its thread-local data is destroyed, in any order. The main thread of a C program
/// does so in its exit handlers.
#[test]
fn a_thread_can_poll_while_it_exits() {
    struct PollsAtTheEnd(Arc<CompletionQueue>, Arc<AtomicBool>);
    impl Drop for PollsAtTheEnd {
        fn drop(&mut self) {
            self.0.poll(1, |_| ()).unwrap();
            self.1.store(true, Ordering::Relaxed);
        }
    }
    // Thread-local data is destroyed in reverse order of creation.
    thread_local!(static END: RefCell<Option<PollsAtTheEnd>> = const { RefCell::new(None) });

    let (client, server) = ends(Completes::WhenSent);
    // With more than one connection, a poll asks the kernel which of them is ready.
    let (near, far) = (client.side.pair(1, Completes::WhenSent), server.side.pair(1, Completes::WhenSent));
    connect((&client.side, &near), (&server.side, &far));
    let polled = Arc::new(AtomicBool::new(false));
    let end = PollsAtTheEnd(Arc::clone(&client.side.cq), Arc::clone(&polled));
    let thread = std::thread::spawn(move || {
        let cq = Arc::clone(&end.0);
        END.set(Some(end));
        assert_eq!(cq.poll(1, |_| ()), Ok(0));
    });
    thread.join().unwrap();
    assert!(polled.load(Ordering::Relaxed));
}
