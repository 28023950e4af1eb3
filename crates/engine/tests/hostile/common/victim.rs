//! The victim: an adapter with memory in two protection domains, all of it filled with canaries, and with a
//! neighbour.

use super::TIMEOUT;
use super::neighbour::{Neighbour, NeighbourResult};
use super::peer::{Peer, Received, StartupSettings};
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, Listener, QueuePair, QueuePairAttributes};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Binding, Domain, Memory, Rights, Scope, Stream};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{
    Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest,
};
use ironwarp_testkit::engine::{canaries, completions};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::private::Capabilities;
use ironwarp_wire::{Cause, Header, Offender, Tag, Terminate};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Size of every area, and of the unregistered gap on both sides of it.
pub(crate) const AREA: usize = 4 * PAGE;
const AREAS: usize = 6;
/// Number of receives posted to a queue pair, and the length of each.
pub(crate) const RECEIVES: usize = 4;
pub(crate) const RECEIVE: usize = 256;
/// The neighbour's pause between rounds, so that many tests can run concurrently.
const REST: Duration = Duration::from_millis(2);

const LOCAL: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);

/// A region of the victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) tag: Tag,
    /// Its offset in the victim's memory.
    pub(crate) at: usize,
    /// Its address.
    pub(crate) addr: u64,
}

impl Area {
    pub(crate) fn sge(&self, skip: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.addr + skip, len }
    }

    /// The address just past its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.addr + AREA as u64
    }
}

/// An adapter under attack.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) engine: Arc<Engine>,
    pub(crate) domain: Domain,
    pub(crate) memory: Mapping,
    /// All rights.
    pub(crate) open: Area,
    /// Read-only, locally and remotely.
    pub(crate) readable: Area,
    /// Write-only, locally and remotely.
    pub(crate) writable: Area,
    /// Not accessible to peers. Receives are posted from here.
    pub(crate) private: Area,
    /// All rights, in another domain.
    pub(crate) foreign: Area,
    /// Accessible to peers only through windows, and none is bound.
    pub(crate) bindable: Area,
    listener: Listener,
    /// Another connection of the same adapter, with an honest peer. `None` if the settings forbid its operations.
    neighbour: Mutex<Option<Neighbour>>,
}

