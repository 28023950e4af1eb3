//! The state of a session, and what all of its parts need.

use super::action::Action;
use super::channel::Channel;
use super::config::{Config, Identity, InvalidConfig};
use super::error::{Reason, Violation};
use super::grants::Grants;
use crate::auth::Admission;
use crate::message::{Attach, Function, Mac, Message, Mode, Nonce, Operation, Request, Statistics};
use crate::pool::{Owner, PoolError, Sender};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of control messages that are outstanding. A peer that lets more pile up does not read them.
pub(super) const MAX_CONTROL: usize = 64;

/// One end of a session.
#[derive(Debug)]
pub struct Session {
    pub(super) config: Config,
    pub(super) side: Side,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) owner: Owner,
    pub(super) sender: Sender,
    /// For each request on the data channel that has not completed, in order: the pool whose frame is complete with it.
    pub(super) data: VecDeque<Option<u32>>,
    /// Number of requests on the control channel that have not completed.
    pub(super) control: usize,
    /// What the peer owes.
    pub(super) pending: Vec<Pending>,
    /// Flush requests of the peer that wait for acknowledgements.
    pub(super) flushes: Vec<PeerFlush>,
    pub(super) stall: Option<Stall>,
    pub(super) grants: Grants,
    pub(super) counters: Statistics,
    pub(super) attached: Option<Attached>,
    /// Whether the driver knows that frames can be sent.
    pub(super) up: bool,
    pub(super) last_context: u64,
    pub(super) now: Duration,
    actions: VecDeque<Action>,
    reason: Option<Reason>,
}

#[derive(Debug)]
pub(super) enum Side {
    Host {
        identity: Identity,
        /// The Attach that was sent, and the nonce that it answers.
        attach: Option<(Attach, Nonce)>,
    },
    Unit {
        nonce: Nonce,
        /// The Attach that has arrived, and its context.
        attach: Option<(Box<Attach>, u64)>,
        admission: Option<Admission>,
        /// Context of the Detach to answer when all frames are acknowledged.
        detach: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The host has asked for a nonce, or will.
    New,
    /// The host has the nonce of the unit.
    Challenged,
    /// The host is attached, without a data channel.
    Attached,
    /// Frames can be exchanged.
    Open,
    /// The host is detaching: frames still arrive, and none are sent.
    Detaching,
    /// The reply to Detach was sent, and the host will disconnect.
    Detached,
    Ended,
}

/// What the unit has granted to the host.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) session: u64,
    pub(super) generation: u64,
    pub(super) offloads: u32,
    pub(super) mtu: u32,
    pub(super) macs: Vec<Mac>,
}

#[derive(Debug)]
pub(super) struct Pending {
    /// Context of the request, or 0 if this is not a reply.
    pub(super) context: u64,
    pub(super) awaited: Awaited,
    deadline: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Reply(u16),
    /// Pools that this end owns and flushes.
    FlushOwn(Vec<u32>),
    /// Pools of the peer that this end gives back.
    GiveBack(Vec<u32>),
    Attach,
    Join,
    Disconnect,
}

impl Awaited {
    fn name(&self) -> &'static str {
        match self {
            Self::Reply(_) => "CfgUtilReply",
            Self::FlushOwn(_) | Self::GiveBack(_) => "BufferPoolFlushReply",
            Self::Attach => "Attach",
            Self::Join => "Join",
            Self::Disconnect => "disconnection after Detach",
        }
    }
}

#[derive(Debug)]
pub(super) struct PeerFlush {
    pub(super) context: u64,
    /// The pools of the peer in the request.
    pub(super) pools: Vec<u32>,
}

/// Sending has stopped because the peer has no room.
#[derive(Debug)]
pub(super) struct Stall {
    /// Length of the longest frame that found no room.
    pub(super) len: u32,
    /// Whether the peer was asked for another pool.
    pub(super) asked: bool,
}

impl Session {
    /// Creates the host's end. The control channel is connected. Time counts from any start.
    pub fn host(config: Config, identity: Identity, now: Duration) -> Result<Self, InvalidConfig> {
        identity.check()?;
        let mode = identity.mode;
        let mut session = Self::new(config, mode, Side::Host { identity, attach: None }, now)?;
        session.ask(&Request::Challenge, Channel::Control, Operation::Challenge);
        Ok(session)
    }

    /// Creates the unit's end for a control channel that a host has connected. `nonce` is a random number that was never
    /// used before. Time counts from any start.
    pub fn unit(config: Config, nonce: Nonce, now: Duration) -> Result<Self, InvalidConfig> {
        let side = Side::Unit { nonce, attach: None, admission: None, detach: None };
        let mut session = Self::new(config, Mode::Rdma, side, now)?;
        session.expect(0, Awaited::Attach);
        Ok(session)
    }

