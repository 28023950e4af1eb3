//! The first bytes of a connection, from dialling or accepting to a stream. Lives on a lane's thread; the rules are the
//! device's (`ironwarp_rnic::connect`), the sockets and deadlines are here.

use crate::admission::Stage;
use crate::byhand::{BringUp, ToItself};
use crate::engine::Engine;
use crate::event::{ConnectError, Established, Watcher};
use crate::lane::{Job, Lane};
use crate::pair::QueuePair;
use crate::port::Port;
use crate::search::Search;
use crate::sys::setup::{Accepted, Listener as Socket, connect, settle, with_port};
use crate::sys::socket::TcpLink;
use ironwarp_rnic::connect::{
    Agreed, Answer as Reply, Depths, Incoming as Request, Initiator, Setup as Way, Terms,
};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_wire::mpa::{FpduWriter, MAX_STARTUP};
use ironwarp_wire::private::{Aside, AsideKind, Hello, HelloKind, PortSpace, RdmaPort, Reason};
use ironwarp_wire::{Cause, Header, Offender, Parse, Terminate};
use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

mod probe;

pub(crate) use probe::Probe;

/// What came behind a startup frame is kept, but no more than this; the rest waits in the kernel.
const ROOM: usize = MAX_STARTUP + 4096;
/// A peer that begins has to wait behind its Request (RFC 5044 §7.1.2): one byte more is enough to know that it does not.
const REQUEST_ROOM: usize = MAX_STARTUP + 1;
/// How much longer than a peer a program may take. Drivers of hardware wait for 60 s, which this is under the default settings.
const DECISION: u32 = 6;

/// A connection in the making.
#[derive(Debug)]
pub(crate) enum Setup {
    Dial(Dial),
    Probe(Probe),
    Answer(Answer),
    Itself(ToItself),
}

/// This end begins.
#[derive(Debug)]
pub(crate) struct Dial {
    engine: Weak<Engine>,
    link: Arc<TcpLink>,
    to: SocketAddr,
    from: Option<SocketAddr>,
    way: Way,
    terms: Terms,
    private_data: Box<[u8]>,
    initiator: Initiator,
    pair: Arc<QueuePair>,
    /// What it is for, if the queue pair is brought up by hand: then failing is no more than trying again.
    attempt: Option<Arc<BringUp>>,
    deadline: Instant,
    wire: Wire,
    connected: bool,
    /// It was dialled anew, in the older way, and has to be waited for anew.
    new: bool,
    /// The search that it is a part of, if it is for an RDMA port.
    search: Option<Arc<Search>>,
    /// The RDMA port that the peer has to confirm: it is dialled at a candidate.
    asked: Option<RdmaPort>,
}

/// The peer began.
#[derive(Debug)]
pub(crate) struct Answer {
    token: u64,
    link: Arc<TcpLink>,
    peer: SocketAddr,
    local: SocketAddr,
    same_host: bool,
    listener: Arc<ListenerCore>,
    lane: Arc<Lane>,
    deadline: Instant,
    wire: Wire,
    state: Answering,
    /// What the Request says of the RDMA port, if anything.
    asked: Option<Asked>,
}

/// What a Request says of the RDMA port that it is for, which its Reply confirms.
#[derive(Clone, Copy, Debug)]
struct Asked {
    port: RdmaPort,
    /// Length of the header before the private data.
    header: usize,
}

/// What becomes of a Request.
enum Judged {
    /// The program decides.
    Program(Option<Asked>),
    /// It is rejected with this, and the program need not know.
    Rejected(Aside),
}

#[derive(Debug)]
enum Answering {
    /// The Request is due.
    Request,
    /// The program has it, and decides.
    Deciding(Request),
    /// The Reply is on its way out.
    Accepting(Box<Accept>, Agreed),
    Rejecting,
}

/// What the program decided.
#[derive(Debug)]
pub(crate) struct Accept {
    pub(crate) private_data: Box<[u8]>,
    /// The queue pair that takes the connection; `None`: it is rejected.
    pub(crate) taker: Option<Taker>,
}

/// A queue pair that takes a connection.
#[derive(Debug)]
pub(crate) struct Taker {
    pair: Arc<QueuePair>,
    attempt: Option<Arc<BringUp>>,
    terms: Terms,
    established: Established,
}

