//! [`Channel`], one connection's stream in a carrier.
//!
//! The rings are shared by all channels of a carrier, so none may block them. Each direction of a channel has credit: the
//! number of bytes that it may send before the receiver has consumed some. Bytes that the receiver cannot consume at
//! once are moved from the ring to the inbox of their channel, which the credit bounds.

use super::inbox::Inbox;
use super::record::{Control, DATA, Rest};
use crate::reactor::carrier::Carrier;
use crate::sys::sched::yield_after_moving;
use crate::sys::segment::Fault;
use crate::sys::thread::pause;
use ironwarp_rnic::host::{Span, Unmapped};
use ironwarp_rnic::link::{LinkError, Piece};
use ironwarp_shm::{MAX_RECORD, RING_LEN, Reader};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The credit of a channel: the maximum number of bytes that the sender is ahead of the receiver.
pub(super) const WINDOW: u64 = 256 << 10;
/// Number of consumed bytes after which the receiver returns credit.
const CREDIT_STEP: u64 = WINDOW / 4;
/// How long a send of many bytes waits for the receiver: less than the time it would take to come back.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// The smallest page size of Linux; all other page sizes are multiples of it.
const PAGE: u64 = 4096;

/// Why a connection has no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OtherHost = 1,
    NoOffer,
    PeerClosed,
    SetUp,
    EventLoop,
}

impl Refusal {
    /// All values, in the order of their numbers, which begin with one.
    pub(crate) const ALL: [Self; 5] =
        [Self::OtherHost, Self::NoOffer, Self::PeerClosed, Self::SetUp, Self::EventLoop];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherHost => "the peer is on another host",
            Self::NoOffer => "the peer refused",
            Self::PeerClosed => "the peer closed the shared memory",
            Self::SetUp => "failed to set up shared memory",
            Self::EventLoop => "an event loop waits for its completion channel",
        })
    }
}

/// The connection whose stream a channel carries.
pub(crate) trait ChannelOwner: Send + Sync + fmt::Debug {
    /// Receives what has arrived. Returns whether large payload arrives, of which more will follow soon.
    fn on_readable(&self) -> bool;

    /// Continues to send.
    fn on_writable(&self);

    /// Uses the channel from now on: the other end is ready for it.
    fn on_attached(&self);

    /// Records that there will be no channel, and why, with details for the log. The connection stays with TCP.
    fn on_refused(&self, refusal: Refusal, details: &str);

    /// Ends the connection with this errno if it uses shared memory: the carrier cannot be used any more. If the other
    /// process has closed its end (ECONNRESET), the end of TCP is awaited for a moment.
    fn on_carrier_end(self: Arc<Self>, errno: i32);

    /// Adds a carrier to the poll set of the connection. Returns false if the connection is closed.
    fn use_carrier(&self, carrier: &Arc<dyn Carrier>) -> bool;

    /// Binds the connection to a new channel, and [uses its carrier](Self::use_carrier). Returns false if the connection
    /// has a channel already, or is closed.
    fn bind(&self, channel: &Arc<Channel>) -> bool;
}

/// The rings of a carrier, as its channels use them.
pub(crate) trait Rings: Send + Sync + fmt::Debug {
    /// Returns an error if the other end is gone, which is `WouldBlock` until TCP has ended as well.
    fn check_reader(&self) -> Result<(), LinkError>;

