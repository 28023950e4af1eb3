//! A handshake that a peer began: its Request, the program's decision, and the Reply.

use super::admission::Stage;
use super::exchange::{Exchange, REQUEST_ROOM, ROOM};
use super::handshake::Target;
use super::incoming::{AskedPort, Decide, Decision, Incoming, reply_data};
use super::listener::{Judgement, ListenerSocket};
use crate::reactor::handle::LaneHandle;
use crate::sys::socket::TcpLink;
use crate::sys::tcp::configure_accepted;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::connect::{Agreed, Incoming as Request, StartupError};
use ironwarp_rnic::link::Link;
use ironwarp_wire::Parse;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How many times longer than a peer a program may take. Drivers of hardware wait for 60 s, which this is with the default settings.
const DECISION: u32 = 6;

/// Where a connection was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) same_host: bool,
}

/// A handshake that a peer began. It lives on a lane's thread.
#[derive(Debug)]
pub(super) struct Answer {
    token: u64,
    link: Arc<TcpLink>,
    ends: Ends,
    listener: Arc<ListenerSocket>,
    lane: Arc<LaneHandle>,
    handshakes: Weak<dyn Decide>,
    deadline: Instant,
    exchange: Exchange,
    state: State,
    /// What the Request says of the RDMA port, if anything.
    asked: Option<AskedPort>,
}

#[derive(Debug)]
enum State {
    /// The Request is due.
    Request,
    /// The program has it, and decides.
    Deciding(Request),
    /// The Reply is being sent.
    Accepting(Box<Decision>, Agreed),
    Rejecting,
}

impl Answer {
    pub(super) fn new(
        link: TcpLink,
        listener: &Arc<ListenerSocket>,
        ends: Ends,
        lane: &Arc<LaneHandle>,
        handshakes: Weak<dyn Decide>,
    ) -> Self {
        Self {
            token: lane.new_token(),
            link: Arc::new(link),
            ends,
            deadline: Instant::now() + listener.config.startup,
            listener: Arc::clone(listener),
            lane: Arc::clone(lane),
            handshakes,
            exchange: Exchange::default(),
            state: State::Request,
            asked: None,
        }
    }

