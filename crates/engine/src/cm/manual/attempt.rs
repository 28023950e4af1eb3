//! An attempt to connect one queue pair manually: dialling again and again, or waiting, until it has a connection or is given up.

use super::port::{Expecting, ManualPort};
use crate::cm::context::CmContext;
use crate::cm::dial::{Dial, DialRequest, DialTarget};
use crate::cm::handshake::{Handshake, Target};
use crate::cm::incoming::Incoming;
use crate::cm::proof::Ends;
use crate::sys::random::random;
use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::manual::{Attempt, BringUpOptions};
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::connect::{MpaMode, Reply, Terms};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{Hello, Reason, Token};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long to wait before a peer is dialled again at first; then twice as long each time, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(256);

/// How long after its peer has closed an end still knows what the peer would have answered to an empty Write. UCX uses empty Writes
/// to check every few seconds whether a peer is there: it must not be answered for longer.
const FAREWELL: Duration = Duration::from_secs(1);

/// An attempt to connect a queue pair manually. It is weak, because the queue pair holds it until it is told something else.
#[derive(Debug)]
pub(super) struct ManualAttempt {
    pub(super) ctx: Weak<CmContext>,
    pub(super) pair: Weak<QueuePair>,
    pub(super) port: Weak<ManualPort>,
    /// Where this end listens, or dials from.
    pub(super) local: SocketAddr,
    /// Where the peer listens.
    pub(super) remote: SocketAddr,
    /// What both ends prove to be.
    pub(super) ends: Ends,
    /// What all hellos of this end begin with.
    pub(super) hello: Hello,
    pub(super) terms: Terms,
    pub(super) options: BringUpOptions,
    pub(super) dials: bool,
    pub(super) progress: Mutex<Progress>,
    /// Held while a stream starts: it must not start for a queue pair that was reset meanwhile.
    pub(super) starting: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The acceptor's nonce. A new one for each connection that is claimed, so that no proof is valid for two.
    pub(super) nonce: Token,
    /// The nonce for which the peer wants a proof.
    pub(super) challenge: Option<Token>,
    /// The peer is to be dialled again without a pause.
    pub(super) at_once: bool,
    /// The first packet sequence number of this end, once it is set (sq_psn).
    pub(super) send_psn: Option<u32>,
    /// The refusal of a stranger that looks like the peer was logged.
    pub(super) warned: bool,
    pause: Duration,
    /// Since when a request has been waiting, as far as is known.
    pub(super) waiting: Option<Instant>,
    /// Why the peer refuses this queue pair, if dialling again is unlikely to help.
    pub(super) refused: Option<ConnectError>,
    /// Number of times that patience has changed: only the last counts.
    pub(super) changes: u64,
    /// The connection, also while it is dialled.
    pub(super) link: Weak<TcpLink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no connection yet.
    Wanted,
    /// A connection is about to become the queue pair's.
    Taken,
    Connected,
    /// The peer closed. A program on RoCE is not told: its receives stay posted, and nothing answers what it sends from now on.
    Gone,
    /// It was given up, or the queue pair was told something else.
    Over,
}