/// Bytes in both directions.
#[derive(Debug, Default)]
struct Wire {
    out: Vec<u8>,
    sent: usize,
    read: Vec<u8>,
}

/// A listening socket, and where what it finds is reported.
#[derive(Debug)]
pub(crate) struct ListenerCore {
    pub(crate) engine: Weak<Engine>,
    socket: Socket,
    /// Where it listens.
    at: Option<SocketAddr>,
    /// The RDMA port, if it is for one.
    port: Option<RdmaPort>,
    desk: Desk,
    startup: Duration,
    /// Number of connections that may wait for a decision.
    backlog: usize,
    /// It does not listen any more.
    stopped: AtomicBool,
}

/// Who decides on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Desk {
    /// The program, when it likes.
    Program(Arc<dyn Watcher<Incoming>>),
    /// The queue pairs of a port, which were told whom to expect.
    Port(Weak<Port>),
}

/// A peer wants to connect, and waits for [`accept`](Self::accept) or [`reject`](Self::reject). Dropped, it is rejected.
#[derive(Debug)]
pub struct Incoming {
    lane: Arc<Lane>,
    token: u64,
    request: Request,
    peer: SocketAddr,
    local: SocketAddr,
    asked: Option<Asked>,
    decided: bool,
}

/// Who waits for a connection.
#[derive(Debug)]
pub(crate) enum Told {
    Pair(Arc<QueuePair>),
    BringUp(Arc<BringUp>),
    Search(Arc<Search>),
}

impl Told {
    /// There will be none, and no other attempt.
    pub(crate) fn failed(self, error: ConnectError) {
        match self {
            Self::Pair(pair) => pair.failed(error),
            Self::BringUp(up) => up.fail(error),
            Self::Search(search) => search.fail(error),
        }
    }
}

impl Setup {
    pub(crate) fn link(&self) -> &Arc<TcpLink> {
        match self {
            Self::Dial(dial) => &dial.link,
            Self::Probe(probe) => &probe.link,
            Self::Answer(answer) => &answer.link,
            Self::Itself(itself) => &itself.link,
        }
    }

    /// The peer's address and this end's, as far as they are known.
    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let peer = match self {
            Self::Dial(dial) => dial.to, // whether it is connected yet or not
            Self::Probe(probe) => probe.to,
            Self::Answer(_) | Self::Itself(_) => self.link().peer_addr().ok()?,
        };
        Some((peer, self.link().local_addr().ok()?))
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::Dial(dial) => dial.deadline,
            Self::Probe(probe) => probe.deadline,
            Self::Answer(answer) => answer.deadline,
            Self::Itself(itself) => itself.deadline,
        }
    }

    /// Whether the peer took too long.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline() <= now
    }

    pub(crate) fn timed_out(self) {
        self.failed(ConnectError::TimedOut);
    }

    pub(crate) fn failed(self, error: ConnectError) {
        match self {
            Self::Dial(dial) => dial.failed(error),
            Self::Probe(probe) => probe.ended(false),
            Self::Answer(answer) => answer.failed(error),
            Self::Itself(itself) => itself.failed(error),
        }
    }

    /// Who waits for it, if a queue pair does.
    pub(crate) fn told(&self) -> Option<Told> {
        match self {
            Self::Dial(Dial { attempt: Some(up), .. }) => Some(Told::BringUp(Arc::clone(up))),
            Self::Dial(Dial { search: Some(search), .. }) | Self::Probe(Probe { search, .. }) => {
                Some(Told::Search(Arc::clone(search)))
            }
            Self::Dial(dial) => Some(Told::Pair(Arc::clone(&dial.pair))),
            Self::Itself(itself) => Some(Told::BringUp(itself.up())),
            Self::Answer(Answer { state: Answering::Accepting(accept, _), .. }) => {
                accept.taker.as_ref().map(|taker| match &taker.attempt {
                    Some(up) => Told::BringUp(Arc::clone(up)),
                    None => Told::Pair(Arc::clone(&taker.pair)),
                })
            }
            Self::Answer(_) => None,
        }
    }

    /// Goes on as far as it can. Returns itself if it has to wait.
    pub(crate) fn progress(self) -> Option<Self> {
        match self {
            Self::Dial(dial) => dial.progress().map(Self::Dial),
            Self::Probe(probe) => probe.progress().map(Self::Probe),
            Self::Answer(answer) => answer.progress().map(Self::Answer),
            Self::Itself(itself) => itself.progress().map(Self::Itself),
        }
    }
}

