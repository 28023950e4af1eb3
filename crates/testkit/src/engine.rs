//! Helpers for the tests and benchmarks of the engine: an engine with memory, and its queue pairs.

use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;
use std::time::Duration;

/// A Send that invalidates nothing.
pub const SEND: Operation = Operation::Send { invalidate: None };

/// Maximum time to wait. Longer than any operation takes, even with thousands of connections at once.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The resources shared by the queue pairs of one engine: a domain, a completion queue, and memory with all
/// rights.
#[derive(Debug)]
pub struct Side {
    pub engine: Arc<Engine>,
    pub domain: Domain,
    pub cq: Arc<CompletionQueue>,
    pub memory: Vec<u8>,
    pub tag: Tag,
}

impl Side {
    /// Creates a completion queue for `completions` completions, and registers `bytes` bytes of memory.
    pub fn new(engine: &Arc<Engine>, completions: usize, bytes: usize) -> Self {
        let (domain, memory) = (engine.device().allocate_domain(), vec![0; bytes]);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let described = Memory::direct(memory.as_ptr() as u64, bytes as u64, rights).unwrap();
        let tag = engine.device().register(domain, described).unwrap();
        Self { engine: Arc::clone(engine), domain, cq: engine.create_cq(completions).unwrap(), memory, tag }
    }

    /// Creates a queue pair that is not connected yet.
    pub fn pair(&self, depth: usize, completes: Completes) -> Arc<QueuePair> {
        let pair = self.engine.create_qp(QueuePairAttributes {
            send_depth: depth,
            receives: Receives::Own(depth),
            max_sges: 1,
            completes,
            ..QueuePairAttributes::new(self.domain, &self.cq)
        });
        pair.unwrap()
    }

    /// Returns the remote address of the first byte of the memory.
    pub fn remote_addr(&self) -> RemoteAddr {
        RemoteAddr { tag: self.tag, offset: self.memory.as_ptr() as u64 }
    }

    /// Returns a scatter/gather element for `len` bytes of the memory at offset `at`.
    pub fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.remote_addr().offset + at, len }
    }

    /// Posts a receive for `len` bytes of the memory at offset `at`.
    pub fn receive(&self, pair: &QueuePair, id: u64, at: u64, len: u32) {
        let request = ReceiveRequest { id, buffers: self.sge(at, len).into() };
        pair.post_receive(request).unwrap();
    }

    /// Returns a request that uses the first `len` bytes of the memory.
    pub fn request(&self, id: u64, operation: Operation, len: u32) -> WorkRequest {
        WorkRequest::new(id, operation, Data::Memory(self.sge(0, len).into()))
    }

    /// Waits for the next completion, and takes it.
    #[track_caller]
    pub fn next(&self) -> Completion {
        let mut completion = None;
        while completion.is_none() {
            assert!(self.cq.wait(Some(TIMEOUT)).unwrap(), "nothing completed");
            self.cq.poll(1, |found| completion = Some(found)).unwrap();
        }
        completion.unwrap()
    }

    /// Waits for the next completion. Panics unless it is a success of this request.
    #[track_caller]
    pub fn succeeds(&self, opcode: Opcode, id: u64) -> Completion {
        let completion = self.next();
        let found = (completion.opcode, completion.wr_id, completion.status);
        assert_eq!(found, (opcode, id, Status::Success), "{completion:?}");
        completion
    }
}

/// Connects a queue pair of the first side to one of the second, and waits until both are connected.
pub fn connect(
    (client, client_pair): (&Side, &Arc<QueuePair>),
    (server, server_pair): (&Side, &Arc<QueuePair>),
) {
    let listener = server.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.engine.connect(client_pair, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(TIMEOUT).unwrap();
    incoming.accept(server_pair, server.engine.terms(None, None), &[]).unwrap();
    client_pair.wait_connected(TIMEOUT).unwrap();
    server_pair.wait_connected(TIMEOUT).unwrap();
}

/// Waits for `n` completions.
#[track_caller]
pub fn completions(cq: &CompletionQueue, n: usize, timeout: Duration) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < n {
        assert!(cq.wait(Some(timeout)).unwrap(), "expected {n} completions, got {done:?}");
        cq.poll(n - done.len(), |completion| done.push(completion)).unwrap();
    }
    done
}

/// Returns the initial contents of a victim's memory, in which no two nearby places look the same.
pub fn canaries(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 167) ^ (i >> 8)).to_le_bytes()[0] | 1).collect()
}