    fn new(config: Config, mode: Mode, side: Side, now: Duration) -> Result<Self, InvalidConfig> {
        config.check()?;
        let grants = Grants::new(config.max_pools, now);
        Ok(Self {
            config,
            side,
            mode,
            phase: Phase::New,
            owner: Owner::new(mode),
            sender: Sender::new(mode),
            data: VecDeque::new(),
            control: 0,
            pending: Vec::new(),
            flushes: Vec::new(),
            stall: None,
            grants,
            counters: Statistics::default(),
            attached: None,
            up: false,
            last_context: 0,
            now,
            actions: VecDeque::new(),
            reason: None,
        })
    }

    /// Returns the next action to execute.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Passes the current time. Ends the session if the peer owes an answer for too long.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if let Some(late) = self.pending.iter().find(|pending| pending.deadline <= self.now) {
            let limit = self.config.reply_limit;
            self.end(Reason::Unanswered { awaited: late.awaited.name(), limit });
        }
    }

    /// Returns when the peer must have answered, if it owes an answer.
    pub fn deadline(&self) -> Option<Duration> {
        self.pending.iter().map(|pending| pending.deadline).min()
    }

    /// Ends the session. Its pools are freed after the connections are closed, and after the application has released their
    /// elements.
    pub fn end(&mut self, reason: Reason) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        self.pending.clear();
        self.flushes.clear();
        self.reason = Some(reason.clone());
        self.actions.push_back(Action::Disconnect(reason));
        self.sender = Sender::new(self.mode);
        self.owner.close();
        self.free_drained();
    }

    /// Ends the session because one of its connections is lost.
    pub fn disconnected(&mut self) {
        let expected = self.phase == Phase::Detached;
        self.end(if expected { Reason::Detached } else { Reason::Disconnected });
    }

    /// Returns the reason for which the session has ended.
    pub fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// Returns how frames travel. At the unit, valid once the host is attached.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number and the generation of the session, once the host is attached.
    pub fn number(&self) -> Option<(u64, u64)> {
        self.attached.as_ref().map(|attached| (attached.session, attached.generation))
    }

    /// Returns the offloads that both ends support, and the MTU, once the host is attached.
    pub fn link(&self) -> Option<(u32, u32)> {
        self.attached.as_ref().map(|attached| (attached.offloads, attached.mtu))
    }

    /// Returns the MAC addresses of the host. The unit drops frames from other addresses.
    pub fn macs(&self) -> &[Mac] {
        self.attached.as_ref().map_or(&[], |attached| &attached.macs)
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        let pools = (self.owner.len() + self.sender.len()) as u64;
        Statistics { pools, elements_free: self.sender.free(), ..self.counters }
    }

    /// Number of local elements that hold a frame which the application has not released.
    pub fn held(&self) -> u64 {
        self.owner.held()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Sends a message. Does nothing after the end.
    pub(super) fn post(&mut self, channel: Channel, context: u64, message: &Message<'_>) {
        if self.phase == Phase::Ended {
            return;
        }
        match channel {
            Channel::Data => self.data.push_back(None),
            Channel::Control if self.control >= MAX_CONTROL => {
                return self.end(Reason::ControlBlocked { messages: self.control });
            }
            Channel::Control => self.control += 1,
        }
        self.act(Action::Post { channel, message: message.encode(context) });
    }

    /// Sends a request and expects its reply. Returns its context.
    pub(super) fn ask(&mut self, request: &Request, channel: Channel, operation: Operation) -> u64 {
        let context = self.new_context();
        self.expect(context, Awaited::Reply(operation as u16));
        self.post(channel, context, &Message::Request(request.clone()));
        context
    }

    pub(super) fn new_context(&mut self) -> u64 {
        self.last_context += 1;
        self.last_context
    }

    pub(super) fn expect(&mut self, context: u64, awaited: Awaited) {
        let deadline = self.now.saturating_add(self.config.reply_limit);
        self.pending.push(Pending { context, awaited, deadline });
    }

    /// Takes what the peer owed with this context.
    pub(super) fn answered(
        &mut self,
        function: Function,
        context: u64,
        matches: impl Fn(&Awaited) -> bool,
    ) -> Result<Awaited, Violation> {
        let found = self
            .pending
            .iter()
            .position(|pending| pending.context == context && context != 0 && matches(&pending.awaited));
        let index = found.ok_or(Violation::UnexpectedReply { function, context })?;
        Ok(self.pending.swap_remove(index).awaited)
    }

    /// Returns whether the host is attached, so that buffer messages are allowed.
    pub(super) fn is_attached(&self) -> bool {
        matches!(self.phase, Phase::Attached | Phase::Open | Phase::Detaching | Phase::Detached)
    }

    /// Returns whether frames may arrive.
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Detaching | Phase::Detached)
    }

    pub(super) fn free_drained(&mut self) {
        for pool in self.owner.take_drained() {
            self.act(Action::DeregisterPool { pool });
        }
    }
}

/// Names the message in which the peer has violated a rule for pools.
pub(super) fn violated(function: Function) -> impl Fn(PoolError) -> Violation {
    move |error| Violation::Pool { function, error }
}
