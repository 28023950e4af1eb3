//! Finds the listener of an RDMA port: at the TCP port of the same number, or at a candidate (docs/wire.md).
//!
//! ```text
//!   dial TCP port N ───────── valid MPA Reply ──────────────────────▶ done: any iWARP peer may be there
//!        │ no Reply within the head start, or any other answer
//!        ▼
//!   probe all candidates ──── one is the listener ── dial it, and name the port ── confirmed ──▶ done
//! ```
//!
//! A probe has no effect at a listener, and contains no data of the program. So probes are harmless if the listener is
//! at TCP port N after all and its program is only slow to accept, and a stranger at a candidate learns only the number
//! of the RDMA port.

use super::context::CmContext;
use super::dial::{ConnectOptions, Dial, DialRequest, DialTarget};
use super::handshake::{Handshake, Target};
use super::probe::{Candidate, Probe, Searcher};
use crate::config::PortPolicy;
use crate::sys::socket::TcpLink;
use crate::sys::tcp::with_port;
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

mod trust;

use trust::{PeerSocket, is_trusted};

/// How long TCP port N may take to answer before candidates are probed. Listeners answer faster, and the delay is short
/// enough for a program if another TCP server is at port N and does not answer.
const HEAD_START: Duration = Duration::from_millis(50);

/// The search for the listener of an RDMA port, to which it connects a queue pair.
#[derive(Debug)]
pub(crate) struct Search {
    ctx: Weak<CmContext>,
    pair: Arc<QueuePair>,
    /// The address of the peer, with TCP port N.
    to: SocketAddr,
    port: RdmaPort,
    options: ConnectOptions,
    state: Mutex<State>,
}

/// The state of a search.
#[derive(Debug, Default)]
struct State {
    /// The link of the dial of TCP port N.
    first_link: Weak<TcpLink>,
    /// The error of the last dial that failed, which is reported if no candidate is the listener.
    error: Option<ConnectError>,
    /// Number of candidates whose probes have not ended; `None` before candidates are probed.
    pending_probes: Option<usize>,
    /// Candidates that claim to be the listener, and were not dialled yet.
    found: Vec<u16>,
    /// A candidate is being dialled. The dial of TCP port N does not count any more.
    dialling_candidate: bool,
    /// A connection was chosen, or the failure was reported.
    over: bool,
}

/// One of the two kinds of dials of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialKind {
    /// The dial of TCP port N.
    First,
    /// The dial of a candidate.
    Candidate,
}

/// The target of the dial of TCP port N.
#[derive(Debug)]
struct FirstDial(Arc<Search>);

/// The target of the dial of a candidate.
#[derive(Debug)]
struct CandidateDial(Arc<Search>);

