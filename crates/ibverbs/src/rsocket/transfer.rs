//! How bytes get into the rings and out of them. Before this: `data`, with a program's buffers; after: the adapter.

use super::buffer::{Buffer, Pieces};
use super::options::{Options, RESERVE};
use super::stream::{Phase, State, Stream};
use super::wire::{Hello, Message};
use crate::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::sync::Arc;

/// What this end sends. Positions count from the first byte of the connection, and never wrap.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes on their way.
    ring: Buffer,
    head: u64,
    tail: u64,
    /// So many requests may be posted, and so many are.
    queue: u32,
    posted: u32,
    inline: usize,
    /// The peer's ring.
    peer: Hello,
    /// What was written to it, and what the peer has read.
    written: u64,
    read: u64,
    /// Messages that use a receive of the peer's, and those that it has received.
    messages: u64,
    received: u64,
    /// No more is sent.
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

    /// A request is done that used so much of the ring.
    pub(super) fn sent(&mut self, len: u64) {
        self.posted = self.posted.saturating_sub(1);
        self.head += len;
    }

    /// The peer says what it has read and received. Whether that can be. It must be more than before: so the peer cannot send
    /// more credit than it got messages.
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

    /// Whether a request that is not data may be posted.
    pub(super) fn may_say_more(&self) -> bool {
        self.posted < self.queue
    }

    /// Whether a message may be sent that uses a receive of the peer's.
    pub(super) fn may_send(&self) -> bool {
        self.messages - self.received < u64::from(self.peer.messages) && self.may_post()
    }

    fn may_post(&self) -> bool {
        self.posted < self.queue - RESERVE
    }

    /// A message was sent that uses a receive of the peer's.
    pub(super) fn message_sent(&mut self) {
        self.messages += 1;
    }

    /// How many bytes of `wanted` the next message may have. None, if there is room for only a few of them: else each few that
    /// get free would be sent at once, and messages would become ever shorter. More gets free: the peer gives credit before
    /// half of its ring is kept from this end.
    pub(super) fn room(&self, wanted: usize) -> usize {
        if !self.may_send() || self.closed {
            return 0;
        }
        let (theirs, ours) = (u64::from(self.peer.len), self.ring.len() as u64);
        let free = (theirs - (self.written - self.read)).min(ours - (self.tail - self.head));
        // Not all at once: the peer may begin to read while more is on its way.
        let quarter = (theirs.min(ours) / 4).max(1);
        if free < quarter.min(wanted as u64) {
            return 0;
        }
        let straight = theirs - self.written % theirs;
        // What is short is copied into the request, and uses nothing of this end's ring.
        let straight = if wanted <= self.inline { straight } else { straight.min(ours - self.tail % ours) };
        let room = free.min(straight).min(quarter);
        usize::try_from(room).unwrap_or(usize::MAX).min(wanted)
    }

    /// How many bytes of one piece may be put into the ring.
    fn local_room(&self) -> usize {
        let len = self.ring.len() as u64;
        let room = (len - (self.tail - self.head)).min(len - self.tail % len);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// The request that writes the next `len` bytes into the peer's ring. There is [`room`](Self::room) for them.
    pub(super) fn write(&mut self, len: usize, from: &mut Pieces<'_>) -> WorkRequest {
        let (data, used) = self.put(len, from);
        let place = Place { tag: self.peer.ring, offset: self.written % u64::from(self.peer.len) };
        let immediate = u32::try_from(len).ok();
        WorkRequest { immediate, ..WorkRequest::new(used, Operation::Write(place), data) }
    }

    /// Such a request was posted.
    pub(super) fn wrote(&mut self, len: usize) {
        self.written += len as u64;
        self.message_sent();
    }

    fn put(&mut self, len: usize, from: &mut Pieces<'_>) -> (Data, u64) {
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

/// What this end receives.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Buffer,
    /// What arrived, what was read of it, and what the peer was told of that.
    arrived: u64,
    read: u64,
    told_read: u64,
    /// The same of messages that use a receive.
    received: u64,
    told_received: u64,
    messages: u64,
    /// The peer sends no more.
    ended: bool,
    /// The program reads no more.
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

    fn available(&self) -> u64 {
        self.arrived - self.read
    }

    /// Bytes arrived. Whether that can be: no peer sends none, or more than it was given room for.
    pub(super) fn arrived(&mut self, len: u32) -> bool {
        let size = self.ring.len() as u64;
        let possible = !self.ended && len > 0 && u64::from(len) <= size - (self.arrived - self.told_read);
        if possible {
            self.arrived += u64::from(len);
        }
        if possible && self.closed {
            self.read = self.arrived; // nobody will
        }
        possible
    }

    /// A message that counts arrived. Whether that can be: no peer sends more than it was given receives for.
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

    /// The program reads no more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.read = self.arrived;
    }

    /// Whether there is something to read, if only the end.
    pub(super) fn is_readable(&self) -> bool {
        self.available() > 0 || self.ended || self.closed
    }

    /// What the peer is to know by now: as seldom as possible, but so that it has at least half of everything when all is
    /// read.
    pub(super) fn credit_due(&mut self) -> Option<Message> {
        let bytes = self.read - self.told_read >= (self.ring.len() as u64).div_ceil(2);
        let messages = self.received - self.told_received >= self.messages.div_ceil(2);
        if !bytes && !messages {
            return None;
        }
        (self.told_read, self.told_received) = (self.read, self.received);
        Some(Message::Credit { bytes: self.read, messages: self.received })
    }

    pub(super) fn take(&mut self, to: &mut Pieces<'_>, peek: bool) -> usize {
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

impl Stream {
    /// Sends as much as there is room for. How much was sent before an error is in what is left of `from`.
    pub(super) fn send(&self, from: &mut Pieces<'_>) -> Result<(), Errno> {
        let mut state = self.current();
        let mut looked = false;
        loop {
            state.may_send()?;
            let len = state.out.room(from.len());
            if len > 0 {
                self.write(&mut state, len, from)?;
            } else if looked || from.len() == 0 {
                return Ok(());
            } else {
                self.refresh(&mut state);
                looked = true;
            }
        }
    }

    fn write(&self, state: &mut State, len: usize, from: &mut Pieces<'_>) -> Result<(), Errno> {
        let request = state.out.write(len, from);
        self.post(state, request)?;
        state.out.wrote(len);
        Ok(())
    }

    /// Writes to memory of the peer's, as much as there is room for. Returns how much that was.
    pub(super) fn write_to(&self, place: Place, len: usize, from: &mut Pieces<'_>) -> Result<usize, Errno> {
        let mut state = self.current();
        state.may_send()?;
        if !state.out.may_post() || state.out.local_room() == 0 {
            self.refresh(&mut state);
            state.may_send()?;
        }
        if !state.out.may_post() {
            return Ok(0);
        }
        let len = len.min(state.out.local_room());
        if len > 0 {
            let (data, used) = state.out.put(len, from);
            self.post(&mut state, WorkRequest::new(used, Operation::Write(place), data))?;
        }
        Ok(len)
    }

    /// Receives what is there: `None` if nothing is, nor the end.
    pub(super) fn receive(&self, to: &mut Pieces<'_>, peek: bool) -> Result<Option<usize>, Errno> {
        let mut state = self.current();
        if state.incoming.available() == 0 {
            self.refresh(&mut state);
        }
        let taken = state.incoming.take(to, peek);
        if taken > 0 {
            if !peek {
                self.give_credit(&mut state);
            }
            return Ok(Some(taken));
        }
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        match state.phase {
            Phase::Over if state.failed => Err(Errno(libc::ENOTCONN)),
            Phase::Over => Ok(Some(0)),
            Phase::Connected if to.len() == 0 || state.incoming.is_readable() => Ok(Some(0)),
            Phase::Connecting | Phase::Connected => Ok(None),
        }
    }

    /// Says that no more will be sent.
    pub(super) fn finish(&self, state: &mut State) {
        if !std::mem::replace(&mut state.out.closed, true) && state.phase == Phase::Connected {
            let _ = self.say(state, Message::End);
        }
    }
}

impl State {
    /// Whether data can be sent at all.
    pub(super) fn may_send(&mut self) -> Result<(), Errno> {
        match self.phase {
            _ if self.error.is_some() => Err(self.error.take().unwrap_or(Errno(libc::EPIPE))),
            Phase::Over => Err(Errno(if self.failed { libc::ENOTCONN } else { libc::EPIPE })),
            Phase::Connected if self.out.closed => Err(Errno(libc::EPIPE)),
            // While it is being connected there is no room yet.
            Phase::Connecting | Phase::Connected => Ok(()),
        }
    }
}