impl ManualAttempt {
    pub(super) fn number(&self) -> u32 {
        self.hello.source
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    /// Whether the hello comes from the peer, at the addresses that both were told.
    pub(super) fn expects(&self, hello: &Hello, incoming: &Incoming) -> bool {
        let everywhere = self.ctx.upgrade().is_some_and(|ctx| ctx.config().listen_everywhere);
        !self.dials
            && hello.source == self.hello.destination
            && incoming.peer().ip() == self.remote.ip()
            && (everywhere || incoming.local().ip() == self.local.ip())
    }

    // --- Dialling ---

    fn dial(self: &Arc<Self>) {
        let Some(ctx) = self.ctx.upgrade() else { return };
        if self.pair.strong_count() == 0 || !self.is_connection_wanted() {
            return;
        }
        let dialled = self.new_dial(&ctx).and_then(|dial| Ok(ctx.begin(dial)?));
        if let Err(error) = dialled {
            self.handshake_failed(error);
        }
    }

    pub(super) fn new_dial(self: &Arc<Self>, ctx: &Arc<CmContext>) -> Result<Box<Dial>, ConnectError> {
        let mut from = self.local;
        from.set_port(0);
        let hello = self.dial_hello()?.emit().expect("numbers of 24 bits");
        let request = DialRequest {
            to: self.remote,
            from: Some(from),
            mode: MpaMode::PeerToPeer,
            terms: self.terms,
            private_data: hello[..].into(),
        };
        let target: Arc<dyn DialTarget> = Arc::<Self>::clone(self);
        let dial = Dial::new(ctx, target, request)?;
        self.progress().link = Arc::downgrade(dial.link());
        Ok(dial)
    }

    // --- The phases ---

    pub(super) fn is_connection_wanted(&self) -> bool {
        self.progress().phase == Phase::Wanted
    }

    /// Whether a connection that is about to be made may become the queue pair's.
    fn try_claim(&self) -> bool {
        let next = random();
        let mut progress = self.progress();
        let (Phase::Wanted, Ok(next)) = (progress.phase, next) else { return false };
        progress.phase = Phase::Taken;
        progress.nonce = next;
        true
    }

    /// A handshake failed. The next may succeed: the peer may be late, or busy.
    pub(super) fn handshake_failed(self: &Arc<Self>, error: ConnectError) {
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
        if matches!(
            error,
            ConnectError::Startup(_) | ConnectError::InvalidArgument(_) | ConnectError::Connected(_)
        ) {
            return self.give_up(error); // it would fail again
        }
        if !challenged {
            self.log_failure(error);
        }
        if self.dials
            && let Some(ctx) = self.ctx.upgrade()
        {
            let this = Arc::downgrade(self);
            ctx.remind(at, move || this.upgrade().iter().for_each(Self::dial));
        }
    }

    /// Logs why a handshake failed: as a warning, and once, if the user has to change something.
    fn log_failure(&self, error: ConnectError) {
        let lasting = match &error {
            ConnectError::NoReason | ConnectError::Unproven | ConnectError::OtherRelease(_) => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::PermissionDenied,
            // A secret may have come after the hello was sent.
            ConnectError::Refused(Reason::KeyNeeded) => !self.has_key(),
            ConnectError::Refused(reason) => {
                !matches!(reason, Reason::NoQueuePair | Reason::NotExpected | Reason::Busy)
            }
            _ => false,
        };
        let (peer, hello) = (self.remote, &self.hello);
        if !lasting {
            return tracing::debug!(%peer, %error, %hello, "queue pair not connected yet");
        }
        if self.progress().refused.is_none() {
            let qp = format_args!("{:#08x}", hello.source);
            tracing::warn!(%qp, %peer, "queue pair not connected yet: {error}");
        }
        self.progress().refused = Some(error);
    }

    /// There will be no connection: requests that wait fail, their retries exceeded.
    pub(super) fn give_up(&self, error: ConnectError) {
        let _alone = lock(&self.starting);
        let mut progress = self.progress();
        if !matches!(progress.phase, Phase::Wanted | Phase::Taken | Phase::Gone) {
            return;
        }
        progress.phase = Phase::Over;
        drop(progress);
        if let Some(pair) = self.pair.upgrade() {
            pair.qp().abort(QpError::Unreachable);
            pair.connect_failed(error);
        }
    }
}

impl Attempt for ManualAttempt {
    fn cancel(&self) -> bool {
        let _alone = lock(&self.starting);
        let mut progress = self.progress();
        let before = std::mem::replace(&mut progress.phase, Phase::Over);
        let pending = matches!(before, Phase::Wanted | Phase::Taken);
        if pending && let Some(link) = progress.link.upgrade() {
            // Its hello may be parked at the peer, which must not take it for that of the next attempt.
            link.abort();
        }
        pending
    }

