//! An attempt to connect one queue pair manually. Depending on which end dials, it dials the peer repeatedly, or waits
//! for the peer's hello, until the queue pair is connected or the attempt is given up.

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

/// Time between the first failed dial and the next one. It doubles after each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Upper bound on the time between two dials.
const MAX_PAUSE: Duration = Duration::from_millis(256);

/// How long after the peer has closed empty Writes still succeed (`Qp::forget_peer`). UCX also uses empty Writes to
/// check every few seconds whether a peer exists, so they must fail soon after the peer has closed.
const EMPTY_WRITE_GRACE: Duration = Duration::from_secs(1);

/// An attempt to connect a queue pair manually. Its references are weak, because the queue pair holds the attempt until
/// it is reset or disconnected.
#[derive(Debug)]
pub(super) struct ManualAttempt {
    pub(super) ctx: Weak<CmContext>,
    pub(super) pair: Weak<QueuePair>,
    pub(super) port: Weak<ManualPort>,
    /// The address at which this end listens, or from which it dials.
    pub(super) local: SocketAddr,
    /// The address at which the peer listens.
    pub(super) remote: SocketAddr,
    /// The GIDs and numbers of both ends, which proofs cover.
    pub(super) ends: Ends,
    /// The part that is common to all hellos of this end.
    pub(super) hello: Hello,
    pub(super) terms: Terms,
    pub(super) options: BringUpOptions,
    /// Whether this end dials. Otherwise the peer does.
    pub(super) dials: bool,
    pub(super) progress: Mutex<Progress>,
    /// Held while a stream starts, and while the attempt ends: a stream must not start for a queue pair that was reset
    /// meanwhile.
    pub(super) starting: Mutex<()>,
}

/// The part of an attempt that changes.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The nonce of this end as the acceptor. Replaced whenever a connection is claimed, so that no proof is valid for
    /// two connections.
    pub(super) nonce: Token,
    /// The acceptor's nonce, if the peer has answered the last dial with a challenge.
    pub(super) challenge: Option<Token>,
    /// Dial again without a pause, to answer a challenge. Cleared when that dial is scheduled.
    pub(super) redial_at_once: bool,
    /// The first packet sequence number that this end sends (sq_psn), once the program has set it.
    pub(super) send_psn: Option<u32>,
    /// The refusal of an end that looks like the peer was logged: further ones are not.
    pub(super) warned: bool,
    /// Time until the next dial, if the current one fails.
    pause: Duration,
    /// When a check first found a work request that waits for the peer; `None` if none waits.
    pub(super) waiting_since: Option<Instant>,
    /// The last error that dialling again is unlikely to cure. Reported if the attempt times out.
    pub(super) lasting_error: Option<ConnectError>,
    /// Number of restarts of the request timeout. A check that was scheduled before the last restart does nothing.
    pub(super) restarts: u64,
    /// The connection, or the one that is being dialled. Dangling if there is none.
    pub(super) link: Weak<TcpLink>,
}

/// The phase of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no connection yet.
    Connecting,
    /// One handshake has been chosen, and is about to become the queue pair's connection. Others are refused.
    Claimed,
    /// The queue pair has its connection.
    Connected,
    /// The peer has closed the connection. As with RoCE, the program is not told: its receives stay posted, and its
    /// requests time out.
    PeerClosed,
    /// The attempt was given up, or the program has reset or disconnected the queue pair.
    Ended,
}

impl ManualAttempt {
    /// Returns the number of the queue pair that is being connected.
    pub(super) fn number(&self) -> u32 {
        self.hello.source
    }

    /// Locks the changing part.
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    /// Returns whether a hello comes from the queue pair and the addresses that the program named, if the peer dials.
    pub(super) fn is_expected(&self, hello: &Hello, incoming: &Incoming) -> bool {
        let local = incoming.local().ip();
        // A stream to the address of another logical device is never accepted (requirement X3).
        let everywhere = || {
            self.ctx.upgrade().is_some_and(|ctx| ctx.config().listen_everywhere && ctx.logical().owns(local))
        };
        !self.dials
            && hello.source == self.hello.destination
            && incoming.peer().ip() == self.remote.ip()
            && (local == self.local.ip() || everywhere())
    }

    // --- Dialling ---