/// A queue pair whose peer is hostile.
#[derive(Debug)]
pub(crate) struct Attacked {
    pub(crate) peer: Peer,
    pub(crate) pair: Arc<QueuePair>,
    pub(crate) cq: Arc<CompletionQueue>,
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        Self::with_pauses(config, REST)
    }

    /// Creates a victim whose neighbour pauses for `rest` between rounds.
    pub(crate) fn with_pauses(config: Config, rest: Duration) -> Self {
        let mut victim = Self::alone(config);
        victim.neighbour = Mutex::new(Some(Neighbour::new(&victim.engine, rest)));
        victim
    }

    /// Creates a victim without a neighbour.
    pub(crate) fn alone(config: Config) -> Self {
        let engine = Engine::new(config).unwrap();
        let (domain, other) = (engine.device().allocate_domain(), engine.device().allocate_domain());
        let memory = Mapping::new((2 * AREAS + 1) * AREA / PAGE);
        memory.write(0, &canaries(memory.len()));
        let mut at = AREA;
        let mut area = |domain, rights| {
            let addr = memory.addr(at);
            let region = Memory::direct(addr, AREA as u64, rights).unwrap();
            let area = Area { tag: engine.device().register(domain, region).unwrap(), at, addr };
            at += 2 * AREA;
            area
        };
        let remote = Rights::REMOTE;
        Self {
            domain,
            open: area(domain, LOCAL | remote | Rights::BIND),
            readable: area(domain, Rights::LOCAL_READ | Rights::REMOTE_READ),
            writable: area(domain, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE),
            private: area(domain, LOCAL),
            foreign: area(other, LOCAL | remote | Rights::BIND),
            bindable: area(domain, LOCAL | Rights::BIND),
            listener: engine.listen("127.0.0.1:0".parse().unwrap()).unwrap(),
            neighbour: Mutex::default(),
            memory,
            engine,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Returns the number of rounds that the neighbour has completed.
    pub(crate) fn rounds(&self) -> u64 {
        self.neighbour.lock().unwrap().as_ref().map_or(0, Neighbour::rounds)
    }

    /// Creates a queue pair with a completion queue of its own and posted receives, which is not connected.
    pub(crate) fn queue_pair(
        &self,
        completes: Completes,
        receives: usize,
    ) -> (Arc<QueuePair>, Arc<CompletionQueue>) {
        let cq = self.engine.create_cq(256).unwrap();
        let pair = self.queue_pair_on(&cq, completes, receives);
        (pair, cq)
    }

    /// Creates a queue pair on this completion queue, with posted receives, which is not connected.
    pub(crate) fn queue_pair_on(
        &self,
        cq: &Arc<CompletionQueue>,
        completes: Completes,
        receives: usize,
    ) -> Arc<QueuePair> {
        let pair = self.engine.create_qp(QueuePairAttributes {
            send_depth: 64,
            receives: Receives::Own(64),
            max_sges: 4,
            completes,
            ..QueuePairAttributes::new(self.domain, cq)
        });
        let pair = pair.unwrap();
        for i in 0..receives {
            let sge = self.private.sge((i * RECEIVE) as u64, u32::try_from(RECEIVE).unwrap());
            pair.qp().post_receive(ReceiveRequest { id: i as u64, buffers: sge.into() }).unwrap();
        }
        pair
    }

    /// Connects a hostile peer with the default settings, and sends its first message.
    pub(crate) fn connect_peer(&self) -> Attacked {
        let mut attacked = self.connect_peer_with(StartupSettings::default(), RECEIVES);
        attacked.peer.open();
        attacked
    }

    /// Connects a hostile peer with these settings to a new queue pair.
    pub(crate) fn connect_peer_with(&self, settings: StartupSettings, receives: usize) -> Attacked {
        let (pair, cq) = self.queue_pair(Completes::WhenSent, receives);
        let peer = self.connected(&pair, settings);
        Attacked { peer, pair, cq }
    }

    /// Connects a hostile peer to this queue pair.
    pub(crate) fn connected(&self, pair: &Arc<QueuePair>, settings: StartupSettings) -> Peer {
        let mut peer = Peer::dial(self.addr());
        peer.request(settings);
        let incoming = self.listener.incoming().wait(Some(TIMEOUT)).expect("the Request arrived");
        let mut terms = self.engine.terms(None, None);
        terms.markers = settings.markers;
        incoming.accept(pair, terms, b"victim").unwrap();
        peer.await_reply(settings);
        pair.wait_connected(TIMEOUT).unwrap();
        peer
    }

    /// Connects a hostile peer that announces acknowledgements to a queue pair whose requests complete when they are
    /// acknowledged.
    pub(crate) fn connect_acknowledging_peer(&self, receives: usize) -> Attacked {
        let (pair, cq) = self.queue_pair(Completes::WhenAcknowledged, receives);
        let mut peer = self.connected(&pair, StartupSettings::default());
        peer.open_as_ironwarp(Capabilities::ACKNOWLEDGE);
        Attacked { peer, pair, cq }
    }

    /// Connects the victim to a hostile peer: here the victim dials.
    pub(crate) fn dial_peer(&self, completes: Completes, settings: StartupSettings) -> Attacked {
        let (pair, cq) = self.queue_pair(completes, RECEIVES);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        self.engine.connect(&pair, to, &ConnectOptions::default()).unwrap();
        let peer = Peer::answer(&listener, settings);
        pair.wait_connected(TIMEOUT).unwrap();
        Attacked { peer, pair, cq }
    }

    /// Binds a window to `area`, for the peer of this queue pair only.
    pub(crate) fn window(&self, area: &Area, qp: u32, rights: Rights) -> Tag {
        let table = self.engine.device().table();
        let window = table.allocate_window(self.domain).unwrap();
        let stream = Stream { domain: self.domain, qp };
        let binding = Binding {
            region: area.tag,
            at: area.addr,
            len: AREA as u64,
            rights,
            one_touch: false,
            zero_based: false,
            scope: Scope::Stream,
        };
        table.bind(stream, window, binding).unwrap()
    }

    /// Checks that not a single byte of memory has changed.
    pub(crate) fn assert_untouched(&self) {
        self.assert_untouched_except(&[]);
    }

    /// Checks that no byte outside of these ranges, given as offset and length, has changed.
    pub(crate) fn assert_untouched_except(&self, ranges: &[(usize, usize)]) {
        let (now, before) = (self.memory.read(0, self.memory.len()), canaries(self.memory.len()));
        let may_change = |at: usize| ranges.iter().any(|&(begin, len)| (begin..begin + len).contains(&at));
        let changed = (0..now.len()).find(|&at| now[at] != before[at] && !may_change(at));
        assert_eq!(changed, None, "offset at which the victim's memory has changed");
    }

    /// Ends the attack and checks that the neighbour was not affected.
    pub(crate) fn assert_survives(&self) -> NeighbourResult {
        self.neighbour.lock().unwrap().take().expect("the victim has a neighbour").leave()
    }
}

impl Attacked {
    /// Waits for `n` completions.
    pub(crate) fn completions(&self, n: usize) -> Vec<Completion> {
        completions(&self.cq, n, TIMEOUT)
    }

    /// Waits for a single completion.
    pub(crate) fn one(&self) -> Completion {
        self.completions(1).remove(0)
    }

    /// Posts a request to the send queue.
    pub(crate) fn post(&self, id: u64, operation: Operation, data: impl Into<Sges>) {
        let data = Data::Memory(data.into());
        self.pair.qp().post_send(vec![WorkRequest::new(id, operation, data)]).unwrap();
    }

    /// Checks that the stream is over and all receives are flushed with its error, which is returned.
    pub(crate) fn error(&self, receives: usize) -> Arc<QpError> {
        for completion in self.completions(receives) {
            assert_eq!(completion.status, Status::Flushed, "{completion:?}");
            assert_eq!(completion.cause.as_ref(), self.pair.qp().error(), "{completion:?}");
        }
        Arc::clone(self.pair.qp().error().expect("the stream has ended"))
    }

    /// Checks that the stream is over: all receives are flushed, and one request fails, which is returned.
    /// The order of the two queues is unspecified.
    pub(crate) fn failed(&self, receives: usize) -> Completion {
        let (mut requests, flushed): (Vec<_>, Vec<_>) =
            self.completions(receives + 1).into_iter().partition(|it| it.opcode != Opcode::Receive);
        assert!(flushed.iter().all(|it| it.status == Status::Flushed), "{flushed:?}");
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    /// Checks that the victim terminates the stream with this cause, because of the FPDU with these bytes.
    pub(crate) fn assert_terminated(&mut self, cause: Cause, fpdu: &[u8]) -> Arc<QpError> {
        assert_eq!(self.peer.receive_terminate(), Terminate { cause, offender: offender(cause, fpdu) });
        self.closed();
        self.error(RECEIVES)
    }

    /// Closes the peer's end, and checks that the victim closes the connection, too.
    pub(crate) fn closed(&self) {
        self.peer.finish();
        assert!(self.pair.wait_closed(TIMEOUT), "the connection is not closed: {:?}", self.pair.qp());
    }

    /// Checks that the stream is still working: a Send from the peer arrives.
    pub(crate) fn assert_works(&mut self, msn: u32) {
        self.peer.send(&super::send(msn), b"still here");
        let completion = self.one();
        assert_eq!((completion.status, completion.byte_len), (Status::Success, 10), "{completion:?}");
        assert_eq!(self.pair.qp().error(), None);
    }

    /// Checks that the victim closed the connection without a message.
    pub(crate) fn assert_cut_off(&mut self) {
        let (messages, end) = self.peer.receive_until_end();
        assert_eq!(messages, []);
        assert!(matches!(end, Received::End | Received::Reset), "{end:?}");
    }
}

/// Returns the part of the offending segment that a Terminate contains (RFC 5040 figure 10).
fn offender(cause: Cause, fpdu: &[u8]) -> Offender {
    if matches!(cause, Cause::Mpa(_) | Cause::LocalCatastrophic) {
        return Offender::default();
    }
    let read = match ironwarp_wire::Fpdu::parse(fpdu, ironwarp_wire::Dialect::Standard) {
        Ok(ironwarp_wire::Parse::Done(fpdu)) => match fpdu.header {
            Header::ReadRequest(read) if matches!(cause, Cause::Protection(_)) => Some(read),
            _ => None,
        },
        _ => None,
    };
    let length = u16::from_be_bytes([fpdu[0], fpdu[1]]);
    Offender { length: Some(length), header: DdpHeader::parse(&fpdu[2..]), read }
}
