//! The victim: an adapter with one lane, memory filled with canaries, and honest connections in shared memory and over
//! TCP.

use super::honest::Honest;
use super::peer::{Peer, StartupSettings};
use super::resources::Resources;
use super::{TIMEOUT, wait_until};
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, Listener, QueuePair, QueuePairAttributes};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Completion, Data, Opcode, Operation, ReceiveRequest, Sge, WorkRequest};
use ironwarp_testkit::engine::{canaries, completions};
use ironwarp_testkit::mapping::Mapping;
use ironwarp_wire::Tag;
use ironwarp_wire::private::Capabilities;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of receives posted to a queue pair, and the length of each.
pub(crate) const RECEIVES: usize = 4;
pub(crate) const RECEIVE: usize = 256;
/// Offset of the memory from which the victim sends, and its length.
pub(crate) const OUT: usize = 64 << 10;
pub(crate) const OUT_LEN: usize = 128 << 10;

/// The tests count descriptors and mappings of this process, so they run one after the other.
static SERIAL: Mutex<()> = Mutex::new(());

/// An adapter under attack.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) engine: Arc<Engine>,
    domain: Domain,
    pub(crate) memory: Mapping,
    pub(crate) tag: Tag,
    listener: Listener,
    honest: Vec<Honest>,
    pub(crate) before: Resources,
    _serial: MutexGuard<'static, ()>,
}

/// A connection with a hostile peer, over TCP so far. Both ends have announced that they can share memory.
#[derive(Debug)]
pub(crate) struct Attacked {
    pub(crate) peer: Peer,
    pub(crate) end: VictimEnd,
}

impl Deref for Attacked {
    type Target = VictimEnd;

    fn deref(&self) -> &VictimEnd {
        &self.end
    }
}

/// The victim's end of a connection with a hostile peer.
#[derive(Debug)]
pub(crate) struct VictimEnd {
    pub(crate) pair: Arc<QueuePair>,
    pub(crate) cq: Arc<CompletionQueue>,
    tag: Tag,
    out: u64,
}

impl Victim {
    pub(crate) fn new() -> Self {
        let serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut config = Config::default().shm(true);
        config.lanes = 1;
        let engine = Engine::new(config).unwrap();
        let domain = engine.device().allocate_domain();
        let memory = Mapping::new(64);
        memory.write(0, &canaries(memory.len()));
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = engine.device().register(domain, region).unwrap();
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let honest = [Route::SharedMemory, Route::Tcp].map(|route| Honest::new(&engine, route)).into();
        let before = Resources::now();
        Self { engine, domain, memory, tag, listener, honest, before, _serial: serial }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn queue_pair(&self) -> VictimEnd {
        let cq = self.engine.create_cq(256).unwrap();
        let pair = self.engine.create_qp(QueuePairAttributes {
            send_depth: 64,
            receives: Receives::Own(64),
            max_sges: 4,
            completes: Completes::WhenSent,
            ..QueuePairAttributes::new(self.domain, &cq)
        });
        let pair = pair.unwrap();
        for i in 0..RECEIVES {
            let addr = self.memory.addr(i * RECEIVE);
            let sge = Sge { tag: self.tag, addr, len: u32::try_from(RECEIVE).unwrap() };
            pair.qp().post_receive(ReceiveRequest { id: i as u64, buffers: sge.into() }).unwrap();
        }
        VictimEnd { pair, cq, tag: self.tag, out: self.memory.addr(OUT) }
    }

    /// Accepts a connection, from a peer that has sent its Request or does so now.
    pub(crate) fn accept(&self) -> VictimEnd {
        let end = self.queue_pair();
        let incoming = self.listener.incoming().wait(Some(TIMEOUT)).expect("the Request arrived");
        incoming.accept(&end.pair, self.engine.terms(None, None), b"victim").unwrap();
        end
    }

    /// Connects a hostile peer that has announced these capabilities.
    pub(crate) fn connect_peer_with(&self, capabilities: Capabilities) -> Attacked {
        let mut peer = Peer::dial(self.addr());
        peer.request(StartupSettings::default());
        let end = self.accept();
        peer.await_reply(StartupSettings::default());
        peer.open_as_ironwarp(capabilities);
        end.pair.wait_connected(TIMEOUT).unwrap();
        Attacked { peer, end }
    }

    /// Connects a hostile peer that can share memory. The victim does not offer: the peer has initiated the connection.
    pub(crate) fn connect_peer(&self) -> Attacked {
        self.connect_peer_with(Capabilities::SHARED_MEMORY)
    }

    /// Connects the victim to a hostile peer that can share memory. The victim offers once it sends something.
    pub(crate) fn dial_peer(&self) -> Attacked {
        let end = self.queue_pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.engine.connect(&end.pair, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let mut peer = Peer::answer(&listener, StartupSettings::default());
        peer.open_as_ironwarp(Capabilities::SHARED_MEMORY);
        end.pair.wait_connected(TIMEOUT).unwrap();
        Attacked { peer, end }
    }

    /// Waits until the honest connections have gone on for some rounds.
    pub(crate) fn go_on(&self) {
        self.honest.iter().for_each(|honest| honest.go_on(2));
    }

    /// Ends the attack, and checks that everything was given back, that no byte of the victim's memory has changed except
    /// for receives, and that the honest connections were not affected.
    pub(crate) fn assert_survives<A>(self, attack: A) {
        self.go_on();
        drop(attack);
        self.before.assert_given_back();
        let skip = RECEIVES * RECEIVE;
        let now = self.memory.read(skip, self.memory.len() - skip);
        assert!(now == canaries(self.memory.len())[skip..], "the victim's memory has changed");
        self.honest.into_iter().for_each(Honest::leave);
    }
}

impl VictimEnd {
    /// Waits for `n` completions.
    pub(crate) fn completions(&self, n: usize) -> Vec<Completion> {
        completions(&self.cq, n, TIMEOUT)
    }

    /// Waits for a receive to complete, and skips all other completions.
    pub(crate) fn received(&self) -> Completion {
        loop {
            let completion = self.completions(1).remove(0);
            if completion.opcode == Opcode::Receive {
                return completion;
            }
        }
    }

    /// Posts a Send to the victim's queue pair.
    pub(crate) fn post_send(&self, id: u64, len: usize) {
        let sge = Sge { tag: self.tag, addr: self.out, len: u32::try_from(len).unwrap() };
        let send = Operation::Send { invalidate: None };
        self.pair.qp().post_send(vec![WorkRequest::new(id, send, Data::Memory(sge.into()))]).unwrap();
    }

    /// Waits until the connection has failed, and returns why.
    pub(crate) fn error(&self) -> Arc<QpError> {
        wait_until("the connection to fail", || self.pair.qp().error().is_some());
        Arc::clone(self.pair.qp().error().unwrap())
    }

    /// Checks that the connection is lost because the peer has broken the protocol of shared memory.
    pub(crate) fn assert_broken(&self) {
        assert_eq!(*self.error(), QpError::Lost(libc::EPROTO));
    }
}