    /// Dials the peer again, if the queue pair still needs a connection. Called when the pause after a failed handshake
    /// is over; the first dial is made in `bring_up.rs`.
    fn dial(self: &Arc<Self>) {
        let Some(ctx) = self.ctx.upgrade() else { return };
        if self.pair.strong_count() == 0 || !self.is_connecting() {
            return;
        }
        let dialled = self.new_dial(&ctx).and_then(|dial| Ok(ctx.begin_handshake(dial)?));
        if let Err(error) = dialled {
            self.on_handshake_failed(error);
        }
    }

    /// Creates a handshake that dials the peer with a hello.
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
            traffic_class: self.options.traffic_class,
        };
        let target: Arc<dyn DialTarget> = Arc::<Self>::clone(self);
        let dial = Dial::new(ctx, target, request)?;
        self.progress().link = Arc::downgrade(dial.link());
        Ok(dial)
    }

    // --- The phases ---

    /// Returns whether the queue pair has no connection yet, and none was claimed.
    pub(super) fn is_connecting(&self) -> bool {
        self.progress().phase == Phase::Connecting
    }

    /// Makes the attempt continue after a failed handshake: if this end dials, schedules the next dial; otherwise the
    /// peer dials again. Gives the attempt up if the error would repeat. Does nothing if the queue pair has a
    /// connection meanwhile, or the attempt has ended.
    pub(super) fn on_handshake_failed(self: &Arc<Self>, error: ConnectError) {
        let mut progress = self.progress();
        if progress.phase == Phase::Claimed {
            progress.phase = Phase::Connecting; // the claimed handshake is the one that failed: others were refused
        }
        if progress.phase != Phase::Connecting {
            return;
        }
        let mut at = Instant::now();
        // Set if the peer answered a hello without proof by a challenge: a step of connecting, not a failure.
        let redial_at_once = std::mem::take(&mut progress.redial_at_once);
        if !redial_at_once {
            at += progress.pause;
            progress.pause = (2 * progress.pause).min(MAX_PAUSE);
        }
        drop(progress);
        if matches!(
            error,
            ConnectError::Startup(_) | ConnectError::InvalidArgument(_) | ConnectError::Connected(_)
        ) {
            return self.give_up(error); // another handshake would fail in the same way
        }
        if !redial_at_once {
            self.log_failure(error);
        }
        if self.dials
            && let Some(ctx) = self.ctx.upgrade()
        {
            let this = Arc::downgrade(self);
            ctx.call_at_or_log(at, move || {
                if let Some(attempt) = this.upgrade() {
                    attempt.dial();
                }
            });
        }
    }

    /// Logs why a handshake failed. If the user has to change something, logs a warning, once, and stores the error as
    /// lasting.
    fn log_failure(&self, error: ConnectError) {
        let lasting = match &error {
            ConnectError::NoReason | ConnectError::Unproven | ConnectError::OtherRelease(_) => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::PermissionDenied,
            // The program may have set the secret after the hello was sent: then the next hello succeeds.
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
        if self.progress().lasting_error.is_none() {
            let qp = format_args!("{:#08x}", hello.source);
            tracing::warn!(%qp, %peer, "queue pair not connected yet: {error}");
        }
        self.progress().lasting_error = Some(error);
    }

    /// Ends the attempt without a connection: pending work requests fail with exceeded retries, and the error is
    /// reported. Does nothing if the queue pair is connected or the attempt has ended.
    pub(super) fn give_up(&self, error: ConnectError) {
        let _guard = lock(&self.starting);
        let mut progress = self.progress();
        if !matches!(progress.phase, Phase::Connecting | Phase::Claimed | Phase::PeerClosed) {
            return;
        }
        progress.phase = Phase::Ended;
        drop(progress);
        if let Some(pair) = self.pair.upgrade() {
            pair.qp().abort(QpError::Unreachable);
            pair.connect_failed(error);
        }
    }
}

impl Attempt for ManualAttempt {
    fn cancel(&self) -> bool {
        let _guard = lock(&self.starting);
        let mut progress = self.progress();
        let phase_before = std::mem::replace(&mut progress.phase, Phase::Ended);
        let pending = matches!(phase_before, Phase::Connecting | Phase::Claimed);
        if pending && let Some(link) = progress.link.upgrade() {
            // The peer may have parked the hello of this attempt, and must not mistake it for one of the next attempt.
            link.abort();
        }
        pending
    }