// --- Dialling ---

impl Dial {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        pair: &Arc<QueuePair>,
        (to, from): (SocketAddr, Option<SocketAddr>),
        (way, terms): (Way, Terms),
        private_data: &[u8],
    ) -> Result<Self, ConnectError> {
        let initiator = Initiator::new(way, terms, private_data)?;
        let tap = engine.capture().map(|capture| capture.tap(true));
        let link = Arc::new(connect(to, from, &engine.keepalive())?.tapped(tap));
        let wire = Wire::to_send(initiator.request());
        Ok(Self {
            engine: Arc::downgrade(engine),
            link,
            to,
            from,
            way,
            terms,
            private_data: private_data.into(),
            initiator,
            pair: Arc::clone(pair),
            attempt: None,
            deadline: Instant::now() + engine.config().startup,
            wire,
            connected: false,
            new: false,
            search: None,
            asked: None,
        })
    }

    pub(crate) fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    /// As a part of a search. `asked`: at a candidate, which has to confirm this RDMA port.
    pub(crate) fn in_search(self, search: &Arc<Search>, asked: Option<RdmaPort>) -> Self {
        Self { search: Some(Arc::clone(search)), asked, ..self }
    }

    /// For a queue pair that is brought up by hand.
    pub(crate) fn for_attempt(mut self, attempt: &Arc<BringUp>) -> Self {
        attempt.dials_with(&self.link);
        self.attempt = Some(Arc::clone(attempt));
        self
    }

    fn failed(&self, error: ConnectError) {
        match &self.search {
            Some(search) if !search.wants(self.asked.is_some()) => {}
            Some(search) if self.asked.is_some() => search.candidate_failed(error),
            Some(search) => search.first_failed(error),
            None => tell_failed(&self.pair, self.attempt.as_ref(), error),
        }
    }

    /// Whether it has a socket that nobody waits for yet.
    pub(crate) fn is_new(&self) -> bool {
        self.new
    }

    fn progress(mut self) -> Option<Self> {
        self.new = false;
        match self.step() {
            Ok(true) => None,
            Ok(false) => Some(self),
            Err(error) => self.again(error),
        }
    }

    /// True: it is done.
    fn step(&mut self) -> Result<bool, ConnectError> {
        if self.attempt.as_ref().is_some_and(|attempt| attempt.is_over()) {
            return Err(ConnectError::GivenUp);
        }
        if self.search.as_ref().is_some_and(|search| !search.wants(self.asked.is_some())) {
            return Err(ConnectError::GivenUp);
        }
        if !self.connected {
            self.connected = self.link.connected()?;
            if !self.connected {
                return Ok(false);
            }
            if self.link.local_addr()? == self.link.peer_addr()? {
                // Nobody listens at a port that the kernel then chose for this end: it answered itself.
                self.link.abort();
                return Err(io::Error::from(rustix::io::Errno::CONNREFUSED).into());
            }
            self.check_trust(false)?;
        }
        if !self.wire.send(&self.link)? {
            return Ok(false);
        }
        loop {
            match self.initiator.reply(&self.wire.read) {
                Ok(Parse::Done(answer)) => return self.answered(answer).map(|()| true),
                Ok(Parse::Need(_)) => {}
                Err(error) => {
                    self.wire.say_why(&self.link, error.terminate());
                    return Err(error.into());
                }
            }
            if !self.wire.receive(&self.link, ROOM)? {
                return Ok(false);
            }
        }
    }

    /// At a candidate the program's data is for the listener alone.
    fn check_trust(&self, accepted: bool) -> Result<(), ConnectError> {
        match &self.search {
            Some(search) if self.asked.is_some() && !search.trusts(&self.link, accepted) => {
                self.link.abort();
                Err(ConnectError::Elsewhere)
            }
            _ => Ok(()),
        }
    }

    /// What a Reply says behind the confirmation of the RDMA port, where there has to be one.
    fn confirmed(&self, answer: Reply) -> Result<Reply, ConnectError> {
        if matches!(answer, Reply::Accepted { .. }) {
            self.check_trust(true)?; // who rejects has closed its socket, and has no owner any more
        }
        let (Reply::Accepted { private_data: said, .. } | Reply::Rejected { private_data: said, .. }) =
            &answer;
        let header = Aside::parse(said).ok();
        let rest: Box<[u8]> = match (self.asked, header) {
            (Some(asked), Some((Aside { kind: AsideKind::Port, port: Some(port), .. }, rest)))
                if port == asked =>
            {
                rest.into()
            }
            (None, Some((Aside { kind: AsideKind::Elsewhere, .. }, _))) | (Some(_), _) => {
                self.link.abort();
                return Err(ConnectError::Elsewhere);
            }
            (None, _) => return Ok(answer),
        };
        Ok(match answer {
            Reply::Accepted { agreed, consumed, .. } => {
                Reply::Accepted { agreed, private_data: rest, consumed }
            }
            Reply::Rejected { peer, .. } => Reply::Rejected { peer, private_data: rest },
        })
    }

    fn answered(&mut self, answer: Reply) -> Result<(), ConnectError> {
        let answer = if self.search.is_some() { self.confirmed(answer)? } else { answer };
        let (agreed, private_data, consumed) = match answer {
            Reply::Accepted { agreed, private_data, consumed } => (agreed, private_data, consumed),
            Reply::Rejected { private_data, .. } if self.attempt.is_some() => {
                let rejected = |up: &Arc<BringUp>| up.rejected(&self.private_data, &private_data);
                return Err(self.attempt.as_ref().map_or(ConnectError::Closed, rejected));
            }
            Reply::Rejected { peer, private_data } => {
                return Err(ConnectError::Rejected { private_data, depths: peer });
            }
        };
        let Some(engine) = self.engine.upgrade() else { return Ok(()) };
        if self.search.as_ref().is_some_and(|search| !search.settle(self.asked.is_some())) {
            self.link.abort(); // another connection was chosen
            return Ok(());
        }
        if let Some(attempt) = &self.attempt {
            let ends = (self.link.peer_addr()?, self.link.local_addr()?);
            attempt
                .check_answer(&self.private_data, &private_data, ends)
                .inspect_err(|_| self.link.abort())?;
            attempt.claim();
        }
        let early = self.wire.read.split_off(consumed);
        let established = Established {
            private_data,
            agreed,
            peer: self.link.peer_addr()?,
            local: self.link.local_addr()?,
        };
        let begun = begin(&engine, &self.link, (&self.pair, self.attempt.as_ref()), established, early);
        match (begun, self.search.take()) {
            (Err(error), Some(_)) => {
                self.pair.failed(error); // the search is over
                Ok(())
            }
            (begun, _) => begun,
        }
    }

    /// A peer that knows only revision 1 closes when it sees revision 2 (RFC 6581 §6): it is dialled again, in its way.
    fn again(mut self, error: ConnectError) -> Option<Self> {
        let reset = match &error {
            ConnectError::Closed => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        };
        let stranger = self.attempt.is_none(); // only Ironwarp ends are dialled by hand
        let enhanced = self.way != Way::Unenhanced && self.asked.is_none(); // likewise at a candidate
        if !(reset && stranger && enhanced && self.connected && self.wire.read.is_empty()) {
            self.failed(error);
            return None;
        }
        if let Some(search) = &self.search {
            search.probe(); // at once: it may be a TCP server
        }
        let engine = self.engine.upgrade()?;
        let ways = (Way::Unenhanced, self.terms);
        match Self::new(&engine, &self.pair, (self.to, self.from), ways, &self.private_data) {
            Ok(mut dial) => {
                tracing::debug!(peer = %self.to, "no answer to MPA revision 2, trying revision 1");
                dial.new = true;
                dial.deadline = self.deadline;
                dial.search = self.search.take();
                self.private_data = Box::default();
                Some(dial)
            }
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }
}

