//! A handshake that a peer began: it receives the Request, waits for the program's decision, and sends the Reply.

use super::admission::Stage;
use super::exchange::{Exchange, REQUEST_ROOM, ROOM};
use super::handshake::Target;
use super::incoming::{Decide, Decision, Incoming, RequestedPort, reply_data};
use super::listener::{Judgement, ListenerSocket};
use crate::reactor::handle::LaneHandle;
use crate::sys::socket::TcpLink;
use crate::sys::tcp::configure_accepted;
use crate::sys::traffic_class::set_traffic_class;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::connect::{Agreed, Incoming as Request, StartupError};
use ironwarp_rnic::link::Link;
use ironwarp_wire::Parse;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The time that a program may take to decide, as a multiple of the setting `startup`. With the default settings it is
/// 60 s, the time that drivers of hardware wait.
const DECISION_FACTOR: u32 = 6;

/// The addresses of an accepted connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoints {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// The peer is on this host.
    pub(super) same_host: bool,
}

/// A handshake that a peer began. Only a lane's thread uses it.
#[derive(Debug)]
pub(super) struct Answer {
    /// Identifies the socket in the lane's epoll.
    token: u64,
    link: Arc<TcpLink>,
    endpoints: Endpoints,
    listener: Arc<ListenerSocket>,
    lane: Arc<LaneHandle>,
    handshakes: Weak<dyn Decide>,
    /// When the handshake is evicted if the peer or the program has not continued it.
    deadline: Instant,
    exchange: Exchange,
    state: State,
    /// The RDMA port that the Request names, if any.
    requested_port: Option<RequestedPort>,
}

/// The state of a handshake.
#[derive(Debug)]
enum State {
    /// Waits for the Request.
    Request,
    /// Waits for the program's decision on the Request.
    Deciding(Request),
    /// Sends a Reply that accepts the connection.
    Accepting(Box<Decision>, Agreed),
    /// Sends a Reply that rejects the connection.
    Rejecting,
}

impl Answer {
    /// Begins the handshake of a connection that `listener` has accepted.
    pub(super) fn new(
        link: TcpLink,
        listener: &Arc<ListenerSocket>,
        endpoints: Endpoints,
        lane: &Arc<LaneHandle>,
        handshakes: Weak<dyn Decide>,
    ) -> Self {
        Self {
            token: lane.new_token(),
            link: Arc::new(link),
            endpoints,
            deadline: Instant::now() + listener.config.startup,
            listener: Arc::clone(listener),
            lane: Arc::clone(lane),
            handshakes,
            exchange: Exchange::default(),
            state: State::Request,
            requested_port: None,
        }
    }