impl Search {
    /// Begins to connect a queue pair to an RDMA port. Returns invalid arguments as errors; the queue pair reports the
    /// result.
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
            // TCP port N belongs to other programs: continues as if it had refused the connection. `Initiator::new`
            // checks the options, so that invalid ones are returned as an error in this case, too.
            Initiator::new(
                options.mode,
                ctx.terms(options.ird, options.ord),
                &search.candidate_private_data(),
            )?;
            search.on_first_failed(io::Error::from_raw_os_error(libc::ECONNREFUSED).into());
            return Ok(());
        }
        let target = Arc::new(FirstDial(Arc::clone(&search)));
        match Dial::new(ctx, target, search.dial_request(ctx, to, &options.private_data)) {
            Ok(dial) => {
                lock(&search.state).first_link = Arc::downgrade(dial.link());
                let later = Arc::downgrade(&search);
                ctx.begin_handshake(dial)?;
                ctx.call_at(Instant::now() + HEAD_START, move || {
                    later.upgrade().iter().for_each(Self::probe_candidates);
                })?;
                Ok(())
            }
            Err(error) if is_no_reply(&error) => {
                search.on_first_failed(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the private data for a candidate: that of the program, after a header with the RDMA port.
    fn candidate_private_data(&self) -> Vec<u8> {
        [&CmHeader::for_port(CmKind::Port, self.port).emit()[..], &self.options.private_data].concat()
    }

    /// Returns the request to dial this address, with the options of the program.
    fn dial_request(&self, ctx: &CmContext, to: SocketAddr, private_data: &[u8]) -> DialRequest {
        let ConnectOptions { from, mode, ird, ord, traffic_class, .. } = self.options;
        let (terms, private_data) = (ctx.terms(ird, ord), private_data.into());
        DialRequest { to, from, mode, terms, private_data, traffic_class }
    }

    // --- TCP port N ---

    /// Continues the search after the dial of TCP port N failed: probes the candidates, unless a peer has rejected the
    /// connection.
    fn on_first_failed(self: &Arc<Self>, error: ConnectError) {
        if !is_no_reply(&error) {
            return self.fail(error);
        }
        let mut state = lock(&self.state);
        if state.error.is_none() {
            state.error = Some(error);
        }
        drop(state);
        self.probe_candidates();
        self.dial_next_or_fail();
    }

    // --- Candidates ---

    /// Probes all candidates, unless that was done before.
    fn probe_candidates(self: &Arc<Self>) {
        let candidates: Vec<_> = self.port.candidates().collect();
        {
            let mut state = lock(&self.state);
            if state.over || state.pending_probes.is_some() {
                return;
            }
            state.pending_probes = Some(candidates.len());
        }
        for number in candidates {
            let from = self.options.from.map(|from| with_port(from, 0));
            let candidate = Candidate { port: self.port, at: with_port(self.to, number), from };
            let begun = self.ctx.upgrade().is_some_and(|ctx| {
                let probe = Probe::new(&ctx, Arc::<Self>::clone(self), candidate);
                probe.is_ok_and(|probe| ctx.begin_handshake(probe).is_ok())
            });
            if !begun {
                self.record_probe(number, false);
            }
        }
    }

    /// Records the result of a probe, and continues the search.
    fn record_probe(self: &Arc<Self>, candidate: u16, is_listener: bool) {
        {
            let mut state = lock(&self.state);
            state.pending_probes = state.pending_probes.map(|pending| pending.saturating_sub(1));
            if is_listener {
                state.found.push(candidate);
            }
        }
        self.dial_next_or_fail();
    }

    /// Continues the search after the dial of a candidate failed, unless the candidate has rejected the connection.
    fn on_candidate_failed(self: &Arc<Self>, error: ConnectError) {
        if !is_no_reply(&error) {
            return self.fail(error);
        }
        let mut state = lock(&self.state);
        state.dialling_candidate = false;
        state.error = Some(error);
        drop(state);
        self.dial_next_or_fail();
    }

    /// Dials the next candidate that claims to be the listener. Without one, reports the failure once TCP port N and
    /// all probes have failed.
    fn dial_next_or_fail(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.over || state.dialling_candidate {
            return;
        }
        if let Some(candidate) = state.found.pop() {
            state.dialling_candidate = true;
            let first = state.first_link.upgrade();
            // The dial of TCP port N is aborted below: if the candidates fail, too, it counts as timed out.
            if state.error.is_none() {
                state.error = Some(ConnectError::TimedOut);
            }
            drop(state);
            if let Some(first) = first {
                first.abort();
            }
            return self.dial_candidate(candidate);
        }
        if state.pending_probes == Some(0)
            && let Some(error) = state.error.take()
        {
            state.over = true;
            drop(state);
            self.pair.connect_failed(error);
        }
    }

    /// Dials a candidate, and names the RDMA port in the Request.
    fn dial_candidate(self: &Arc<Self>, candidate: u16) {
        let Some(ctx) = self.ctx.upgrade() else { return };
        let request = self.dial_request(&ctx, with_port(self.to, candidate), &self.candidate_private_data());
        let target = Arc::new(CandidateDial(Arc::clone(self)));
        let dialled = Dial::new(&ctx, target, request).and_then(|dial| Ok(ctx.begin_handshake(dial)?));
        if let Err(error) = dialled {
            self.on_candidate_failed(error);
        }
    }

    // --- The end ---

    /// Returns whether the connection of this dial can still become the queue pair's.
    fn is_wanted(&self, dial: DialKind) -> bool {
        lock(&self.state).is_wanted(dial)
    }

    /// Chooses the connection of this dial, which the peer has accepted. Returns false if another one was chosen
    /// before.
    fn claim(&self, dial: DialKind) -> bool {
        let mut state = lock(&self.state);
        let claimed = state.is_wanted(dial);
        state.over |= claimed;
        claimed
    }

    /// Ends the search without a connection, and reports the error unless the search was over.
    fn fail(&self, error: ConnectError) {
        let was_over = std::mem::replace(&mut lock(&self.state).over, true);
        if !was_over {
            self.pair.connect_failed(error);
        }
    }

    /// Returns whether this end may send data over `link`, which leads to a candidate: whether `socket` of the
    /// candidate belongs to a trusted user. False if the adapter is being closed.
    fn is_trusted(&self, link: &TcpLink, socket: PeerSocket) -> bool {
        self.ctx
            .upgrade()
            .is_some_and(|ctx| is_trusted(&ctx.config().users, self.port, self.to, link, socket))
    }

    /// Starts the stream on a link whose handshake is done. Reports an error to the queue pair: the search is over, and
    /// dials no other candidate.
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
}

impl State {
    /// Returns whether the connection of this dial can still become the queue pair's. Once a candidate is being
    /// dialled, the dial of TCP port N cannot.
    fn is_wanted(&self, dial: DialKind) -> bool {
        !self.over && self.dialling_candidate == (dial == DialKind::Candidate)
    }
}

impl Searcher for Search {
    fn trusts(&self, link: &TcpLink) -> bool {
        self.is_trusted(link, PeerSocket::Listening)
    }

    fn on_probed(self: Arc<Self>, candidate: u16, is_listener: bool) {
        self.record_probe(candidate, is_listener);
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        Arc::new(FirstDial(self)) // for a panic only, which ends the search: either kind of dial would do
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

    /// Continues the search. A dial that is not wanted any more does not count: another was chosen, or is in progress.
    fn on_failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.on_first_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl DialTarget for FirstDial {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted(DialKind::First)
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
        self.0.claim(DialKind::First)
    }

    /// Dials again, and probes the candidates at the same time: the peer may be another TCP server that does not know
    /// MPA.
    fn on_no_reply(self: Arc<Self>) -> bool {
        self.0.probe_candidates();
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

    /// Continues the search, unless it is over: the dial of this candidate does not count then.
    fn on_failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.on_candidate_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl CandidateDial {
    /// Aborts the link and fails if the candidate is not trusted: the program's data is only for the listener.
    fn check_trust(&self, link: &TcpLink, socket: PeerSocket) -> Result<(), ConnectError> {
        if self.0.is_trusted(link, socket) {
            return Ok(());
        }
        link.abort();
        Err(ConnectError::Elsewhere)
    }
}

impl DialTarget for CandidateDial {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted(DialKind::Candidate)
    }

    fn check_peer(&self, link: &TcpLink) -> Result<(), ConnectError> {
        self.check_trust(link, PeerSocket::Listening)
    }

    /// Checks that the Reply confirms the RDMA port, and removes that header from the private data.
    fn check_reply(&self, link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        if matches!(reply, Reply::Accepted { .. }) {
            // Not for a rejection: the peer has closed its socket, which has no owner any more.
            self.check_trust(link, PeerSocket::Connected)?;
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
        self.0.claim(DialKind::Candidate)
    }

    /// Returns false: only Ironwarp, which knows MPA revision 2, listens at candidates.
    fn on_no_reply(self: Arc<Self>) -> bool {
        false
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

/// Returns whether an error means that no valid MPA Reply was received: then the listener may be at a candidate.
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

/// Returns the private data of a Reply.
fn private_data(reply: &Reply) -> &[u8] {
    let (Reply::Accepted { private_data, .. } | Reply::Rejected { private_data, .. }) = reply;
    private_data
}
