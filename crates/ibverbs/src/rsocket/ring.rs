//! The two rings of a connection, with the credit of both ends: how much may be sent, and where it is written.
//!
//! Data and messages about mappings use *counted* receives of the peer, whose number the credit limits. Credits and
//! the end of the data use the receives that are reserved for them ([`RESERVE`]).

use super::buffer::{Buffer, IoSlices};
use super::options::{Options, RESERVE};
use super::wire::{Hello, Message};
use crate::support::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;

/// The sending direction of a connection. All positions and counts start with the connection, and never wrap.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Ring of this end, from which data is sent.
    ring: Buffer,
    /// Position of the oldest byte in `ring` whose request has not completed.
    head: u64,
    /// Position after the newest byte in `ring`.
    tail: u64,
    /// Depth of the send queue.
    max_posted: u32,
    /// Number of requests in the send queue.
    posted: u32,
    /// Data of at most this length is copied into the request, not into `ring`.
    inline: usize,
    /// The ring and limits of the peer. All zero until the connection is established.
    peer: Hello,
    /// Number of bytes written to the peer's ring.
    written: u64,
    /// Number of bytes that the peer has read, by its last credit.
    credited_bytes: u64,
    /// Number of messages sent that use a receive of the peer.
    messages: u64,
    /// Number of those that the peer has received, by its last credit.
    credited_messages: u64,
    /// Whether the program has stopped sending.
    closed: bool,
}

impl Outgoing {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let ring = Buffer::new(engine, domain, options.send_buffer as usize, Rights::LOCAL_READ)?;
        Ok(Self {
            ring,
            head: 0,
            tail: 0,
            max_posted: options.send_queue,
            posted: 0,
            inline: options.inline as usize,
            peer: Hello::default(),
            written: 0,
            credited_bytes: 0,
            messages: 0,
            credited_messages: 0,
            closed: false,
        })
    }

    /// Sets the ring and limits of the peer, when the connection is established.
    pub(super) fn set_peer(&mut self, peer: &Hello) {
        self.peer = *peer;
    }

    /// Counts a request that was posted.
    pub(super) fn record_post(&mut self) {
        self.posted += 1;
    }

    /// Counts a request that completed, and frees the `len` bytes of the ring that it used.
    pub(super) fn record_completion(&mut self, len: u64) {
        self.posted = self.posted.saturating_sub(1);
        self.head += len;
    }

    /// Applies a credit of the peer: the numbers of bytes that it has read and of messages that it has received.
    /// Returns false, and changes nothing, if the credit is invalid. Each credit must exceed the one before, so
    /// that a peer cannot send more credits than it received messages.
    pub(super) fn apply_credit(&mut self, bytes: u64, messages: u64) -> bool {
        let valid = (self.credited_bytes..=self.written).contains(&bytes)
            && (self.credited_messages..=self.messages).contains(&messages)
            && (bytes, messages) != (self.credited_bytes, self.credited_messages);
        if valid {
            (self.credited_bytes, self.credited_messages) = (bytes, messages);
        }
        valid
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Stops sending. Returns false if sending was stopped before.
    pub(super) fn close(&mut self) -> bool {
        let was_closed = std::mem::replace(&mut self.closed, true);
        !was_closed
    }

    /// Whether the send queue has room for a control message that uses none of the peer's counted receives.
    pub(super) fn may_send_control(&self) -> bool {
        self.posted < self.max_posted
    }

    /// Whether a message that uses a counted receive of the peer may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.messages - self.credited_messages < u64::from(self.peer.messages) && self.may_post()
    }

    /// Whether the send queue has room for a request other than a control message.
    pub(super) fn may_post(&self) -> bool {
        self.posted < self.max_posted - RESERVE
    }

    /// Counts a message that was sent and uses a counted receive of the peer.
    pub(super) fn count_message(&mut self) {
        self.messages += 1;
    }

    /// Number of bytes, at most `requested`, that the next message may have. Zero if there is little room: otherwise
    /// every few bytes that become free would be sent at once, and messages would become ever shorter. The room
    /// grows again, because the peer gives credit at the latest when half of its ring has been read.
    pub(super) fn room(&self, requested: usize) -> usize {
        if !self.may_send() || self.closed {
            return 0;
        }
        let (theirs, ours) = (u64::from(self.peer.len), self.ring.len() as u64);
        let free = (theirs - (self.written - self.credited_bytes)).min(ours - (self.tail - self.head));
        // At most a quarter per message, so that the peer can read the first part while the rest is sent.
        let quarter = (theirs.min(ours) / 4).max(1);
        if free < quarter.min(requested as u64) {
            return 0;
        }
        // A message crosses the end of neither ring. Inline data uses only the ring of the peer.
        let contiguous = theirs - self.written % theirs;
        let contiguous =
            if requested <= self.inline { contiguous } else { contiguous.min(ours - self.tail % ours) };
        let room = free.min(contiguous).min(quarter);
        usize::try_from(room).unwrap_or(usize::MAX).min(requested)
    }

    /// Number of contiguous bytes that are free in the ring of this end, for data that goes to mapped memory of the
    /// peer and not to its ring.
    pub(super) fn local_room(&self) -> usize {
        let len = self.ring.len() as u64;
        let room = (len - (self.tail - self.head)).min(len - self.tail % len);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Builds the request that writes the next `len` bytes of `from` into the peer's ring, for which there must be
    /// [`room`](Self::room). The immediate data tells the peer how many bytes arrived. The identifier of the request is
    /// the number of bytes that it uses in the ring of this end, for [`record_completion`](Self::record_completion).
    pub(super) fn build_write(&mut self, len: usize, from: &mut IoSlices<'_>) -> WorkRequest {
        let (data, used) = self.take_data(len, from);
        let addr = RemoteAddr { tag: self.peer.ring, offset: self.written % u64::from(self.peer.len) };
        let immediate = u32::try_from(len).ok(); // never `None`: the length of a ring has 32 bits
        WorkRequest { immediate, ..WorkRequest::new(used, Operation::Write(addr), data) }
    }

    /// Counts `len` bytes whose request, from [`build_write`](Self::build_write), was posted.
    pub(super) fn record_write(&mut self, len: usize) {
        self.written += len as u64;
        self.count_message();
    }

    /// Copies the next `len` bytes of the program into the ring of this end, or, if little data is left, into the
    /// returned data itself. Also returns the number of bytes used in the ring.
    pub(super) fn take_data(&mut self, len: usize, from: &mut IoSlices<'_>) -> (Data, u64) {
        if from.len() <= self.inline {
            return (Data::Inline(from.copy(len).into()), 0);
        }
        // The conversions below cannot fail: `len` and the offset are at most the length of the ring, a u32.
        let offset = self.tail % self.ring.len() as u64;
        self.ring.copy_in(usize::try_from(offset).unwrap_or_default(), len, from);
        self.tail += len as u64;
        let sge = Sge { tag: self.ring.tag(), addr: offset, len: u32::try_from(len).unwrap_or_default() };
        (Data::Memory(Sges::from(sge)), len as u64)
    }
}

