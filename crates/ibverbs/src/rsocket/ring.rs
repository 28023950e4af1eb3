//! The rings of a connection: what each end may send, and where it goes.

use super::buffer::{Buffer, IoSlices};
use super::options::{Options, RESERVE};
use super::wire::{Hello, Message};
use crate::support::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::sync::Arc;

/// The sending direction. Positions count from the first byte of the connection, and never wrap.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Data that is being sent, between `head` and `tail`.
    ring: Buffer,
    head: u64,
    tail: u64,
    /// Maximum number of posted requests, and the current number.
    queue: u32,
    posted: u32,
    inline: usize,
    /// The peer's ring.
    peer: Hello,
    /// Bytes written to it, and bytes that the peer has read.
    written: u64,
    read: u64,
    /// Messages sent that use a receive of the peer, and those that it has received.
    messages: u64,
    received: u64,
    /// Nothing more is sent.
    closed: bool,
}

impl Outgoing {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let ring = Buffer::new(engine, domain, options.send_buffer as usize, Rights::LOCAL_READ)?;
        Ok(Self {
            ring,
            head: 0,
            tail: 0,
            queue: options.send_queue,
            posted: 0,
            inline: options.inline as usize,
            peer: Hello::default(),
            written: 0,
            read: 0,
            messages: 0,
            received: 0,
            closed: false,
        })
    }

    pub(super) fn connected(&mut self, peer: &Hello) {
        self.peer = *peer;
    }

    /// A request was posted.
    pub(super) fn posted(&mut self) {
        self.posted += 1;
    }

    /// A request completed that used `len` bytes of the ring.
    pub(super) fn sent(&mut self, len: u64) {
        self.posted = self.posted.saturating_sub(1);
        self.head += len;
    }

    /// Applies the peer's credit. Returns whether it is valid. It must be more than before, so that a peer
    /// cannot send more credit than it got messages.
    pub(super) fn credit(&mut self, read: u64, received: u64) -> bool {
        let possible = (self.read..=self.written).contains(&read)
            && (self.received..=self.messages).contains(&received)
            && (read, received) != (self.read, self.received);
        if possible {
            (self.read, self.received) = (read, received);
        }
        possible
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Stops sending. Returns false if that happened before.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.closed, true)
    }

    /// Whether a control message may be posted.
    pub(super) fn may_send_control(&self) -> bool {
        self.posted < self.queue
    }

    /// Whether a message that uses a receive of the peer may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.messages - self.received < u64::from(self.peer.messages) && self.may_post()
    }

    pub(super) fn may_post(&self) -> bool {
        self.posted < self.queue - RESERVE
    }

    /// A message that uses a receive of the peer was sent.
    pub(super) fn message_sent(&mut self) {
        self.messages += 1;
    }

    /// Number of bytes, at most `wanted`, that the next message may have. Zero if there is little room:
    /// otherwise every few bytes that become free would be sent at once, and messages would become ever
    /// shorter. More becomes free, because the peer gives credit before half of its ring is withheld.
    pub(super) fn room(&self, wanted: usize) -> usize {
        if !self.may_send() || self.closed {
            return 0;
        }
        let (theirs, ours) = (u64::from(self.peer.len), self.ring.len() as u64);
        let free = (theirs - (self.written - self.read)).min(ours - (self.tail - self.head));
        // Not everything at once, so that the peer can read while the rest is sent.
        let quarter = (theirs.min(ours) / 4).max(1);
        if free < quarter.min(wanted as u64) {
            return 0;
        }
        let straight = theirs - self.written % theirs;
        // Short data is copied into the request, and uses none of this end's ring.
        let straight = if wanted <= self.inline { straight } else { straight.min(ours - self.tail % ours) };
        let room = free.min(straight).min(quarter);
        usize::try_from(room).unwrap_or(usize::MAX).min(wanted)
    }

    /// Number of contiguous bytes that fit into the ring.
    pub(super) fn local_room(&self) -> usize {
        let len = self.ring.len() as u64;
        let room = (len - (self.tail - self.head)).min(len - self.tail % len);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// The request that writes the next `len` bytes into the peer's ring, for which there is
    /// [`room`](Self::room).
    pub(super) fn write(&mut self, len: usize, from: &mut IoSlices<'_>) -> WorkRequest {
        let (data, used) = self.put(len, from);
        let place = Place { tag: self.peer.ring, offset: self.written % u64::from(self.peer.len) };
        let immediate = u32::try_from(len).ok();
        WorkRequest { immediate, ..WorkRequest::new(used, Operation::Write(place), data) }
    }

    /// A request of [`write`](Self::write) was posted.
    pub(super) fn wrote(&mut self, len: usize) {
        self.written += len as u64;
        self.message_sent();
    }

    pub(super) fn put(&mut self, len: usize, from: &mut IoSlices<'_>) -> (Data, u64) {
        if from.len() <= self.inline {
            return (Data::Inline(from.copy(len).into()), 0);
        }
        let offset = self.tail % self.ring.len() as u64;
        self.ring.fill(usize::try_from(offset).unwrap_or_default(), len, from);
        self.tail += len as u64;
        let sge = Sge { tag: self.ring.tag(), addr: offset, len: u32::try_from(len).unwrap_or_default() };
        (Data::Memory(Sges::from(sge)), len as u64)
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Buffer,
    /// Bytes that arrived, bytes that were read, and bytes that the peer was given credit for.
    arrived: u64,
    read: u64,
    told_read: u64,
    /// Messages that used a receive, those that the peer was given credit for, and the number of receives.
    received: u64,
    told_received: u64,
    messages: u64,
    /// The peer sends nothing more.
    ended: bool,
    /// The program reads nothing more.
    closed: bool,
}

impl Incoming {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        Ok(Self {
            ring: Buffer::new(engine, domain, options.receive_buffer as usize, rights)?,
            arrived: 0,
            read: 0,
            told_read: 0,
            received: 0,
            told_received: 0,
            messages: u64::from(options.receive_queue - RESERVE),
            ended: false,
            closed: false,
        })
    }

    pub(super) fn tag(&self) -> Tag {
        self.ring.tag()
    }

    pub(super) fn available(&self) -> u64 {
        self.arrived - self.read
    }

    /// Data arrived. Returns whether it is valid: not empty, and not more than the peer had room for.
    pub(super) fn arrived(&mut self, len: u32) -> bool {
        let size = self.ring.len() as u64;
        let possible = !self.ended && len > 0 && u64::from(len) <= size - (self.arrived - self.told_read);
        if possible {
            self.arrived += u64::from(len);
        }
        if possible && self.closed {
            self.read = self.arrived; // discarded
        }
        possible
    }

    /// A message that uses a receive arrived. Returns whether the peer had a receive for it.
    pub(super) fn message_received(&mut self) -> bool {
        self.received += 1;
        self.received - self.told_received <= self.messages
    }

    pub(super) fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.ended, true)
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Stops reading.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.read = self.arrived;
    }

    /// Whether there is data to read, or the end.
    pub(super) fn is_readable(&self) -> bool {
        self.available() > 0 || self.ended || self.closed
    }

    /// The credit that is due: as rarely as possible, but so that the peer has at least half of everything
    /// once all data is read.
    pub(super) fn credit_due(&mut self) -> Option<Message> {
        let bytes = self.read - self.told_read >= (self.ring.len() as u64).div_ceil(2);
        let messages = self.received - self.told_received >= self.messages.div_ceil(2);
        if !bytes && !messages {
            return None;
        }
        (self.told_read, self.told_received) = (self.read, self.received);
        Some(Message::Credit { bytes: self.read, messages: self.received })
    }

    pub(super) fn take(&mut self, to: &mut IoSlices<'_>, peek: bool) -> usize {
        let size = self.ring.len() as u64;
        let (mut at, mut done) = (self.read, 0);
        let mut wanted = to.len();
        while at < self.arrived && wanted > 0 {
            let straight = (self.arrived - at).min(size - at % size);
            let len = usize::try_from(straight).unwrap_or(usize::MAX).min(wanted);
            self.ring.drain(usize::try_from(at % size).unwrap_or_default(), len, to);
            (at, done, wanted) = (at + len as u64, done + len, wanted - len);
        }
        if !peek {
            self.read = at;
        }
        done
    }
}