// --- Answering ---

impl Answer {
    pub(crate) fn new(
        link: TcpLink,
        listener: &Arc<ListenerCore>,
        lane: &Arc<Lane>,
        (peer, local, same_host): (SocketAddr, SocketAddr, bool),
    ) -> Self {
        Self {
            token: lane.token(),
            link: Arc::new(link),
            peer,
            local,
            same_host,
            deadline: Instant::now() + listener.startup,
            listener: Arc::clone(listener),
            lane: Arc::clone(lane),
            wire: Wire::default(),
            state: Answering::Request,
            asked: None,
        }
    }

    /// Its number on the lane.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    /// When whoever it waits for has taken too long.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whom it waits for.
    pub(crate) fn stage(&self) -> Stage {
        match self.state {
            Answering::Deciding(_) => Stage::Deciding,
            Answering::Request | Answering::Accepting(..) | Answering::Rejecting => Stage::Greeting,
        }
    }

    /// How many may wait for a decision at its listener.
    pub(crate) fn backlog(&self) -> usize {
        self.listener.backlog
    }

    /// There is no room for it any more, or it had its time. A peer that has sent a Request is rejected, which tells it that it is
    /// understood and may try again. Any other is reset: nothing is left of it in the kernel.
    pub(crate) fn evict(mut self) {
        match &self.state {
            Answering::Request => self.link.will_be_reset(),
            Answering::Deciding(request) => {
                if let Ok(reply) = request.reject(&said(self.asked, &[])) {
                    self.wire = Wire::to_send(&reply);
                    let _ = self.wire.send(&self.link); // or the peer does without
                }
                self.link.finish();
            }
            Answering::Accepting(..) | Answering::Rejecting => self.link.abort(),
        }
        self.failed(ConnectError::TimedOut);
    }

