//! The two completion semantics (requirement P2), between two adapters over loopback.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const SEND: Operation = Operation::Send { invalidate: None };

struct End {
    engine: Arc<Engine>,
    pair: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u8>,
    tag: Tag,
}

fn end(completes: Completes) -> End {
    let engine = Engine::new(Config::default()).unwrap();
    let domain = engine.device().allocate_domain();
    let cq = engine.create_cq(64).unwrap();
    let pair = engine.create_qp(QueuePairAttributes {
        send_depth: 16,
        receives: Receives::Own(16),
        max_sges: 4,
        completes,
        ..QueuePairAttributes::new(domain, &cq)
    });
    let memory = vec![0; 4096];
    let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let described = Memory::direct(memory.as_ptr() as u64, memory.len() as u64, rights).unwrap();
    let tag = engine.device().register(domain, described).unwrap();
    End { engine, pair, cq, memory, tag }
}

/// Two ends, connected.
fn ends(completes: Completes) -> (End, End) {
    let (client, server) = (end(completes), end(completes));
    let listener = server.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    client.engine.connect(&client.pair, to, &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
    incoming.accept(&server.pair, server.engine.terms(None, None), &[]).unwrap();
    client.pair.wait_connected(PATIENCE).unwrap();
    server.pair.wait_connected(PATIENCE).unwrap();
    (client, server)
}

impl End {
    fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.memory.as_ptr() as u64 + at, len }
    }

    fn receive(&self, at: u64) {
        let request = ReceiveRequest { id: at, buffers: self.sge(at, 64).into() };
        self.pair.qp().post_receive(request).unwrap();
    }

    fn post(&self, id: u64, operation: Operation, len: u32) {
        let data = Data::Memory(self.sge(0, len).into());
        let request = WorkRequest::new(id, operation, data);
        self.pair.qp().post_send(vec![request]).unwrap();
    }

    fn one(&self) -> Completion {
        let mut completion = None;
        while completion.is_none() {
            assert!(self.cq.wait(Some(PATIENCE)).unwrap(), "nothing completed");
            self.cq.poll(1, |found| completion = Some(found)).unwrap();
        }
        completion.unwrap()
    }

    fn completes(&self, opcode: Opcode, id: u64) {
        let completion = self.one();
        let found = (completion.opcode, completion.wr_id, completion.status);
        assert_eq!(found, (opcode, id, Status::Success), "{completion:?}");
    }
}

/// Each side posts its receives only after its own acknowledged Sends are complete: neither waits for ever.
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

/// A Send for which the peer has no receive is not complete before it has one, unless it has to be.
#[test]
fn an_acknowledged_send_waits_for_its_receive() {
    let (client, server) = ends(Completes::WhenAcknowledged);
    client.post(1, SEND, 32);
    // The server answers a Read meanwhile: what waits keeps nothing else waiting.
    server.post(7, Operation::Read(Place { tag: client.tag, offset: client.memory.as_ptr() as u64 }), 64);
    std::thread::scope(|scope| {
        scope.spawn(|| server.completes(Opcode::Read, 7));
        assert!(!client.cq.wait(Some(Duration::from_millis(200))).unwrap(), "complete without a receive");
    });
    server.receive(1024);
    server.completes(Opcode::Receive, 1024);
    // The server's program looks no more; its lane sees to the acknowledgement.
    client.completes(Opcode::Send, 1);
}

/// An acknowledged Write that the peer refuses fails with the peer's reason; iWARP's own has completed long before.
#[test]
fn an_acknowledged_write_carries_the_peers_error() {
    let wrong = Place { tag: Tag(0x1234), offset: 0 };
    let (client, server) = ends(Completes::WhenAcknowledged);
    client.post(1, Operation::Write(wrong), 32);
    let completion = client.one();
    assert_eq!((completion.wr_id, completion.status), (1, Status::RemoteAccess));
    let cause = completion.cause.unwrap().to_string();
    assert!(cause.contains("invalid STag"), "{cause}");
    drop(server);

    let (client, _server) = ends(Completes::WhenSent);
    client.post(1, Operation::Write(wrong), 32);
    client.completes(Opcode::Write, 1);
}
