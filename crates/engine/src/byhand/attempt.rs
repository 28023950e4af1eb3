//! One queue pair on its way up: dialled again and again, or waited for, until a connection is its own or it is given up.

use super::proof::Ends;
use super::{BringUpError, BringUpOptions, Local, Remote, ToItself};
use crate::engine::Engine;
use crate::event::{ConnectError, Established};
use crate::gid::{GidTable, socket_addr};
use crate::pair::QueuePair;
use crate::port::Port;
use crate::qpn::{LAST, port_of};
use crate::set::lock;
use crate::setup::{Dial, Incoming, Setup};
use crate::sys::random::random;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::connect::{Setup as Way, Terms};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::link::Link;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Token};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long to wait before a peer is dialled again, at first; then twice as long each time, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(256);

/// So often, within the time that a request waits for the peer, it is looked whether one does.
const LOOKS: u32 = 4;

/// How long after its peer has closed an end still knows what that would have said to an empty Write. UCX looks by empty Writes whether
/// a peer is there, too, every few seconds: it shall not be told so for longer.
const FAREWELL: Duration = Duration::from_secs(1);

/// A queue pair on its way up. It holds nothing alive: the queue pair holds it, until it is told something else.
#[derive(Debug)]
pub(crate) struct BringUp {
    pub(super) engine: Weak<Engine>,
    pub(super) pair: Weak<QueuePair>,
    /// Where this end listens, or dials from.
    local: SocketAddr,
    /// Where the peer listens.
    pub(super) remote: SocketAddr,
    /// What both ends prove to be.
    pub(super) ends: Ends,
    /// What all hellos of this end begin with.
    pub(super) hello: Hello,
    terms: Terms,
    pub(super) options: BringUpOptions,
    dials: bool,
    progress: Mutex<Progress>,
    /// Held while a stream begins: it must not begin for a queue pair that was reset meanwhile.
    beginning: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Progress {
    phase: Phase,
    /// The acceptor's nonce. Another one for each connection that is claimed, so that no proof is good for two.
    pub(super) nonce: Token,
    /// The nonce that the peer wants to be proved with.
    pub(super) challenge: Option<Token>,
    /// The peer is to be dialled again without a pause.
    pub(super) at_once: bool,
    /// The packet sequence number that the program begins with, once it is set (sq_psn).
    pub(super) send_psn: Option<u32>,
    /// Somebody who looks like the peer was refused, and that was logged.
    pub(super) warned: bool,
    pause: Duration,
    /// A request has been waiting since then, as far as is known.
    waiting: Option<Instant>,
    /// Why the peer does not want this queue pair, when dialling again is unlikely to help.
    refused: Option<ConnectError>,
    /// How often patience has changed: only the last counts.
    times: u64,
    /// The connection, also while it is dialled.
    link: Weak<TcpLink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The peer is not there yet.
    Wanted,
    /// A connection is about to become the queue pair's.
    Taken,
    Connected,
    /// The peer closed. Nobody tells a program on RoCE: its receives stay, and what it sends from now on is answered by nobody.
    Gone,
    /// It was given up, or the queue pair was told something else.
    Over,
}

/// What has to happen by when.
#[derive(Debug)]
pub(crate) enum Reminder {
    /// The peer is dialled again.
    Dial(Weak<BringUp>),
    /// It is looked whether a request waits, for patience that has changed so often.
    Look(Weak<BringUp>, u64),
    /// Hellos that came early were served.
    Parked(Weak<Port>),
    /// The peer closed a while ago.
    Gone(Weak<BringUp>),
}

/// How it begins.
pub(crate) enum First {
    Wait,
    Dial(Box<Setup>),
    /// It did not work the first time.
    DialAgain(ConnectError),
}

impl Reminder {
    pub(crate) fn come(self, now: Instant) {
        match self {
            Self::Dial(up) => {
                if let Some(up) = up.upgrade() {
                    up.dial();
                }
            }
            Self::Look(up, times) => {
                if let Some(up) = up.upgrade() {
                    up.look(now, times);
                }
            }
            Self::Gone(up) => {
                if let Some(pair) = up.upgrade().and_then(|up| up.pair.upgrade()) {
                    pair.qp().forget_peer();
                }
            }
            Self::Parked(port) => {
                if let Some(port) = port.upgrade() {
                    port.expire(now);
                }
            }
        }
    }
}

impl BringUp {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        pair: &Arc<QueuePair>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<Self, BringUpError> {
        let (gid, interface) = match options.local {
            Local::Index(index) => {
                let entry = GidTable::of_process().get(index)?.ok_or(BringUpError::NoGid(index))?;
                (entry.gid, entry.interface_index)
            }
            Local::Gid(gid) => {
                let entry = GidTable::of_process().find(gid)?;
                (gid, entry.map_or(0, |entry| entry.interface_index))
            }
        };
        let (own, other) = match (gid.ip(), remote.gid.ip()) {
            (Some(own), Some(other)) if own.is_ipv4() == other.is_ipv4() => (own, other),
            _ => return Err(BringUpError::OtherVersion { local: gid, remote: remote.gid }),
        };
        let number = pair.number().value();
        let port = port_of(number).ok_or(BringUpError::NoPort)?;
        if remote.qpn > LAST {
            return Err(BringUpError::NotDialled(remote.qpn));
        }
        // A number without a port belongs to no queue pair. As with hardware, that shows when something is sent.
        let remote_port = port_of(remote.qpn);
        let mut progress = Progress::new(random()?);
        if remote_port.is_none() {
            progress.refused = Some(ConnectError::Refused(Reason::NoQueuePair));
        }
        let terms = engine.terms(options.ird, options.ord);
        terms.check()?;
        let dials = remote_port.is_some() && (gid, number) < (remote.gid, remote.qpn);
        Ok(Self {
            engine: Arc::downgrade(engine),
            pair: Arc::downgrade(pair),
            local: socket_addr(own, port, interface),
            // A link-local address is on the same link.
            remote: socket_addr(other, remote_port.unwrap_or(0), interface),
            hello: Hello::new(HelloKind::Dial, remote.qpn, number),
            ends: if dials {
                Ends { dialler: (gid, number), acceptor: (remote.gid, remote.qpn) }
            } else {
                Ends { dialler: (remote.gid, remote.qpn), acceptor: (gid, number) }
            },
            terms,
            options: *options,
            dials,
            progress: Mutex::new(progress),
            beginning: Mutex::default(),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.hello.source
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote { gid: self.remote.ip().into(), qpn: self.hello.destination }
    }

    pub(crate) fn options(&self) -> &BringUpOptions {
        &self.options
    }

    pub(super) fn terms(&self) -> Terms {
        self.terms
    }

    /// What can be wrong with the local address is found here, and told at once.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        pair: &Arc<QueuePair>,
        port: &Arc<Port>,
    ) -> Result<First, BringUpError> {
        let itself = self.hello.source == self.hello.destination && self.local == self.remote;
        if itself {
            return Ok(First::Dial(Box::new(Setup::Itself(ToItself::new(engine, self, self.local)?))));
        }
        if !self.dials {
            port.listen(self.local)?;
            return Ok(First::Wait);
        }
        match self.new_dial(engine, pair) {
            Ok(dial) => Ok(First::Dial(Box::new(dial))),
            Err(ConnectError::Misuse(error)) => Err(error.into()),
            Err(ConnectError::System(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                Err(error.into())
            }
            Err(error) => Ok(First::DialAgain(error)),
        }
    }

    pub(crate) fn start(self: &Arc<Self>, engine: &Engine, first: First) {
        let begun = match first {
            First::Wait => Ok(()),
            First::Dial(setup) => engine.begin_setup(setup).map_err(Into::into),
            First::DialAgain(error) => Err(error),
        };
        if let Err(error) = begun {
            self.attempt_failed(error);
        }
        self.patience_changed();
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    // --- The end that waits ---

    /// Whether this is the peer that it was told, where it was told to be.
    pub(crate) fn expects(&self, hello: &Hello, incoming: &Incoming) -> bool {
        let everywhere = self.engine.upgrade().is_some_and(|engine| engine.config().listen_everywhere);
        !self.dials
            && hello.source == self.hello.destination
            && incoming.peer().ip() == self.remote.ip()
            && (everywhere || incoming.local().ip() == self.local.ip())
    }

    /// Takes a connection that was claimed.
    pub(crate) fn accept(self: &Arc<Self>, incoming: Incoming, answer: &Hello) {
        let Some(pair) = self.pair.upgrade() else { return incoming.refuse(Reason::NoQueuePair) };
        let answer = answer.emit().expect("numbers of 24 bits");
        if let Err(error) = incoming.accept_for((&pair, Some(self)), self.terms, &answer) {
            self.attempt_failed(error);
        }
    }

    // --- The end that dials ---

    fn dial(self: &Arc<Self>) {
        let (Some(engine), Some(pair)) = (self.engine.upgrade(), self.pair.upgrade()) else { return };
        if self.progress().phase != Phase::Wanted {
            return;
        }
        let dialled = self.new_dial(&engine, &pair).and_then(|dial| {
            engine.begin_setup(Box::new(dial))?;
            Ok(())
        });
        if let Err(error) = dialled {
            self.attempt_failed(error);
        }
    }

    fn new_dial(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        pair: &Arc<QueuePair>,
    ) -> Result<Setup, ConnectError> {
        let mut from = self.local;
        from.set_port(0);
        let hello = self.dial_hello()?.emit().expect("numbers of 24 bits");
        let ends = (self.remote, Some(from));
        let dial = Dial::new(engine, pair, ends, (Way::PeerToPeer, self.terms), &hello)?;
        Ok(Setup::Dial(dial.for_attempt(self)))
    }

    /// This is the connection that is dialled.
    pub(crate) fn dials_with(&self, link: &Arc<TcpLink>) {
        self.progress().link = Arc::downgrade(link);
    }

    // --- Both ---

    /// Whether it was given up, or the queue pair was told something else.
    pub(crate) fn is_over(&self) -> bool {
        self.progress().phase == Phase::Over
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.progress().phase == Phase::Wanted
    }

    /// Whether a connection that is about to be made may become the queue pair's.
    pub(crate) fn claim(&self) -> bool {
        let next = random();
        let mut progress = self.progress();
        let (Phase::Wanted, Ok(next)) = (progress.phase, next) else { return false };
        progress.phase = Phase::Taken;
        progress.nonce = next;
        true
    }

    /// The packet sequence number that the program begins with.
    pub(crate) fn set_send_psn(&self, psn: u32) {
        self.progress().send_psn = Some(psn & 0xff_ffff);
    }

    /// Begins the stream on a connection that was claimed, unless the queue pair was told something else meanwhile.
    pub(crate) fn begin(
        &self,
        engine: &Engine,
        link: &Arc<TcpLink>,
        (established, early): (Established, Vec<u8>),
    ) -> Result<(), ConnectError> {
        let _alone = lock(&self.beginning);
        let (Some(pair), Phase::Taken) = (self.pair.upgrade(), self.progress().phase) else {
            link.abort();
            return Ok(());
        };
        engine.begin(link, &pair, established, early)?;
        let mut progress = self.progress();
        progress.phase = Phase::Connected;
        progress.link = Arc::downgrade(link);
        progress.tell_kernel(&pair);
        Ok(())
    }

    /// A connection was not made. It may be next time: the peer may be late, or busy.
    pub(crate) fn attempt_failed(self: &Arc<Self>, error: ConnectError) {
        let mut progress = self.progress();
        if progress.phase == Phase::Taken {
            progress.phase = Phase::Wanted;
        }
        if progress.phase != Phase::Wanted {
            return;
        }
        let mut at = Instant::now();
        let challenged = std::mem::take(&mut progress.at_once);
        if !challenged {
            at += progress.pause;
            progress.pause = (2 * progress.pause).min(LAST_PAUSE);
        }
        drop(progress);
        if matches!(error, ConnectError::Startup(_) | ConnectError::Misuse(_) | ConnectError::Connected(_)) {
            return self.fail(error); // it will be no better next time
        }
        if !challenged {
            self.note(error);
        }
        if self.dials
            && let Some(engine) = self.engine.upgrade()
        {
            engine.remind(at, Reminder::Dial(Arc::downgrade(self)));
        }
    }

    /// Logs why an attempt failed: at the level of a warning if it takes the user to change that, and then once.
    fn note(&self, error: ConnectError) {
        let lasting = match &error {
            ConnectError::NoReason | ConnectError::Unproven | ConnectError::OtherRelease(_) => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::PermissionDenied,
            // A secret may have come after the hello went.
            ConnectError::Refused(Reason::KeyNeeded) => !self.has_key(),
            ConnectError::Refused(reason) => {
                !matches!(reason, Reason::NoQueuePair | Reason::NotExpected | Reason::Busy)
            }
            _ => false,
        };
        let (peer, hello) = (self.remote, &self.hello);
        if !lasting {
            return tracing::debug!(%peer, %error, %hello, "not connected yet");
        }
        if self.progress().refused.is_none() {
            let qp = format_args!("{:#08x}", hello.source);
            tracing::warn!(%qp, %peer, "not connected yet: {error}");
        }
        self.progress().refused = Some(error);
    }

    /// There will be no connection: requests that wait fail, their retries exceeded.
    pub(crate) fn fail(&self, error: ConnectError) {
        let _alone = lock(&self.beginning);
        let mut progress = self.progress();
        if !matches!(progress.phase, Phase::Wanted | Phase::Taken | Phase::Gone) {
            return;
        }
        progress.phase = Phase::Over;
        drop(progress);
        if let Some(pair) = self.pair.upgrade() {
            pair.qp().abort(Fault::Unreachable);
            pair.failed(error);
        }
    }

    /// True: it was still on its way.
    pub(crate) fn cancel(&self) -> bool {
        let _alone = lock(&self.beginning);
        let mut progress = self.progress();
        let before = std::mem::replace(&mut progress.phase, Phase::Over);
        let pending = matches!(before, Phase::Wanted | Phase::Taken);
        if pending && let Some(link) = progress.link.upgrade() {
            // Its hello may wait at the peer, who must not take it for the next one.
            link.abort();
        }
        pending
    }

    /// The peer closed the connection, and this end goes on without: from now on requests wait in vain.
    pub(crate) fn peer_gone(self: &Arc<Self>) {
        {
            let mut progress = self.progress();
            if progress.phase != Phase::Connected {
                return;
            }
            progress.phase = Phase::Gone;
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.remind(Instant::now() + FAREWELL, Reminder::Gone(Arc::downgrade(self)));
        }
        self.patience_changed();
    }

    // --- Patience ---

    pub(crate) fn patience_changed(self: &Arc<Self>) {
        let Some(pair) = self.pair.upgrade() else { return };
        let mut progress = self.progress();
        progress.waiting = None;
        progress.times += 1;
        progress.tell_kernel(&pair);
        let times = progress.times;
        drop(progress);
        self.look(Instant::now(), times);
    }

    /// A request that waited for as long as patience lasts fails, and with it the queue pair. Without one nothing is late: an
    /// end may be ready for a peer that comes next year.
    fn look(self: &Arc<Self>, now: Instant, times: u64) {
        let (Some(pair), Some(engine)) = (self.pair.upgrade(), self.engine.upgrade()) else { return };
        let Some(patience) = pair.qp().retries().answer_patience() else { return };
        let waits = pair.qp().has_work();
        let mut progress = self.progress();
        if progress.times != times || !matches!(progress.phase, Phase::Wanted | Phase::Taken | Phase::Gone) {
            return;
        }
        let since = waits.then(|| progress.waiting.unwrap_or(now));
        progress.waiting = since;
        drop(progress);
        if since.is_some_and(|since| now.saturating_duration_since(since) >= patience) {
            let refused = self.progress().refused.take();
            self.fail(refused.unwrap_or(ConnectError::TimedOut));
        } else {
            engine.remind(now + patience / LOOKS, Reminder::Look(Arc::downgrade(self), times));
        }
    }
}

impl Progress {
    fn new(nonce: Token) -> Self {
        Self {
            phase: Phase::Wanted,
            nonce,
            challenge: None,
            at_once: false,
            send_psn: None,
            warned: false,
            pause: FIRST_PAUSE,
            waiting: None,
            refused: None,
            times: 0,
            link: Weak::new(),
        }
    }

    /// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT). Never less than what the adapter allows all of its
    /// connections: the kernel counts the time in which a peer's window is closed, too, and a peer whose receives are
    /// not posted is slow, not gone.
    fn tell_kernel(&self, pair: &QueuePair) {
        if let (Some(patience), Some(link)) = (pair.qp().retries().answer_patience(), self.link.upgrade()) {
            link.allow_silence(patience);
        }
    }
}