    pub(crate) fn decide(&mut self, accept: Accept) {
        let Answering::Deciding(request) = std::mem::replace(&mut self.state, Answering::Rejecting) else {
            return;
        };
        self.deadline = Instant::now() + self.listener.startup;
        let reply = match &accept.taker {
            Some(taker) => request.accept(taker.terms, &accept.private_data).map(|(reply, agreed)| {
                self.state = Answering::Accepting(Box::new(accept), agreed);
                reply
            }),
            None => request.reject(&accept.private_data),
        };
        match reply {
            Ok(reply) => self.wire = Wire::to_send(&reply),
            Err(error) => tracing::error!(%error, "a reply that was checked before cannot be sent"),
        }
    }

    pub(crate) fn progress(mut self) -> Option<Self> {
        match self.step() {
            Ok(true) => None,
            Ok(false) => Some(self),
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }

    fn step(&mut self) -> Result<bool, ConnectError> {
        loop {
            match &self.state {
                Answering::Request => {
                    if let Parse::Done(request) = Request::parse(&self.wire.read)? {
                        settle(&self.link, self.same_host);
                        match self.listener.judge(&request) {
                            Judged::Program(asked) => {
                                self.asked = asked;
                                self.deadline = Instant::now() + self.listener.startup * DECISION;
                                self.state = Answering::Deciding(request.clone());
                                self.report(request);
                            }
                            Judged::Rejected(header) => {
                                let reply = request.reject(&header.emit()).map_err(ConnectError::from)?;
                                self.wire = Wire::to_send(&reply);
                                self.deadline = Instant::now() + self.listener.startup;
                                self.state = Answering::Rejecting;
                            }
                        }
                    } else if !self.wire.receive(&self.link, REQUEST_ROOM)? {
                        return Ok(false);
                    }
                }
                // The peer waits for the Reply. If it gives up, that shows here.
                Answering::Deciding(_) => {
                    return match self.wire.receive(&self.link, REQUEST_ROOM)? {
                        true => Err(ConnectError::Startup(ironwarp_rnic::connect::StartupError::Early(1))),
                        false => Ok(false),
                    };
                }
                Answering::Accepting(..) | Answering::Rejecting => {
                    if !self.wire.send(&self.link)? || !self.is_taken_up()? {
                        return Ok(false);
                    }
                    self.replied()?;
                    return Ok(true);
                }
            }
        }
    }

    /// Whether the stream may begin. Nothing may be sent before the dialler's first FPDU (RFC 5044 §7.1.2), so a queue pair that is
    /// connected by GID and number waits for it: if the dialler left before, it can still have another connection.
    fn is_taken_up(&mut self) -> Result<bool, ConnectError> {
        let waits = matches!(&self.state, Answering::Accepting(accept, _)
            if accept.taker.as_ref().is_some_and(|taker| taker.attempt.is_some()));
        if waits && self.wire.read.is_empty() { self.wire.receive(&self.link, ROOM) } else { Ok(true) }
    }

    fn report(&self, request: Request) {
        let incoming = Incoming {
            lane: Arc::clone(&self.lane),
            token: self.token,
            request,
            peer: self.peer,
            local: self.local,
            asked: self.asked,
            decided: false,
        };
        match &self.listener.desk {
            Desk::Program(program) => program.tell(incoming),
            Desk::Port(port) => match port.upgrade() {
                Some(port) => port.hello(incoming),
                None => incoming.refuse(Reason::NoQueuePair),
            },
        }
    }

    fn replied(&mut self) -> Result<(), ConnectError> {
        match std::mem::replace(&mut self.state, Answering::Rejecting) {
            Answering::Accepting(mut accept, agreed) => {
                let Some(engine) = self.listener.engine.upgrade() else { return Ok(()) };
                let Some(taker) = &mut accept.taker else { return Ok(()) };
                taker.established.agreed = agreed;
                let begun = (&taker.pair, taker.attempt.as_ref());
                let early = std::mem::take(&mut self.wire.read);
                let begun = begin(&engine, &self.link, begun, taker.established.clone(), early);
                if begun.is_err() {
                    self.state = Answering::Accepting(accept, agreed); // told below who fails
                }
                begun
            }
            _ => {
                self.link.finish();
                Ok(())
            }
        }
    }

    pub(crate) fn failed(self, error: ConnectError) {
        tracing::debug!(%error, "a connection was not made");
        match self.state {
            Answering::Accepting(accept, _) => accept.failed(error),
            Answering::Deciding(_) => self.listener.withdraw(self.token),
            Answering::Request | Answering::Rejecting => {}
        }
    }
}

impl Accept {
    /// The peer did not wait.
    pub(crate) fn gone(self) {
        self.failed(ConnectError::Closed);
    }