    /// Sends a record with up to `credit` of the bytes that are left. Returns the number of bytes sent: zero if there is no
    /// room.
    fn send_record(&self, channel: &Channel, rest: &mut Rest<'_>, credit: usize) -> Result<usize, LinkError>;

    /// Has the owner of a channel called when there is room. Returns false if there is room now.
    fn await_room(&self, channel: &Channel) -> Result<bool, LinkError>;

    /// Sends a record that is not data, now or when there is room.
    fn send_control(&self, control: Control);

    /// Handles the records at the front that are not data, for a sender that waits for credit.
    fn serve_controls(&self);

    /// Locks the reader. Returns `None` if another thread has it.
    fn try_read(&self) -> Result<Option<MutexGuard<'_, Reader>>, LinkError>;

    /// Returns whether a record is at the front of the ring, of any channel.
    fn has_record(&self) -> bool;

    /// Serves all records that are in the ring now, so that no connection has to wait for those before its own. Called
    /// when TCP has ended, to find out whether anything is left for its connection.
    fn drain(&self);

    /// Rings the bell of the other process.
    fn ring(&self);

    /// Ends all connections of the carrier, because the other process has broken the protocol. Returns the error for the
    /// connection that noticed.
    fn fail(&self, why: &dyn fmt::Display) -> LinkError;

    /// Counts bytes that were received. The caller has the reader.
    fn count_received(&self, len: usize);

    /// Copies bytes to the program's memory.
    fn scatter(&self, from: &[u8], to: Span) -> Result<(), Unmapped>;

    /// Copies bytes of the ring, at `from`, to the program's memory.
    fn copy_out(&self, from: *const u8, to: Span) -> Result<(), Fault>;

    /// Removes a channel whose connection is closed. Returns whether it was the last one: the caller then
    /// [closes the carrier](Self::close_if_idle) after a while, in case that the other end does not.
    fn remove_channel(&self, channel: &Channel) -> bool;

    /// Closes the carrier if it has no channels and none is requested.
    fn close_if_idle(&self);

    /// Returns the carrier, for a poll set.
    fn as_carrier(self: Arc<Self>) -> Arc<dyn Carrier>;
}

/// One connection's stream in a carrier.
#[derive(Debug)]
pub(crate) struct Channel {
    carrier: Arc<dyn Rings>,
    /// The number by which the peer names this channel.
    pub(super) id: u32,
    /// The number by which this end names the channel of the peer; zero until it is known.
    pub(super) peer: AtomicU32,
    pub(super) owner: Weak<dyn ChannelOwner>,
    /// Number of bytes sent. Only the tx half changes it.
    sent: AtomicU64,
    /// Number of bytes that the peer allows to send.
    granted: AtomicU64,
    /// A send found no credit, and the owner waits for it.
    awaits_credit: AtomicBool,
    /// Number of bytes consumed. Only the rx half changes it.
    consumed: AtomicU64,
    /// Number of bytes that the peer may send. Only the rx half changes it.
    allowed: AtomicU64,
    /// Number of bytes taken from the ring. Changed under the lock of the reader.
    arrived: AtomicU64,
    /// The peer has sent more than it may.
    broken: AtomicBool,
    /// Bytes that were moved from the ring because the connection could not consume them.
    inbox: Inbox,
    /// Bytes that were received from TCP after a switch to shared memory: they come after the next switch back.
    tcp_unread: Inbox,
}

impl Channel {
    /// Creates a channel with this number, whose peer is not known yet.
    pub(super) fn new(carrier: Arc<dyn Rings>, id: u32, owner: Weak<dyn ChannelOwner>) -> Self {
        Self {
            carrier,
            id,
            peer: AtomicU32::new(0),
            owner,
            sent: AtomicU64::new(0),
            granted: AtomicU64::new(WINDOW),
            awaits_credit: AtomicBool::new(false),
            consumed: AtomicU64::new(0),
            allowed: AtomicU64::new(WINDOW),
            arrived: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            inbox: Inbox::default(),
            tcp_unread: Inbox::default(),
        }
    }

