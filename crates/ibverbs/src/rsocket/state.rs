//! The state of a connection that messages of the peer and calls of the program change.

use super::buffer::Buffer;
use super::mappings::Mappings;
use super::options::Options;
use super::ring::{Incoming, Outgoing};
use super::wire::{MESSAGE, Message};
use crate::support::errno::Errno;
use ironwarp_engine::{Engine, Established};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::queue::{ReceiveRequest, Sge, Sges};
use std::ffi::c_short;
use std::sync::Arc;

/// Progress of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Connecting,
    Connected,
    /// The connection failed or has ended.
    Over,
}

/// The state of a connection. The connection ([`Stream`](super::stream::Stream)) has a lock around it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// Whether the connection could not be established. Then the phase is [`Phase::Over`].
    pub(super) failed: bool,
    /// An error that no call has returned to the program yet.
    pub(super) error: Option<Errno>,
    /// Whether `rconnect` has returned success.
    pub(super) reported_connected: bool,
    /// Addresses and parameters of the connection. `None` until it is established.
    pub(super) established: Option<Box<Established>>,
    pub(super) out: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) mappings: Mappings,
    /// Buffers for control messages of the peer: a slot of [`MESSAGE`] bytes for each posted receive.
    pub(super) slots: Buffer,
    /// Number of receives that are posted, and whose completions were not polled.
    pub(super) posted_receives: u32,
    /// Why the connection has ended, until all completions before the end are applied.
    pub(super) end: Option<Box<QpError>>,
}

/// Offset of a slot in [`State::slots`].
pub(super) fn slot_offset(slot: u64) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX / MESSAGE).saturating_mul(MESSAGE)
}

impl State {
    /// Creates the state of a connection that is not established yet: allocates and registers both rings, and the slots
    /// for control messages. Called when a [`Stream`](super::stream::Stream) is created, by `rconnect` or for a request
    /// that a listener accepts.
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let local = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let slots = Buffer::new(engine, domain, options.receive_queue as usize * MESSAGE, local)?;
        Ok(Self {
            phase: Phase::default(),
            failed: false,
            error: None,
            reported_connected: false,
            established: None,
            out: Outgoing::new(engine, domain, options)?,
            incoming: Incoming::new(engine, domain, options)?,
            mappings: Mappings::new(options.mappings),
            slots,
            posted_receives: 0,
            end: None,
        })
    }

    /// Applies a control message of the peer. Returns false if it violates the protocol of `wire`.
    pub(super) fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Credit { bytes, messages } => self.out.apply_credit(bytes, messages),
            Message::End => self.incoming.set_ended(),
            Message::Mapped { offset, len, tag } => self.mappings.add_remote(offset, len, tag),
            Message::Unmapped { tag } => self.mappings.remove_remote(tag),
        }
    }

    /// Builds the receive request for a slot.
    pub(super) fn receive_request(&self, slot: u64) -> ReceiveRequest {
        let len = u32::try_from(MESSAGE).unwrap_or_default();
        let sge = Sge { tag: self.slots.tag(), addr: slot_offset(slot) as u64, len };
        ReceiveRequest { id: slot, buffers: Sges::from(sge) }
    }

    /// The events of poll(2) that hold for the connection.
    pub(super) fn readiness(&self) -> c_short {
        const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
        const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;
        let over = self.phase == Phase::Over;
        if self.phase == Phase::Connecting {
            return 0;
        }
        let mut ready = 0;
        let mut add = |flags: c_short, holds: bool| ready |= if holds { flags } else { 0 };
        add(IN, over || self.incoming.is_readable());
        add(OUT, over || self.out.is_closed() || self.out.room(usize::MAX) > 0);
        add(libc::POLLRDHUP, over || self.incoming.has_ended());
        // As with TCP, after the end of the peer's data POLLHUP holds only once this end has stopped sending.
        let hangup = if self.incoming.has_ended() { self.out.is_closed() } else { over };
        add(libc::POLLHUP, hangup);
        add(libc::POLLERR, self.error.is_some());
        ready
    }

    /// Fails if data can never be sent: with the pending error, which is taken, or with EPIPE or ENOTCONN. Whether
    /// there is room now is another matter.
    pub(super) fn check_may_send(&mut self) -> Result<(), Errno> {
        match self.phase {
            _ if self.error.is_some() => Err(self.error.take().unwrap_or(Errno(libc::EPIPE))),
            Phase::Over => Err(Errno(if self.failed { libc::ENOTCONN } else { libc::EPIPE })),
            Phase::Connected if self.out.is_closed() => Err(Errno(libc::EPIPE)),
            // A connection that is not established yet has no room, so that the caller waits.
            Phase::Connecting | Phase::Connected => Ok(()),
        }
    }
}