/// The receiving direction of a connection. All positions and counts start with the connection, and never wrap.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The ring that the peer writes to.
    ring: Buffer,
    /// Number of bytes that arrived.
    arrived: u64,
    /// Number of bytes that the program has read.
    read: u64,
    /// Number of read bytes in the last credit that was sent to the peer.
    credited_bytes: u64,
    /// Number of messages that used a counted receive.
    received: u64,
    /// Number of received messages in the last credit that was sent to the peer.
    credited_messages: u64,
    /// Number of counted receives: those that are not reserved for credits and the end.
    max_messages: u64,
    /// Whether the peer has announced the end of its data.
    ended: bool,
    /// Whether the program has stopped reading. Data that arrives is then discarded.
    closed: bool,
}

impl Incoming {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        Ok(Self {
            ring: Buffer::new(engine, domain, options.receive_buffer as usize, rights)?,
            arrived: 0,
            read: 0,
            credited_bytes: 0,
            received: 0,
            credited_messages: 0,
            max_messages: u64::from(options.receive_queue - RESERVE),
            ended: false,
            closed: false,
        })
    }

    pub(super) fn tag(&self) -> Tag {
        self.ring.tag()
    }

    /// Number of bytes that arrived and were not read yet.
    pub(super) fn available(&self) -> u64 {
        self.arrived - self.read
    }

    /// Counts data that arrived. Returns false, and counts nothing, if the peer violated the protocol: the data is
    /// empty, comes after the end, or exceeds the credit of the peer.
    pub(super) fn record_arrival(&mut self, len: u32) -> bool {
        let size = self.ring.len() as u64;
        let valid = !self.ended && len > 0 && u64::from(len) <= size - (self.arrived - self.credited_bytes);
        if valid {
            self.arrived += u64::from(len);
        }
        if valid && self.closed {
            self.read = self.arrived; // discarded
        }
        valid
    }

    /// Counts a message that used a counted receive. Returns false if that exceeds the credit of the peer.
    pub(super) fn count_message(&mut self) -> bool {
        self.received += 1;
        self.received - self.credited_messages <= self.max_messages
    }

    /// Records that the peer has announced the end of its data. Returns false if it had done so before.
    pub(super) fn set_ended(&mut self) -> bool {
        let had_ended = std::mem::replace(&mut self.ended, true);
        !had_ended
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Stops reading, and discards the data that was not read.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.read = self.arrived;
    }

    /// Whether a read returns at once: with data, or with the end of the data.
    pub(super) fn is_readable(&self) -> bool {
        self.available() > 0 || self.ended || self.closed
    }

    /// Returns the credit message that the caller must send to the peer, and records it as sent. `None` if none is due.
    /// Called by `Stream::give_credit`, when the send queue has room for a control message.
    ///
    /// Credit is due when half of the ring was read, or half of the receives were used, since the last credit. So
    /// credit messages are rare. Even without one, the peer has credit for more than half of the ring and of the
    /// receives when the program has read all data.
    pub(super) fn take_due_credit(&mut self) -> Option<Message> {
        let bytes_due = self.read - self.credited_bytes >= (self.ring.len() as u64).div_ceil(2);
        let messages_due = self.received - self.credited_messages >= self.max_messages.div_ceil(2);
        if !bytes_due && !messages_due {
            return None;
        }
        (self.credited_bytes, self.credited_messages) = (self.read, self.received);
        Some(Message::Credit { bytes: self.read, messages: self.received })
    }

    /// Copies data that arrived to the program, as much as fits, and returns the number of bytes. With `peek`, the
    /// data stays in the ring.
    pub(super) fn read_into(&mut self, to: &mut IoSlices<'_>, peek: bool) -> usize {
        let size = self.ring.len() as u64;
        let (mut at, mut done) = (self.read, 0);
        let mut left = to.len();
        while at < self.arrived && left > 0 {
            let contiguous = (self.arrived - at).min(size - at % size);
            let len = usize::try_from(contiguous).unwrap_or(usize::MAX).min(left);
            self.ring.copy_out(usize::try_from(at % size).unwrap_or_default(), len, to);
            (at, done, left) = (at + len as u64, done + len, left - len);
        }
        if !peek {
            self.read = at;
        }
        done
    }
}