    fn failed(self, error: ConnectError) {
        if let Some(taker) = self.taker {
            tell_failed(&taker.pair, taker.attempt.as_ref(), error);
        }
    }
}

impl Incoming {
    /// What the peer's program sent along.
    pub fn private_data(&self) -> &[u8] {
        let header = self.asked.map_or(0, |asked| asked.header);
        self.request.private_data().get(header..).unwrap_or_default()
    }

    /// What the peer said of its depths: its IRD limits this end's ORD, its ORD is what this end's IRD should hold.
    pub fn depths(&self) -> Depths {
        self.request.peer()
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address at which it connected. Its port is the one that the peer's program asked for.
    pub fn local(&self) -> SocketAddr {
        with_port(self.local, self.asked.map_or(self.local.port(), |asked| asked.port.number))
    }

    /// Connects a queue pair to it. The queue pair tells when that is done.
    pub fn accept(
        self,
        pair: &Arc<QueuePair>,
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        self.accept_for((pair, None), terms, private_data)
    }

    /// The same, for a queue pair that may be brought up by hand.
    pub(crate) fn accept_for(
        mut self,
        (pair, attempt): (&Arc<QueuePair>, Option<&Arc<BringUp>>),
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        let said = said(self.asked, private_data);
        let (_, agreed) = self.request.accept(terms, &said)?;
        self.decided = true;
        let asked = self.private_data().into();
        let established = Established { private_data: asked, agreed, peer: self.peer, local: self.local };
        let (pair, attempt) = (Arc::clone(pair), attempt.cloned());
        let taker = Some(Taker { pair, attempt, terms, established });
        self.submit(Accept { private_data: said.into(), taker });
        Ok(())
    }

    /// Turns it away.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let said = said(self.asked, private_data);
        self.request.reject(&said)?;
        self.decided = true;
        self.submit(Accept { private_data: said.into(), taker: None });
        Ok(())
    }

    /// Turns a peer away that dialled by GID and number, and tells it why.
    pub(crate) fn refuse(self, reason: Reason) {
        let asked = Hello::parse(self.private_data()).ok();
        let (to, from) = asked.map_or((0, 0), |hello| (hello.source, hello.destination));
        self.turn_away(&Hello::new(HelloKind::Refusal(reason), to, from));
    }