    /// Records the answer to the request for this channel: the peer's number of it. Returns false if there was an answer
    /// before, or if this is none: only the first one counts.
    pub(super) fn set_answer(&self, peer: u32) -> bool {
        peer != 0 && self.peer.compare_exchange(0, peer, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn carrier(&self) -> &Arc<dyn Rings> {
        &self.carrier
    }

    // --- Sending: called with the tx half held ---

    /// Sends from the front of `pieces`, as `Link::send` does.
    pub(crate) fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        self.carrier.check_reader()?;
        let mut rest = Rest::new(pieces);
        let (len, mut waiting_since) = (rest.len(), None);
        loop {
            let credit = self.credit();
            let sent = if credit == 0 { 0 } else { self.carrier.send_record(self, &mut rest, credit)? };
            self.sent.store(self.sent.load(Ordering::Relaxed) + sent as u64, Ordering::Relaxed);
            yield_after_moving(sent);
            if rest.len() == 0 {
                return Ok(len);
            }
            if sent > 0 {
                waiting_since = None;
            } else if !self.may_spin(len, &mut waiting_since) {
                let sent = len - rest.len();
                if sent > 0 {
                    return Ok(sent);
                }
                if self.waits_for_credit() || credit > 0 && self.carrier.await_room(self)? {
                    return Err(LinkError::WouldBlock);
                }
            }
        }
    }

    /// Waits a moment for credit or room, if this is a send of many bytes, for which the receiver makes room soon. Returns
    /// false if that has taken too long.
    fn may_spin(&self, len: usize, since: &mut Option<Instant>) -> bool {
        if len < MAX_RECORD {
            return false;
        }
        let now = Instant::now();
        if now.duration_since(*since.get_or_insert(now)) > SPIN_TIME {
            return false;
        }
        self.carrier.serve_controls();
        pause();
        true
    }

    /// Returns the number of bytes that may be sent now.
    #[inline]
    fn credit(&self) -> usize {
        let left = self.granted.load(Ordering::Acquire).saturating_sub(self.sent.load(Ordering::Relaxed));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Has the owner called when there is credit. Returns false if there is some.
    fn waits_for_credit(&self) -> bool {
        if self.credit() > 0 {
            return false;
        }
        // With `grant`: either that sees the flag, or this sees the credit.
        self.awaits_credit.store(true, Ordering::SeqCst);
        self.granted.load(Ordering::SeqCst) <= self.sent.load(Ordering::Relaxed)
    }

    /// Records that the peer allows to send `granted` bytes in all. Returns whether the owner waits for that. A peer that
    /// takes credit back, or grants more than it has room for, harms only itself.
    pub(super) fn grant(&self, granted: u64) -> bool {
        self.granted.fetch_max(granted, Ordering::SeqCst);
        self.awaits_credit.load(Ordering::SeqCst) && self.awaits_credit.swap(false, Ordering::SeqCst)
    }

    // --- Receiving: called with the rx half held ---

    /// Receives into `host` and then into `own`, as `Link::recv` does.
    pub(crate) fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let received =
            if self.inbox.is_empty() { self.recv_ring(host, own) } else { self.recv_inbox(host, own) }?;
        self.return_credit(received);
        yield_after_moving(received);
        Ok(received)
    }

    /// Receives from the inbox.
    #[cold]
    fn recv_inbox(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        self.inbox.recv(host, own, |from, to| self.carrier.scatter(from, to))
    }

    /// Receives from the ring, unless another thread reads it: that one leaves the ring with news, and this thread comes
    /// back for them.
    fn recv_ring(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(LinkError::Lost(libc::EPROTO));
        }
        let Some(mut reader) = self.carrier.try_read()? else { return Err(LinkError::WouldBlock) };
        // Again with the lock: another thread may have moved bytes from the ring to the inbox.
        if !self.inbox.is_empty() {
            drop(reader);
            return self.recv_inbox(host, own);
        }
        let received = self.take_records(&mut reader, host, own);
        let writer_waits = reader.release();
        drop(reader);
        if writer_waits {
            self.carrier.ring();
        }
        received
    }

    /// Receives from the records at the front of the ring that belong to this channel.
    fn take_records(&self, reader: &mut Reader, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut received = 0;
        for span in host {
            let mut done = 0;
            while done < span.len {
                let Some(left) = self.front(reader)? else { return some(received) };
                let len = (span.len - done).min(left);
                let part = Span { addr: span.addr.saturating_add(done as u64), len, held: span.held };
                let Some(moved) = self.take_span(reader, part) else {
                    return if received == 0 { Err(LinkError::Unmapped) } else { Ok(received) };
                };
                done += moved;
                received += self.count_arrived(moved)?;
                if reader.release() {
                    self.carrier.ring();
                }
            }
        }
        let mut own = own;
        while !own.is_empty() {
            let Some(left) = self.front(reader)? else { break };
            let len = own.len().min(left);
            let moved = reader.take(&mut own[..len]);
            received += self.count_arrived(moved)?;
            own = &mut std::mem::take(&mut own)[moved..];
        }
        some(received)
    }

    /// Returns the number of bytes left in the record at the front; `None` if there is no record, or it is not of this
    /// channel.
    fn front(&self, reader: &mut Reader) -> Result<Option<usize>, LinkError> {
        loop {
            let front = reader.front().map_err(|corrupt| self.carrier.fail(&corrupt))?;
            let Some(front) = front.filter(|front| front.channel == self.id && front.kind == DATA) else {
                return Ok(None);
            };
            if front.left > 0 {
                return Ok(Some(front.left));
            }
            reader.skip();
        }
    }

