//! Finds the listener of an RDMA port: at the TCP port of the same number, or at a candidate (docs/wire.md). Before this: a program
//! connects to a port of the connection manager; after: `setup.rs` with the one connection that is made.
//!
//! ```text
//!   dial TCP port N ───────── valid MPA Reply ──────────────────────▶ done: any iWARP peer may be there
//!        │ head start over, or any other answer
//!        ▼
//!   probe all candidates ──── one says "here" ── dial it, and name the port ── confirmed ──▶ done
//! ```
//!
//! A probe has no effect at a listener, and none of the program's data in it. So it does not matter that TCP port N may yet turn out to be
//! the right one, where a program takes its time to accept, and a stranger at a candidate learns no more than the number.

use crate::engine::{ConnectOptions, Engine};
use crate::event::ConnectError;
use crate::pair::QueuePair;
use crate::set::lock;
use crate::setup::{Dial, Probe, Setup};
use crate::sys::setup::{is_same_host, with_port};
use crate::sys::sock_diag::{listener_owner, socket_owner};
use crate::sys::socket::TcpLink;
use ironwarp_rnic::config::{PortPolicy, Users};
use ironwarp_rnic::connect::{Initiator, StartupError};
use ironwarp_rnic::link::Link;
use ironwarp_wire::private::{Aside, AsideKind, PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long TCP port N is waited for before candidates are probed: longer than a listener's answer takes, and not long for a program
/// that connects where a silent TCP server is.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long a candidate may take to answer. One SYN may be lost: it is sent again after a second.
pub(crate) const PROBE_TIME: Duration = Duration::from_secs(2);

/// The search for a listener.
#[derive(Debug)]
pub(crate) struct Search {
    engine: Weak<Engine>,
    pair: Arc<QueuePair>,
    to: SocketAddr,
    port: RdmaPort,
    options: ConnectOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The connection to TCP port N.
    first: Weak<TcpLink>,
    /// Why that is not the one; what is told if no candidate is.
    error: Option<ConnectError>,
    /// Number of candidates that have not answered; `None`: not asked yet.
    probing: Option<usize>,
    /// Candidates that say that the listener is there.
    found: Vec<u16>,
    /// One of them is being dialled.
    dialling: bool,
    /// The queue pair was told, or is connected.
    over: bool,
}

impl Search {
    /// Begins to connect a queue pair to an RDMA port.
    pub(crate) fn begin(
        engine: &Arc<Engine>,
        pair: &Arc<QueuePair>,
        to: SocketAddr,
        (space, options): (PortSpace, &ConnectOptions),
    ) -> Result<(), ConnectError> {
        let search = Arc::new(Self {
            engine: Arc::downgrade(engine),
            pair: Arc::clone(pair),
            to,
            port: RdmaPort { space, number: to.port() },
            options: options.clone(),
            state: Mutex::default(),
        });
        if engine.config().port_policy() == PortPolicy::Apart {
            // Whatever is wrong with the options is told at once, as if TCP port N were dialled.
            Initiator::new(options.way, engine.terms(options.ird, options.ord), &search.request())?;
            search.first_failed(io::Error::from_raw_os_error(libc::ECONNREFUSED).into());
            return Ok(());
        }
        match search.dial(engine, to, &options.private_data) {
            Ok(dial) => {
                lock(&search.state).first = Arc::downgrade(dial.link());
                let later = Arc::downgrade(&search);
                engine.begin_setup(Box::new(Setup::Dial(dial.in_search(&search, None))))?;
                engine.call_at(Instant::now() + HEAD_START, move || {
                    later.upgrade().iter().for_each(Self::probe);
                })?;
                Ok(())
            }
            Err(error) if is_no_reply(&error) => {
                search.first_failed(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What is said to a candidate, behind the header of the Request.
    fn request(&self) -> Vec<u8> {
        [&Aside::about(AsideKind::Port, self.port).emit()[..], &self.options.private_data].concat()
    }

    fn dial(&self, engine: &Arc<Engine>, to: SocketAddr, data: &[u8]) -> Result<Dial, ConnectError> {
        let terms = engine.terms(self.options.ird, self.options.ord);
        Dial::new(engine, &self.pair, (to, self.options.from), (self.options.way, terms), data)
    }

    // --- TCP port N ---

    /// There is no valid Reply at TCP port N, or it says that there will be no connection.
    pub(crate) fn first_failed(self: &Arc<Self>, error: ConnectError) {
        if !is_no_reply(&error) {
            return self.fail(error);
        }
        let mut state = lock(&self.state);
        if state.error.is_none() {
            state.error = Some(error);
        }
        drop(state);
        self.probe();
        self.go_on();
    }

    // --- Candidates ---

    /// Asks all candidates, once.
    pub(crate) fn probe(self: &Arc<Self>) {
        let candidates: Vec<_> = self.port.candidates().collect();
        {
            let mut state = lock(&self.state);
            if state.over || state.probing.is_some() {
                return;
            }
            state.probing = Some(candidates.len());
        }
        for candidate in candidates {
            let begun = self.engine.upgrade().is_some_and(|engine| {
                let probe = Probe::new(&engine, self, (candidate, with_port(self.to, candidate)));
                probe.is_ok_and(|probe| engine.begin_setup(Box::new(Setup::Probe(probe))).is_ok())
            });
            if !begun {
                self.probed(candidate, false);
            }
        }
    }

    /// A candidate has answered, or not in time.
    pub(crate) fn probed(self: &Arc<Self>, candidate: u16, here: bool) {
        {
            let mut state = lock(&self.state);
            state.probing = state.probing.map(|left| left.saturating_sub(1));
            if here {
                state.found.push(candidate);
            }
        }
        self.go_on();
    }

    /// A candidate that said to be the one is not, or does not want the connection.
    pub(crate) fn candidate_failed(self: &Arc<Self>, error: ConnectError) {
        if !is_no_reply(&error) {
            return self.fail(error);
        }
        let mut state = lock(&self.state);
        state.dialling = false;
        state.error = Some(error);
        drop(state);
        self.go_on();
    }

    /// Dials the next candidate that was found, or gives up if there is nothing left to wait for.
    fn go_on(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.over || state.dialling {
            return;
        }
        if let Some(candidate) = state.found.pop() {
            state.dialling = true;
            let first = state.first.upgrade();
            if state.error.is_none() {
                state.error = Some(ConnectError::TimedOut);
            }
            drop(state);
            if let Some(first) = first {
                first.abort();
            }
            return self.dial_candidate(candidate);
        }
        if state.probing == Some(0)
            && let Some(error) = state.error.take()
        {
            state.over = true;
            drop(state);
            self.pair.failed(error);
        }
    }

    fn dial_candidate(self: &Arc<Self>, candidate: u16) {
        let Some(engine) = self.engine.upgrade() else { return };
        let dialled = self.dial(&engine, with_port(self.to, candidate), &self.request()).and_then(|dial| {
            let dial = dial.in_search(self, Some(self.port));
            Ok(engine.begin_setup(Box::new(Setup::Dial(dial)))?)
        });
        if let Err(error) = dialled {
            self.candidate_failed(error);
        }
    }

    // --- The end ---

    /// Whether a connection can still be the one: that to TCP port N, or that to a candidate.
    pub(crate) fn wants(&self, at_candidate: bool) -> bool {
        let state = lock(&self.state);
        !state.over && state.dialling == at_candidate
    }

    /// A peer has accepted, at TCP port N or at a candidate. False: another connection was chosen before.
    pub(crate) fn settle(&self, at_candidate: bool) -> bool {
        let mut state = lock(&self.state);
        if state.over || state.dialling != at_candidate {
            return false;
        }
        state.over = true;
        true
    }

    /// There will be no connection.
    pub(crate) fn fail(&self, error: ConnectError) {
        let told = std::mem::replace(&mut lock(&self.state).over, true);
        if !told {
            self.pair.failed(error);
        }
    }

    /// The address that candidates are asked from, if the program chose one.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.options.from.map(|from| with_port(from, 0))
    }

    pub(crate) fn port(&self) -> RdmaPort {
        self.port
    }

    /// Whether this end may talk to a candidate. On one host a stranger can take a candidate before the listener does, so it must belong to
    /// this user, to root, to a user of the setting `users`, or to the one who listens at TCP port N. `accepted`: the peer has
    /// accepted, so its own socket is asked for and not the one that listens.
    pub(crate) fn trusts(&self, link: &TcpLink, accepted: bool) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let users = &engine.config().users;
        let (Ok(peer), Ok(local)) = (link.peer_addr(), link.local_addr()) else { return false };
        if *users == Users::Any || !is_same_host(peer).unwrap_or(true) {
            return true;
        }
        let owner = if accepted { socket_owner(peer, local) } else { listener_owner(peer) };
        let own = rustix::process::geteuid().as_raw();
        match owner {
            Ok(Some(0)) => true,
            Ok(Some(uid)) if users.accept(own, uid) => true,
            Ok(Some(uid)) if listener_owner(self.to).is_ok_and(|first| first == Some(uid)) => true,
            Ok(Some(uid)) => {
                tracing::warn!(
                    "TCP port {} belongs to user {uid}, and this process to user {own}: it is not taken for {}; if that is intended, set IRONWARP_USERS={uid}",
                    peer.port(),
                    self.port
                );
                false
            }
            Ok(None) => false, // it has been closed
            Err(error) => {
                tracing::warn!(%error, "cannot tell which user TCP port {} belongs to: it is not taken for {}; IRONWARP_USERS=any turns the check off", peer.port(), self.port);
                false
            }
        }
    }
}

/// Whether an error means that no valid MPA Reply came: the listener may be elsewhere.
fn is_no_reply(error: &ConnectError) -> bool {
    match error {
        ConnectError::Closed
        | ConnectError::TimedOut
        | ConnectError::Elsewhere
        | ConnectError::Startup(StartupError::Malformed(_)) => true,
        ConnectError::System(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::TimedOut
                | io::ErrorKind::NotConnected
        ),
        _ => false,
    }
}