    /// The same, with a challenge or refusal that is made already.
    pub(crate) fn turn_away(self, said: &Hello) {
        let said = said.emit().expect("numbers of 24 bits, as parsed");
        if let Err(error) = self.reject(&said) {
            tracing::debug!(%error, "could not refuse a peer");
        }
    }

    /// The same, and waits until the peer's socket has it, but not for longer than this: whoever ends right after it would take
    /// the answer along.
    pub fn reject_and_wait(self, private_data: &[u8], timeout: Duration) -> Result<(), ConnectError> {
        let lane = Arc::clone(&self.lane);
        self.reject(private_data)?;
        let (done, waiting) = mpsc::channel();
        lane.submit(Job::Fence(done));
        waiting.recv_timeout(timeout).map_err(|_| ConnectError::TimedOut)
    }

    fn submit(&self, accept: Accept) {
        self.lane.submit(Job::Accept(self.token, Box::new(accept)));
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            self.submit(Accept { private_data: said(self.asked, &[]).into(), taker: None });
        }
    }
}

/// What a Reply says: the program's private data, behind the RDMA port if the Request names it.
fn said(asked: Option<Asked>, private_data: &[u8]) -> Cow<'_, [u8]> {
    match asked {
        Some(Asked { port, .. }) => {
            [&Aside::about(AsideKind::Port, port).emit()[..], private_data].concat().into()
        }
        None => private_data.into(),
    }
}

