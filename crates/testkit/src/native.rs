//! Helpers for tests of the native API: two ends of a connection over loopback, each with an adapter of its own.

use ironwarp::completion::{Completion, CompletionQueue, Opcode, Status};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{Completes, QueuePair};
use ironwarp::{Adapter, Config, ProtectionDomain};
use std::net::SocketAddr;
use std::time::Duration;

/// Maximum time to wait for an operation that takes much less if it works.
pub const SOON: Duration = Duration::from_secs(10);
/// Maximum time that [`Completions`] wait, possibly for messages of gigabytes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// All access rights.
pub const ALL: Access = Access::all();

/// The address and the completion semantics of two ends.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The address to listen at.
    pub at: &'static str,
    pub completes: Completes,
}

/// Both IP versions, with both completion semantics.
pub const CASES: [Case; 4] = [
    Case { at: "127.0.0.1:0", completes: Completes::WhenSent },
    Case { at: "127.0.0.1:0", completes: Completes::WhenAcknowledged },
    Case { at: "[::1]:0", completes: Completes::WhenSent },
    Case { at: "[::1]:0", completes: Completes::WhenAcknowledged },
];

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    pub qp: QueuePair,
    pub cq: CompletionQueue,
    pub domain: ProtectionDomain,
    pub adapter: Adapter,
}

impl End {
    /// Creates an adapter with these settings, and a queue pair that is not connected yet.
    pub fn new(config: Config, completes: Completes) -> Self {
        Self::of(Adapter::open(config).unwrap(), completes)
    }

    /// Creates a queue pair of this adapter, or function, that is not connected yet.
    pub fn of(adapter: Adapter, completes: Completes) -> Self {
        let cq = adapter.completion_queue(256).unwrap();
        let domain = adapter.protection_domain();
        let qp = domain.queue_pair(&cq).completes(completes).create().unwrap();
        Self { qp, cq, domain, adapter }
    }

    /// Registers a copy of `bytes`.
    pub fn region(&self, bytes: &[u8], access: Access) -> MemoryRegion {
        self.domain.register(Buffer::copy_of(bytes).unwrap(), access).unwrap()
    }
}

impl Completions for End {
    fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}

/// Waits for completions, and checks them.
pub trait Completions {
    /// Returns the completion queue to wait for.
    fn cq(&self) -> &CompletionQueue;

    /// Waits for the next completion, and takes it.
    #[track_caller]
    fn next(&self) -> Completion {
        self.cq().wait(TIMEOUT).unwrap()
    }

    /// Waits for the next completion. Panics unless it is a success of this request.
    #[track_caller]
    fn done(&self, opcode: Opcode, id: u64) -> Completion {
        let completion = self.next().success().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((completion.opcode, completion.wr_id), (opcode, id), "{completion:?}");
        completion
    }

    /// Waits for the next completion. Panics unless it is a failure of this request with this status.
    #[track_caller]
    fn failed(&self, opcode: Opcode, id: u64, status: Status) -> Completion {
        let completion = self.next();
        let found = (completion.opcode, completion.wr_id, completion.status);
        assert_eq!(found, (opcode, id, status), "{completion:?}");
        assert!(completion.cause.is_some(), "a failure has a cause");
        completion
    }
}

/// Returns two connected ends.
pub fn pair(case: Case) -> (End, End) {
    pair_with(case, Config::default(), Config::default())
}

/// Returns two connected ends with these settings.
pub fn pair_with(case: Case, client: Config, server: Config) -> (End, End) {
    let (client, server) = (End::new(client, case.completes), End::new(server, case.completes));
    connect(&client, &server, case.at.parse().unwrap());
    (client, server)
}

/// Connects the queue pairs of two ends through a listener at this address, and waits until they are connected.
pub fn connect(client: &End, server: &End, at: SocketAddr) {
    let listener = server.adapter.listen(at).unwrap();
    client.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    let incoming = listener.accept(SOON).expect("the client connects");
    incoming.accept(&server.qp, &AcceptOptions::new()).unwrap();
    client.qp.wait_connected(SOON).unwrap();
}

/// Returns a pattern of `len` bytes. Adjacent bytes differ, and so do the patterns of different seeds.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let mix = |i: usize| i.wrapping_mul(0x9e37_79b9) >> 7 ^ i;
    (0..len).map(|i| mix(i).to_le_bytes()[0].wrapping_add(seed)).collect()
}