    /// Returns the token of the socket in the lane's epoll.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the link.
    pub(super) fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    /// Returns when the handshake is evicted if the peer or the program has not continued it.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns whether the handshake waits for the peer or for the program.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Deciding(_) => Stage::Deciding,
            State::Request | State::Accepting(..) | State::Rejecting => Stage::Greeting,
        }
    }

    /// Returns whether the Request of the peer has not arrived.
    pub(super) fn awaits_request(&self) -> bool {
        matches!(self.state, State::Request)
    }

    /// Returns the listener that accepted the connection.
    pub(super) fn listener(&self) -> &Arc<ListenerSocket> {
        &self.listener
    }

    /// Returns the maximum number of connections that may wait for a decision at the listener.
    pub(super) fn backlog(&self) -> usize {
        self.listener.config.backlog
    }

    /// Returns the target of the connection, once the program has accepted it.
    pub(super) fn target(&self) -> Option<Arc<dyn Target>> {
        match &self.state {
            State::Accepting(decision, _) => decision.target.as_ref().map(|taker| Arc::clone(&taker.target)),
            _ => None,
        }
    }

    /// Ends the handshake, because there are too many or it took too long. A peer whose Request waits for a decision
    /// gets a rejection, and may try again. Any other connection is reset, so that the kernel keeps nothing of it.
    pub(super) fn evict(mut self) {
        match &self.state {
            State::Request => self.link.report_abort(),
            State::Deciding(request) => {
                if let Ok(reply) = request.reject(&reply_data(self.requested_port, &[])) {
                    self.exchange = Exchange::to_send(&reply);
                    let _ = self.exchange.send(&self.link); // if this fails, the peer gets no Reply
                }
                self.link.finish();
            }
            State::Accepting(..) | State::Rejecting => self.link.abort(),
        }
        self.fail(ConnectError::TimedOut);
    }

    /// Applies the program's decision, for which the handshake waits: prepares the Reply.
    pub(super) fn apply_decision(&mut self, decision: Decision) {
        let State::Deciding(request) = std::mem::replace(&mut self.state, State::Rejecting) else {
            return; // cannot happen: each `Incoming` submits one decision, and the handshake waits for it
        };
        self.deadline = Instant::now() + self.listener.config.startup;
        if let Some(class) =
            decision.target.as_ref().map(|taker| taker.traffic_class).filter(|&class| class != 0)
            && let Err(error) = set_traffic_class(&*self.link, class)
        {
            tracing::warn!(%error, class, "failed to set the traffic class of a connection");
        }
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

    /// Continues as far as possible without waiting. Returns the handshake if it is not done.
    pub(super) fn progress(mut self: Box<Self>) -> Option<Box<Self>> {
        match self.advance() {
            Ok(true) => None,
            Ok(false) => Some(self),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Continues as far as possible without waiting. Returns whether the handshake is done.
    fn advance(&mut self) -> Result<bool, ConnectError> {
        loop {
            match &self.state {
                State::Request => {
                    if let Parse::Done(request) = Request::parse(&self.exchange.read)? {
                        self.handle_request(request)?;
                    } else if !self.exchange.receive(&self.link, REQUEST_ROOM)? {
                        return Ok(false);
                    }
                }
                // Reads only to notice that the peer has closed: it must send nothing before it has the Reply.
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
                    self.finish()?;
                    return Ok(true);
                }
            }
        }
    }

    /// Passes the Request to the program, or prepares a rejection if it is not for this listener.
    fn handle_request(&mut self, request: Request) -> Result<(), ConnectError> {
        configure_accepted(&self.link, self.endpoints.same_host);
        let startup = self.listener.config.startup;
        match self.listener.judge(&request) {
            Judgement::AskProgram(requested_port) => {
                self.requested_port = requested_port;
                self.deadline = Instant::now() + startup * DECISION_FACTOR;
                self.state = State::Deciding(request.clone());
                self.listener.config.sink.send(self.incoming(request));
            }
            Judgement::Reject(header) => {
                self.exchange = Exchange::to_send(&request.reject(&header.emit())?);
                self.deadline = Instant::now() + startup;
                self.state = State::Rejecting;
            }
        }
        Ok(())
    }

    /// Returns the connection for the program to decide on.
    fn incoming(&self, request: Request) -> Incoming {
        Incoming {
            lane: Arc::clone(&self.lane),
            handshakes: Weak::clone(&self.handshakes),
            token: self.token,
            request,
            peer: self.endpoints.peer,
            local: self.endpoints.local,
            requested_port: self.requested_port,
            traffic_class: 0,
            decided: false,
        }
    }

    /// Returns whether the stream may start. Before the first FPDU of the dialling end, this end may send nothing (RFC
    /// 5044 §7.1.2), so a manually connected queue pair starts only then: if the dialling end leaves before, the queue
    /// pair can still get another connection.
    fn may_start(&mut self) -> Result<bool, ConnectError> {
        let waits = self.target().is_some_and(|target| target.awaits_first_fpdu());
        match waits && self.exchange.read.is_empty() {
            true => self.exchange.receive(&self.link, ROOM),
            false => Ok(true),
        }
    }

    /// Starts the stream of an accepted connection, or closes a rejected one. The Reply is sent.
    fn finish(&mut self) -> Result<(), ConnectError> {
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
                    self.state = State::Accepting(decision, agreed); // so that `fail` reports the error to the target
                }
                started
            }
            _ => {
                self.link.finish();
                Ok(())
            }
        }
    }

    /// Ends the handshake: reports the error to the target, or withdraws the connection from the program.
    pub(super) fn fail(self, error: ConnectError) {
        tracing::debug!(%error, "incoming connection failed");
        match self.state {
            State::Accepting(decision, _) => decision.fail(error),
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

    /// Checks the numbers in SECURITY.md: a handshake needs up to 2 KiB while it waits for its peer, and 4 KiB while it
    /// waits for the program.
    #[test]
    fn connections_in_the_making_need_little_memory() {
        // `Exchange::read` may have grown to twice the bytes it holds. `admission.rs` needs up to 256 bytes for each
        // handshake.
        let greeting = size_of::<Answer>() + size_of::<TcpLink>() + 2 * REQUEST_ROOM + 256;
        assert!(greeting <= 2 << 10, "{greeting} bytes");
        let deciding = greeting + 2 * (size_of::<Incoming>() + MAX_STARTUP);
        assert!(deciding <= 4 << 10, "{deciding} bytes");
    }
}
