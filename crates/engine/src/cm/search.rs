//! Finds the listener of an RDMA port: at the TCP port of the same number, or at a candidate (docs/wire.md).
//!
//! ```text
//!   dial TCP port N ───────── valid MPA Reply ──────────────────────▶ done: any iWARP peer may be there
//!        │ head start over, or any other answer
//!        ▼
//!   probe all candidates ──── one says "here" ── dial it, and name the port ── confirmed ──▶ done
//! ```
//!
//! A probe has no effect at a listener, and contains none of the program's data. So it does no harm if TCP port N turns out to be the
//! right one after all, because its program takes long to accept; and a stranger at a candidate learns only the number.

use super::context::CmContext;
use super::dial::{ConnectOptions, Dial, DialRequest, DialTarget};
use super::handshake::{Handshake, Target};
use super::probe::{Candidate, Probe, Searcher};
use crate::config::{PortPolicy, Users};
use crate::sys::sock_diag::{listener_owner, socket_owner};
use crate::sys::socket::TcpLink;
use crate::sys::tcp::{is_same_host, with_port};
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::connect::{Initiator, Reply, StartupError};
use ironwarp_rnic::link::Link;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{CmHeader, CmKind, PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long TCP port N may take to answer before candidates are probed: longer than a listener takes, and not long for a program that
/// finds a silent TCP server there.
const HEAD_START: Duration = Duration::from_millis(50);
/// The search for a listener.
#[derive(Debug)]
pub(crate) struct Search {
    ctx: Weak<CmContext>,
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
    /// Why it was not made; the result if no candidate is the listener.
    error: Option<ConnectError>,
    /// Number of candidates that have not answered; `None` before they are probed.
    probing: Option<usize>,
    /// Candidates at which the listener is, as they say.
    found: Vec<u16>,
    /// One of them is being dialled.
    dialling: bool,
    /// The queue pair is connected, or knows that it will not be.
    over: bool,
}

/// The connection to TCP port N, as its handshake sees it.
#[derive(Debug)]
struct FirstDial(Arc<Search>);

/// The connection to a candidate, as its handshake sees it.
#[derive(Debug)]
struct CandidateDial(Arc<Search>);

impl Search {
    /// Begins to connect a queue pair to an RDMA port.
    pub(crate) fn begin(
        ctx: &Arc<CmContext>,
        pair: &Arc<QueuePair>,
        to: SocketAddr,
        space: PortSpace,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let search = Arc::new(Self {
            ctx: Arc::downgrade(ctx),
            pair: Arc::clone(pair),
            to,
            port: RdmaPort { space, number: to.port() },
            options: options.clone(),
            state: Mutex::default(),
        });
        if ctx.config().port_policy() == PortPolicy::Apart {
            // Invalid options are reported at once, as if TCP port N were dialled.
            Initiator::new(options.mode, ctx.terms(options.ird, options.ord), &search.request())?;
            search.first_failed(io::Error::from_raw_os_error(libc::ECONNREFUSED).into());
            return Ok(());
        }
        let target = Arc::new(FirstDial(Arc::clone(&search)));
        match Dial::new(ctx, target, search.dial_request(ctx, to, &options.private_data)) {
            Ok(dial) => {
                lock(&search.state).first = Arc::downgrade(dial.link());
                let later = Arc::downgrade(&search);
                ctx.begin(dial)?;
                ctx.call_at(Instant::now() + HEAD_START, move || {
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

    /// The private data for a candidate.
    fn request(&self) -> Vec<u8> {
        [&CmHeader::for_port(CmKind::Port, self.port).emit()[..], &self.options.private_data].concat()
    }

    fn dial_request(&self, ctx: &CmContext, to: SocketAddr, private_data: &[u8]) -> DialRequest {
        let ConnectOptions { from, mode, ird, ord, .. } = self.options;
        DialRequest { to, from, mode, terms: ctx.terms(ird, ord), private_data: private_data.into() }
    }

    // --- TCP port N ---

    /// There was no valid Reply at TCP port N, or the Reply was a rejection.
    fn first_failed(self: &Arc<Self>, error: ConnectError) {
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

    /// Probes all candidates, once.
    fn probe(self: &Arc<Self>) {
        let candidates: Vec<_> = self.port.candidates().collect();
        {
            let mut state = lock(&self.state);
            if state.over || state.probing.is_some() {
                return;
            }
            state.probing = Some(candidates.len());
        }
        for number in candidates {
            let from = self.options.from.map(|from| with_port(from, 0));
            let candidate = Candidate { port: self.port, at: with_port(self.to, number), from };
            let begun = self.ctx.upgrade().is_some_and(|ctx| {
                let probe = Probe::new(&ctx, Arc::<Self>::clone(self), candidate);
                probe.is_ok_and(|probe| ctx.begin(probe).is_ok())
            });
            if !begun {
                self.candidate_probed(number, false);
            }
        }
    }

    /// A candidate has answered, or not in time.
    fn candidate_probed(self: &Arc<Self>, candidate: u16, here: bool) {
        {
            let mut state = lock(&self.state);
            state.probing = state.probing.map(|left| left.saturating_sub(1));
            if here {
                state.found.push(candidate);
            }
        }
        self.go_on();
    }

    /// A candidate that claimed to be the listener is not, or rejected the connection.
    fn candidate_failed(self: &Arc<Self>, error: ConnectError) {
        if !is_no_reply(&error) {
            return self.fail(error);
        }
        let mut state = lock(&self.state);
        state.dialling = false;
        state.error = Some(error);
        drop(state);
        self.go_on();
    }

    /// Dials the next candidate that was found, or gives up if nothing is left to wait for.
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
            self.pair.connect_failed(error);
        }
    }

    fn dial_candidate(self: &Arc<Self>, candidate: u16) {
        let Some(ctx) = self.ctx.upgrade() else { return };
        let request = self.dial_request(&ctx, with_port(self.to, candidate), &self.request());
        let target = Arc::new(CandidateDial(Arc::clone(self)));
        let dialled = Dial::new(&ctx, target, request).and_then(|dial| Ok(ctx.begin(dial)?));
        if let Err(error) = dialled {
            self.candidate_failed(error);
        }
    }

    // --- The end ---

    /// Whether a connection is still wanted: that to TCP port N, or that to a candidate.
    fn wants(&self, at_candidate: bool) -> bool {
        let state = lock(&self.state);
        !state.over && state.dialling == at_candidate
    }

    /// A peer has accepted, at TCP port N or at a candidate. Returns false if another connection was chosen before.
    fn settle(&self, at_candidate: bool) -> bool {
        let mut state = lock(&self.state);
        if state.over || state.dialling != at_candidate {
            return false;
        }
        state.over = true;
        true
    }

    /// There will be no connection.
    fn fail(&self, error: ConnectError) {
        let told = std::mem::replace(&mut lock(&self.state).over, true);
        if !told {
            self.pair.connect_failed(error);
        }
    }

    /// The handshake is done: starts the stream. The search is over, so it cannot try another connection if that fails.
    fn start(
        &self,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        if let Err(error) = self.pair.start_stream(link, established, early) {
            self.pair.connect_failed(error);
        }
        Ok(())
    }

    /// Whether this end may talk to a candidate. On one host a stranger can take a candidate before the listener does, so it must belong to
    /// this user, to root, to a user of the setting `users`, or to the owner of the listener at TCP port N. `accepted`: the peer has
    /// accepted, so its connected socket is checked and not the listening one.
    fn is_trusted(&self, link: &TcpLink, accepted: bool) -> bool {
        let Some(ctx) = self.ctx.upgrade() else { return false };
        let users = &ctx.config().users;
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
                    "TCP port {} belongs to user {uid}, and this process to user {own}: not trusted as {}; if that is intended, set IRONWARP_USERS={uid}",
                    peer.port(),
                    self.port
                );
                false
            }
            Ok(None) => false, // it has been closed
            Err(error) => {
                tracing::warn!(%error, "failed to find the owner of TCP port {}: not trusted as {}; IRONWARP_USERS=any turns the check off", peer.port(), self.port);
                false
            }
        }
    }
}

impl Searcher for Search {
    fn trusts(&self, link: &TcpLink) -> bool {
        self.is_trusted(link, false)
    }

    fn probed(self: Arc<Self>, candidate: u16, here: bool) {
        self.candidate_probed(candidate, here);
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        Arc::new(FirstDial(self))
    }
}

impl Target for FirstDial {
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        self.0.start(link, established, early)
    }

    fn failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.first_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl DialTarget for FirstDial {
    fn is_wanted(&self) -> bool {
        self.0.wants(false)
    }

    fn check_reply(&self, link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        let is_elsewhere = |header: &CmHeader| header.kind == CmKind::NotListening;
        if CmHeader::parse(private_data(&reply)).is_ok_and(|(header, _)| is_elsewhere(&header)) {
            link.abort();
            return Err(ConnectError::Elsewhere);
        }
        Ok(reply)
    }

    fn claim(&self) -> bool {
        self.0.settle(false)
    }

    fn falls_back(self: Arc<Self>) -> bool {
        self.0.probe(); // at once: it may be a TCP server
        true
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

impl Target for CandidateDial {
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        self.0.start(link, established, early)
    }

    fn failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.candidate_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl CandidateDial {
    /// The program's data is for the listener alone.
    fn check_trust(&self, link: &TcpLink, accepted: bool) -> Result<(), ConnectError> {
        if self.0.is_trusted(link, accepted) {
            return Ok(());
        }
        link.abort();
        Err(ConnectError::Elsewhere)
    }
}

impl DialTarget for CandidateDial {
    fn is_wanted(&self) -> bool {
        self.0.wants(true)
    }

    fn check_peer(&self, link: &TcpLink) -> Result<(), ConnectError> {
        self.check_trust(link, false)
    }

    /// The Reply has to confirm the RDMA port; what comes behind that is the program's.
    fn check_reply(&self, link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        if matches!(reply, Reply::Accepted { .. }) {
            self.check_trust(link, true)?; // a peer that rejects has closed its socket, which has no owner any more
        }
        let confirmed = |header: &CmHeader| header.kind == CmKind::Port && header.port == Some(self.0.port);
        let rest: Box<[u8]> = match CmHeader::parse(private_data(&reply)) {
            Ok((header, rest)) if confirmed(&header) => rest.into(),
            _ => {
                link.abort();
                return Err(ConnectError::Elsewhere);
            }
        };
        Ok(match reply {
            Reply::Accepted { agreed, consumed, .. } => {
                Reply::Accepted { agreed, private_data: rest, consumed }
            }
            Reply::Rejected { peer, .. } => Reply::Rejected { peer, private_data: rest },
        })
    }

    fn claim(&self) -> bool {
        self.0.settle(true)
    }

    /// Only Ironwarp listens at candidates.
    fn falls_back(self: Arc<Self>) -> bool {
        false
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

fn private_data(reply: &Reply) -> &[u8] {
    let (Reply::Accepted { private_data, .. } | Reply::Rejected { private_data, .. }) = reply;
    private_data
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