impl ListenerCore {
    /// Without an RDMA port, a listener of a program is for that of its TCP port.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        (socket, port): (Socket, Option<RdmaPort>),
        desk: Desk,
        backlog: usize,
    ) -> Self {
        let at = socket.local_addr().ok();
        let own = || Some(RdmaPort { space: PortSpace::Stream, number: at?.port() });
        let port = match desk {
            Desk::Program(_) if engine.config().private => port.or_else(own),
            _ => None,
        };
        let (engine, startup) = (Arc::downgrade(engine), engine.config().startup);
        Self { engine, socket, at, port, desk, startup, backlog, stopped: AtomicBool::new(false) }
    }

    /// The same, with another socket.
    pub(crate) fn moved_to(&self, engine: &Arc<Engine>, socket: Socket) -> Self {
        Self::new(engine, (socket, self.port), self.desk.clone(), self.backlog)
    }

    /// What becomes of a Request. A plain one, of any iWARP peer, is for the TCP port that it came to.
    fn judge(&self, request: &Request) -> Judged {
        let Some(port) = self.port else { return Judged::Program(None) };
        let data = request.private_data();
        let elsewhere = Judged::Rejected(Aside::about(AsideKind::Elsewhere, port));
        let kind = match Aside::parse(data) {
            Ok((header, rest)) => match header.kind {
                AsideKind::Probe | AsideKind::Port if header.port != Some(port) => return elsewhere,
                AsideKind::Probe => return Judged::Rejected(Aside::about(AsideKind::Here, port)),
                AsideKind::Port => {
                    return Judged::Program(Some(Asked { port, header: data.len() - rest.len() }));
                }
                AsideKind::Here | AsideKind::Elsewhere => return elsewhere,
                kind => Some(kind),
            },
            Err(_) => None, // the program's own data, or another release's: the program says so
        };
        let space = if kind == Some(AsideKind::Lookup) { PortSpace::Datagram } else { PortSpace::Stream };
        let asked = self.at.map(|at| RdmaPort { space, number: at.port() });
        if asked == Some(port) { Judged::Program(None) } else { elsewhere }
    }

    /// Leaves the address to others at once. Whoever waits there is reset.
    pub(crate) fn leave(&self) -> io::Result<()> {
        self.stopped.store(true, Ordering::Release);
        self.socket.close_now()
    }

    /// Stops at once: when this returns, the address may be another's. Connections in the making hold this, and go on.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.socket.stop();
    }

    pub(crate) fn accept(&self) -> io::Result<Option<Accepted>> {
        let tap = || self.engine.upgrade()?.capture().map(|capture| capture.tap(false));
        match self.socket.accept() {
            Err(_) if self.stopped.load(Ordering::Acquire) => Ok(None),
            accepted => Ok(accepted?.map(|it| Accepted { link: it.link.tapped(tap()), ..it })),
        }
    }

    /// The program need not decide on this connection any more.
    fn withdraw(&self, token: u64) {
        let is_gone = |incoming: &Incoming| incoming.token == token;
        match &self.desk {
            Desk::Program(program) => program.withdraw(&is_gone),
            Desk::Port(port) => {
                if let Some(port) = port.upgrade() {
                    port.withdraw(&is_gone);
                }
            }
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// This end's address of a connection that was accepted here.
    pub(crate) fn address_of(&self, link: &TcpLink) -> io::Result<SocketAddr> {
        match self.at {
            Some(at) if !at.ip().is_unspecified() => Ok(at),
            _ => link.local_addr(),
        }
    }
}

impl AsFd for ListenerCore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire {
    fn to_send(bytes: &[u8]) -> Self {
        Self { out: bytes.to_vec(), sent: 0, read: Vec::new() }
    }

    /// True: all is sent.
    fn send(&mut self, link: &TcpLink) -> Result<bool, ConnectError> {
        while self.sent < self.out.len() {
            match link.send(&[Piece::Own(&self.out[self.sent..])]) {
                Ok(n) => self.sent += n,
                Err(error) => return waits(error),
            }
        }
        Ok(true)
    }

    /// Reads until there are `room` bytes in all, or one more. What has not come needs no memory. True: something came.
    fn receive(&mut self, link: &TcpLink, room: usize) -> Result<bool, ConnectError> {
        let mut bytes = [0; ROOM];
        let most = room.saturating_sub(self.read.len()).clamp(1, ROOM);
        match link.recv(&[], &mut bytes[..most]) {
            Ok(n) => {
                self.read.extend_from_slice(&bytes[..n]);
                Ok(true)
            }
            Err(error) => waits(error),
        }
    }

    /// Sends the reason why there will be no stream, if there is one to give (RFC 6581 §8).
    fn say_why(&self, link: &TcpLink, why: Option<(Cause, ironwarp_wire::mpa::Framing)>) {
        let Some((cause, framing)) = why else { return };
        let terminate = Terminate { cause, offender: Offender::default() };
        let mut bytes = Vec::new();
        let mut writer = FpduWriter::new(framing);
        let written = writer.write(&Header::Terminate(terminate), &[], |part| bytes.extend_from_slice(part));
        if written.is_ok() && link.send(&[Piece::Own(&bytes)]).is_ok() {
            link.finish();
        }
    }
}

/// The startup is done: the stream begins, if the queue pair still wants it.
fn begin(
    engine: &Engine,
    link: &Arc<TcpLink>,
    (pair, attempt): (&Arc<QueuePair>, Option<&Arc<BringUp>>),
    established: Established,
    early: Vec<u8>,
) -> Result<(), ConnectError> {
    match attempt {
        Some(attempt) => attempt.begin(engine, link, (established, early)),
        None => engine.begin(link, pair, established, early),
    }
}

fn tell_failed(pair: &QueuePair, attempt: Option<&Arc<BringUp>>, error: ConnectError) {
    match attempt {
        Some(attempt) => attempt.attempt_failed(error),
        None => pair.failed(error),
    }
}

fn waits(error: LinkError) -> Result<bool, ConnectError> {
    match error {
        LinkError::WouldBlock => Ok(false),
        LinkError::Ended | LinkError::Unmapped => Err(ConnectError::Closed),
        LinkError::Lost(errno) => Err(io::Error::from_raw_os_error(errno).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SECURITY.md says how much one address can make an adapter keep: 2 KiB for each connection that waits for its peer, 4 KiB for each
    /// that waits for the program.
    #[test]
    fn connections_in_the_making_need_little_memory() {
        // A byte at a time, memory is doubled; and the books of `admission.rs` have a few words for each.
        let greeting = size_of::<Setup>() + size_of::<TcpLink>() + 2 * REQUEST_ROOM + 256;
        assert!(greeting <= 2 << 10, "{greeting} bytes");
        let deciding = greeting + 2 * (size_of::<Incoming>() + MAX_STARTUP);
        assert!(deciding <= 4 << 10, "{deciding} bytes");
    }
}