    /// Restarts the request timeout, which then fails the work requests that wait for the peer.
    fn on_peer_closed(self: Arc<Self>) {
        {
            let mut progress = self.progress();
            if progress.phase != Phase::Connected {
                return;
            }
            progress.phase = Phase::PeerClosed;
        }
        if let Some(ctx) = self.ctx.upgrade() {
            let this = Arc::downgrade(&self);
            ctx.call_at_or_log(Instant::now() + EMPTY_WRITE_GRACE, move || {
                if let Some(pair) = this.upgrade().and_then(|attempt| attempt.pair.upgrade()) {
                    pair.qp().forget_peer();
                }
            });
        }
        self.restart_request_timeout();
    }

    fn on_retries_changed(self: Arc<Self>) {
        self.restart_request_timeout();
    }

    fn set_send_psn(&self, psn: u32) {
        self.progress().send_psn = Some(psn & 0xff_ffff); // PSNs are 24 bits wide
    }
}

impl Expecting for ManualAttempt {
    fn accept_or_refuse(self: Arc<Self>, hello: &Hello, incoming: Incoming) {
        let answer = match self.check_hello(hello, &incoming) {
            Ok(answer) => answer,
            Err(reply) => {
                tracing::debug!(peer = %incoming.peer(), %hello, %reply, "rejected a peer");
                return incoming.reject_with(&reply);
            }
        };
        if !self.claim() {
            return incoming.refuse(Reason::Busy);
        }
        if self.pair.strong_count() == 0 {
            return incoming.refuse(Reason::NoQueuePair);
        }
        let answer = answer.emit().expect("numbers of 24 bits");
        let target: Arc<dyn Target> = Arc::<Self>::clone(&self);
        if let Err(error) =
            incoming.traffic_class(self.options.traffic_class).accept_for(target, self.terms, &answer)
        {
            self.on_handshake_failed(error);
        }
    }
}

impl Target for ManualAttempt {
    /// Starts the stream, or aborts the link if the program has reset or disconnected the queue pair meanwhile.
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        let _guard = lock(&self.starting);
        let (Some(pair), Phase::Claimed) = (self.pair.upgrade(), self.progress().phase) else {
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

    fn on_failed(self: Arc<Self>, error: ConnectError) {
        self.on_handshake_failed(error);
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
        self.progress().phase != Phase::Ended
    }

    fn check_reply(&self, link: &TcpLink, sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        match &reply {
            Reply::Rejected { private_data, .. } => Err(self.interpret_rejection(sent, private_data)),
            Reply::Accepted { private_data, .. } => {
                let (peer, local) = (link.peer_addr()?, link.local_addr()?);
                self.check_answer(sent, private_data, peer, local).inspect_err(|_| link.abort())?;
                Ok(reply)
            }
        }
    }

    /// Chooses the calling handshake, dialled or accepted, to become the queue pair's connection. Returns false if
    /// another one was chosen, the attempt has ended, or no new nonce can be generated.
    fn claim(&self) -> bool {
        let new_nonce = random();
        let mut progress = self.progress();
        let (Phase::Connecting, Ok(nonce)) = (progress.phase, new_nonce) else { return false };
        progress.phase = Phase::Claimed;
        progress.nonce = nonce;
        true
    }

    /// Returns false: only Ironwarp, which knows MPA revision 2, connects manually.
    fn on_no_reply(self: Arc<Self>) -> bool {
        false
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

impl Progress {
    /// Returns the state of an attempt that begins.
    pub(super) fn new(nonce: Token) -> Self {
        Self {
            phase: Phase::Connecting,
            nonce,
            challenge: None,
            redial_at_once: false,
            send_psn: None,
            warned: false,
            pause: FIRST_PAUSE,
            waiting_since: None,
            lasting_error: None,
            restarts: 0,
            link: Weak::new(),
        }
    }

    /// Sets how long sent data may stay unacknowledged (TCP_USER_TIMEOUT) to the response timeout of the queue pair,
    /// but never to less than the adapter allows all of its connections: the kernel also counts the time in which the
    /// remote window is closed, because the remote program has posted no receives.
    pub(super) fn set_user_timeout(&self, pair: &QueuePair) {
        if let (Some(timeout), Some(link)) = (pair.qp().retries().response_timeout(), self.link.upgrade()) {
            link.raise_user_timeout(timeout);
        }
    }
}