    /// This end goes on without a peer: from now on requests wait in vain.
    fn on_peer_closed(self: Arc<Self>) {
        {
            let mut progress = self.progress();
            if progress.phase != Phase::Connected {
                return;
            }
            progress.phase = Phase::Gone;
        }
        if let Some(ctx) = self.ctx.upgrade() {
            let this = Arc::downgrade(&self);
            ctx.remind(Instant::now() + FAREWELL, move || {
                if let Some(pair) = this.upgrade().and_then(|attempt| attempt.pair.upgrade()) {
                    pair.qp().forget_peer();
                }
            });
        }
        self.change_patience();
    }

    fn on_retries_changed(self: Arc<Self>) {
        self.change_patience();
    }

    fn set_send_psn(&self, psn: u32) {
        self.progress().send_psn = Some(psn & 0xff_ffff);
    }
}

impl Expecting for ManualAttempt {
    fn offer(self: Arc<Self>, hello: &Hello, incoming: Incoming) {
        let answer = match self.judge(hello, &incoming) {
            Ok(answer) => answer,
            Err(reply) => {
                tracing::debug!(peer = %incoming.peer(), %hello, %reply, "rejected a peer");
                return incoming.reject_with(&reply);
            }
        };
        if !self.try_claim() {
            return incoming.refuse(Reason::Busy);
        }
        if self.pair.strong_count() == 0 {
            return incoming.refuse(Reason::NoQueuePair);
        }
        let answer = answer.emit().expect("numbers of 24 bits");
        let target: Arc<dyn Target> = Arc::<Self>::clone(&self);
        if let Err(error) = incoming.accept_for(target, self.terms, &answer) {
            self.handshake_failed(error);
        }
    }
}

impl Target for ManualAttempt {
    /// Does nothing if the queue pair was told something else meanwhile.
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        let _alone = lock(&self.starting);
        let (Some(pair), Phase::Taken) = (self.pair.upgrade(), self.progress().phase) else {
            link.abort();
            return Ok(());
        };
        pair.start_stream(link, established, early)?;
        let mut progress = self.progress();
        progress.phase = Phase::Connected;
        progress.link = Arc::downgrade(link);
        progress.set_user_timeout(&pair);
        Ok(())
    }

    fn failed(self: Arc<Self>, error: ConnectError) {
        self.handshake_failed(error);
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.give_up(error);
    }

    fn awaits_first_fpdu(&self) -> bool {
        true
    }
}

impl DialTarget for ManualAttempt {
    fn is_wanted(&self) -> bool {
        self.progress().phase != Phase::Over
    }

    fn check_reply(&self, link: &TcpLink, sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        match &reply {
            Reply::Rejected { private_data, .. } => Err(self.rejected(sent, private_data)),
            Reply::Accepted { private_data, .. } => {
                let ends = (link.peer_addr()?, link.local_addr()?);
                self.check_answer(sent, private_data, ends).inspect_err(|_| link.abort())?;
                Ok(reply)
            }
        }
    }

    fn claim(&self) -> bool {
        self.try_claim();
        true // if not, the connection is closed when it would start
    }

    /// Only Ironwarp is connected manually.
    fn falls_back(self: Arc<Self>) -> bool {
        false
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

impl Progress {
    pub(super) fn new(nonce: Token) -> Self {
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
            changes: 0,
            link: Weak::new(),
        }
    }

    /// Sets how long sent data may stay unacknowledged (TCP_USER_TIMEOUT). Never less than what the adapter allows all of its
    /// connections: the kernel counts the time in which the remote window is closed, too, and a peer whose receives are not posted is
    /// slow, not gone.
    pub(super) fn set_user_timeout(&self, pair: &QueuePair) {
        if let (Some(patience), Some(link)) = (pair.qp().retries().response_timeout(), self.link.upgrade()) {
            link.raise_user_timeout(patience);
        }
    }
}
