//! The state of a connection.

use super::buffer::Buffer;
use super::mappings::Mappings;
use super::options::Options;
use super::ring::{Incoming, Outgoing};
use super::wire::{MESSAGE, Message};
use crate::support::errno::Errno;
use ironwarp_engine::{Engine, Established};
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

/// The state of a connection that calls and messages of the peer change.
#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// It was never established.
    pub(super) failed: bool,
    /// An error that no call has returned yet.
    pub(super) error: Option<Errno>,
    /// `rconnect` has returned success.
    pub(super) announced: bool,
    pub(super) established: Option<Arc<Established>>,
    pub(super) out: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) mappings: Mappings,
    /// Buffers for control messages of the peer.
    pub(super) slots: Buffer,
}

pub(super) fn place(slot: u64) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX / MESSAGE).saturating_mul(MESSAGE)
}

impl State {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let local = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let slots = Buffer::new(engine, domain, options.receive_queue as usize * MESSAGE, local)?;
        Ok(Self {
            phase: Phase::default(),
            failed: false,
            error: None,
            announced: false,
            established: None,
            out: Outgoing::new(engine, domain, options)?,
            incoming: Incoming::new(engine, domain, options)?,
            mappings: Mappings::new(options.mappings),
            slots,
        })
    }

    /// Applies a message of the peer. Returns false if it violates the protocol of `wire`.
    pub(super) fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Credit { bytes, messages } => self.out.credit(bytes, messages),
            Message::End => self.incoming.end(),
            Message::Mapped { offset, len, tag } => self.mappings.add(offset, len, tag),
            Message::Unmapped { tag } => self.mappings.remove(tag),
        }
    }

    pub(super) fn receive(&self, slot: u64) -> ReceiveRequest {
        let len = u32::try_from(MESSAGE).unwrap_or_default();
        let sge = Sge { tag: self.slots.tag(), addr: place(slot) as u64, len };
        ReceiveRequest { id: slot, buffers: Sges::from(sge) }
    }

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
        add(libc::POLLRDHUP, over || self.incoming.ended());
        // As with TCP, a peer that has closed properly is not a hangup until this end has closed as well.
        let ended = self.incoming.ended();
        add(libc::POLLHUP, if ended { self.out.is_closed() } else { over });
        add(libc::POLLERR, self.error.is_some());
        ready
    }

    /// Fails if data cannot be sent.
    pub(super) fn may_send(&mut self) -> Result<(), Errno> {
        match self.phase {
            _ if self.error.is_some() => Err(self.error.take().unwrap_or(Errno(libc::EPIPE))),
            Phase::Over => Err(Errno(if self.failed { libc::ENOTCONN } else { libc::EPIPE })),
            Phase::Connected if self.out.is_closed() => Err(Errno(libc::EPIPE)),
            // There is no room until the connection is established.
            Phase::Connecting | Phase::Connected => Ok(()),
        }
    }
}