    /// Its token in the lane's epoll.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    /// When whoever it waits for has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What it waits for.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Deciding(_) => Stage::Deciding,
            State::Request | State::Accepting(..) | State::Rejecting => Stage::Greeting,
        }
    }

    /// Maximum number of connections that wait for a decision at its listener.
    pub(super) fn backlog(&self) -> usize {
        self.listener.config.backlog
    }

    /// What the connection is for, once that is known.
    pub(super) fn target(&self) -> Option<Arc<dyn Target>> {
        match &self.state {
            State::Accepting(decision, _) => decision.target.as_ref().map(|taker| Arc::clone(&taker.target)),
            _ => None,
        }
    }

    /// Closes it because there is no room for it any more, or it took too long. A peer that has sent a Request is rejected, so that it knows
    /// it was understood and may try again. Any other is reset: nothing is left of it in the kernel.
    pub(super) fn evict(mut self) {
        match &self.state {
            State::Request => self.link.report_abort(),
            State::Deciding(request) => {
                if let Ok(reply) = request.reject(&reply_data(self.asked, &[])) {
                    self.exchange = Exchange::to_send(&reply);
                    let _ = self.exchange.send(&self.link); // or the peer gets no answer
                }
                self.link.finish();
            }
            State::Accepting(..) | State::Rejecting => self.link.abort(),
        }
        self.failed(ConnectError::TimedOut);
    }

    /// The program has decided.
    pub(super) fn decide(&mut self, decision: Decision) {
        let State::Deciding(request) = std::mem::replace(&mut self.state, State::Rejecting) else {
            return;
        };
        self.deadline = Instant::now() + self.listener.config.startup;
        let reply = match &decision.target {
            Some(taker) => request.accept(taker.terms, &decision.private_data).map(|(reply, agreed)| {
                self.state = State::Accepting(Box::new(decision), agreed);
                reply
            }),
            None => request.reject(&decision.private_data),
        };
        match reply {
            Ok(reply) => self.exchange = Exchange::to_send(&reply),
            Err(error) => tracing::error!(%error, "failed to encode a reply that was checked before"),
        }
    }

    /// Goes on as far as possible. Returns itself if it has to wait.
    pub(super) fn progress(mut self: Box<Self>) -> Option<Box<Self>> {
        match self.step() {
            Ok(true) => None,
            Ok(false) => Some(self),
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }

    /// Returns whether it is done.
    fn step(&mut self) -> Result<bool, ConnectError> {
        loop {
            match &self.state {
                State::Request => {
                    if let Parse::Done(request) = Request::parse(&self.exchange.read)? {
                        self.requested(request)?;
                    } else if !self.exchange.receive(&self.link, REQUEST_ROOM)? {
                        return Ok(false);
                    }
                }
                // The peer waits for the Reply. If it gives up, that shows here.
                State::Deciding(_) => {
                    return match self.exchange.receive(&self.link, REQUEST_ROOM)? {
                        true => Err(ConnectError::Startup(StartupError::DataBeforeReply(1))),
                        false => Ok(false),
                    };
                }
                State::Accepting(..) | State::Rejecting => {
                    if !self.exchange.send(&self.link)? || !self.may_start()? {
                        return Ok(false);
                    }
                    self.replied()?;
                    return Ok(true);
                }
            }
        }
    }

    fn requested(&mut self, request: Request) -> Result<(), ConnectError> {
        configure_accepted(&self.link, self.ends.same_host);
        let startup = self.listener.config.startup;
        match self.listener.judge(&request) {
            Judgement::Program(asked) => {
                self.asked = asked;
                self.deadline = Instant::now() + startup * DECISION;
                self.state = State::Deciding(request.clone());
                self.listener.config.sink.send(self.incoming(request));
            }
            Judgement::Rejected(header) => {
                self.exchange = Exchange::to_send(&request.reject(&header.emit())?);
                self.deadline = Instant::now() + startup;
                self.state = State::Rejecting;
            }
        }
        Ok(())
    }

    fn incoming(&self, request: Request) -> Incoming {
        Incoming {
            lane: Arc::clone(&self.lane),
            handshakes: Weak::clone(&self.handshakes),
            token: self.token,
            request,
            peer: self.ends.peer,
            local: self.ends.local,
            asked: self.asked,
            decided: false,
        }
    }

    /// Whether the stream may start. Nothing may be sent before the first FPDU of the end that dialled (RFC 5044 §7.1.2), so a manually connected
    /// queue pair waits for it: if that end left before, the queue pair can still have another connection.
    fn may_start(&mut self) -> Result<bool, ConnectError> {
        let waits = self.target().is_some_and(|target| target.awaits_first_fpdu());
        match waits && self.exchange.read.is_empty() {
            true => self.exchange.receive(&self.link, ROOM),
            false => Ok(true),
        }
    }

    fn replied(&mut self) -> Result<(), ConnectError> {
        match std::mem::replace(&mut self.state, State::Rejecting) {
            State::Accepting(mut decision, agreed) => {
                let (Some(taker), true) =
                    (&mut decision.target, self.listener.config.adapter.strong_count() > 0)
                else {
                    return Ok(());
                };
                taker.established.agreed = agreed;
                let early = std::mem::take(&mut self.exchange.read);
                let target = Arc::clone(&taker.target);
                let started = target.start(&self.link, taker.established.clone(), early);
                if started.is_err() {
                    self.state = State::Accepting(decision, agreed); // its target is told by `failed`
                }
                started
            }
            _ => {
                self.link.finish();
                Ok(())
            }
        }
    }

    pub(super) fn failed(self, error: ConnectError) {
        tracing::debug!(%error, "incoming connection failed");
        match self.state {
            State::Accepting(decision, _) => decision.failed(error),
            State::Deciding(_) => {
                let token = self.token;
                self.listener.config.sink.revoke(&|incoming| incoming.token == token);
            }
            State::Request | State::Rejecting => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_wire::mpa::MAX_STARTUP;

    /// SECURITY.md says how much memory one address can make an adapter use: 2 KiB for each connection that waits for its peer, 4 KiB for
    /// each that waits for the program.
    #[test]
    fn connections_in_the_making_need_little_memory() {
        // A byte at a time, memory is doubled; and `admission.rs` has a few words for each.
        let greeting = size_of::<Answer>() + size_of::<TcpLink>() + 2 * REQUEST_ROOM + 256;
        assert!(greeting <= 2 << 10, "{greeting} bytes");
        let deciding = greeting + 2 * (size_of::<Incoming>() + MAX_STARTUP);
        assert!(deciding <= 4 << 10, "{deciding} bytes");
    }
}