    /// Copies from the record at the front to the program's memory. Returns the number of bytes copied: all, or those on
    /// the first page, if memory after it is not mapped; `None` if the first byte is not mapped.
    fn take_span(&self, reader: &mut Reader, to: Span) -> Option<usize> {
        let first_page = usize::try_from(PAGE - to.addr % PAGE).ok()?.min(to.len);
        [to.len, first_page].into_iter().find(|&len| {
            let mut done = 0;
            let copied: Result<(), Fault> = reader.take_with(len, |from, _, len| {
                let part = Span { addr: to.addr.saturating_add(done), len, held: to.held };
                done += len as u64;
                self.carrier.copy_out(from, part)
            });
            copied.is_ok()
        })
    }

    /// Counts bytes that were taken from the ring. A peer that sends more than it has credit for has broken the protocol.
    fn count_arrived(&self, len: usize) -> Result<usize, LinkError> {
        let arrived = self.arrived.load(Ordering::Relaxed) + len as u64;
        self.arrived.store(arrived, Ordering::Relaxed);
        self.carrier.count_received(len);
        if arrived > self.allowed.load(Ordering::Acquire) {
            self.broken.store(true, Ordering::Relaxed);
            return Err(LinkError::Lost(libc::EPROTO));
        }
        Ok(len)
    }

    /// Returns the number of bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.arrived.load(Ordering::Relaxed))
    }

    /// Returns the number of bytes taken from the ring so far.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Moves the rest of the record at the front of the ring to the inbox.
    pub(super) fn store(&self, reader: &mut Reader) {
        let Ok(Some(left)) = self.front(reader) else { return };
        if self.count_arrived(left).is_err() {
            reader.skip();
            self.carrier.fail(&"data beyond the credit"); // the connection may not read for a long time
            return;
        }
        let mut bytes = vec![0; left.min(MAX_RECORD)];
        let taken = reader.take(&mut bytes);
        self.inbox.push_back(&bytes[..taken]);
    }

    /// Puts bytes back that were received: they come first when this route is used again, and count as consumed only
    /// then. Otherwise their credit would be returned twice.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.consumed.store(self.consumed.load(Ordering::Relaxed) - bytes.len() as u64, Ordering::Relaxed);
        self.inbox.push_front(bytes);
    }

    /// Puts bytes back that were received from TCP: they come first when TCP is used again.
    pub(crate) fn put_back_tcp(&self, bytes: &[u8]) {
        self.tcp_unread.push_front(bytes);
    }

    /// Returns whether bytes were put back that were received from TCP.
    pub(crate) fn has_unread(&self) -> bool {
        !self.tcp_unread.is_empty()
    }

    /// Returns the number of bytes that were put back and had been received from TCP.
    pub(crate) fn unread_len(&self) -> usize {
        self.tcp_unread.len()
    }

    /// Receives bytes that were put back and had been received from TCP.
    pub(crate) fn recv_unread(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        self.tcp_unread.recv(host, own, |from, to| self.carrier.scatter(from, to))
    }

    /// Returns an upper bound on the number of bytes that can be received now.
    pub(crate) fn pending(&self) -> usize {
        self.inbox.len() + if self.carrier.has_record() { RING_LEN } else { 0 }
    }

    /// Counts consumed bytes, and returns credit to the peer from time to time.
    fn return_credit(&self, len: usize) {
        let consumed = self.consumed.load(Ordering::Relaxed) + len as u64;
        self.consumed.store(consumed, Ordering::Relaxed);
        // It may be allowed to send more than that: bytes were put back whose credit had been returned.
        if consumed + WINDOW >= self.allowed.load(Ordering::Relaxed) + CREDIT_STEP {
            self.allowed.store(consumed + WINDOW, Ordering::Release);
            let peer = self.peer.load(Ordering::Acquire);
            self.carrier.send_control(Control::Credit { channel: peer, granted: consumed + WINDOW });
        }
    }
}

/// Returns a number of bytes, or `WouldBlock` if there are none.
fn some(received: usize) -> Result<usize, LinkError> {
    if received > 0 { Ok(received) } else { Err(LinkError::WouldBlock) }
}
