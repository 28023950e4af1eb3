//! [`Carrier`], the shared memory of two processes: a pair of rings that carries the streams of their connections.
//!
//! Any thread serves a carrier, but only one at a time reads its ring. The ring is never blocked: bytes that their
//! connection cannot consume are moved to its inbox (`channel.rs`).

mod receiving;
mod rings;
mod sending;

use super::channel::{Channel, ChannelOwner};
use super::record::{Control, Token};
use super::table::ChannelTable;
use crate::reactor::carrier::Carrier as ReactorCarrier;
use crate::sys::bell::{Bell, Heard};
use crate::sys::counters::SharedCounters;
use crate::sys::fork::Creator;
use crate::sys::segment::MappedSegment;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::link::LinkError;
use ironwarp_rnic::sync::lock;
use ironwarp_shm::{Reader, Side, Sleep, Watch, Writer, open};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The number of a channel that the peer has refused, instead of the peer's number.
const REFUSED: u32 = u32::MAX;

/// Number of records after which a thread that serves a carrier does something else.
const RECORDS_PER_TURN: usize = 64;

/// Which end has asked for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedBy {
    ThisEnd,
    OtherEnd,
}

/// Finds the connection of an offer.
pub(crate) trait Offers: Send + Sync + std::fmt::Debug {
    /// Takes the offer with this token; `None` if there is none.
    fn take(&self, token: &Token) -> Option<Weak<dyn ChannelOwner>>;
}

/// The shared memory of two processes.
#[derive(Debug)]
pub(crate) struct Carrier {
    segment: Arc<MappedSegment>,
    bell: Arc<Bell>,
    watch: Watch,
    writer: Mutex<Sending>,
    reader: Mutex<Reader>,
    channels: Mutex<ChannelTable>,
    /// Number of poll sets that poll the carrier.
    pollers: AtomicUsize,
    /// Set when the other process has closed its end, or when no channel is left at either end. From then on there are no
    /// new channels: set under the lock of `channels`, or when the other end is gone.
    closed: AtomicBool,
    /// The last channel of this end is gone, and the other end was told. Only that one makes new channels, if it did not
    /// know yet. Changed under the lock of `channels`.
    retiring: AtomicBool,
    /// Set when the other process has broken the protocol.
    corrupt: AtomicBool,
    /// A forked child must not use the memory, which it does not have.
    creator: Creator,
    traffic: SharedCounters,
    /// Whether large payload has arrived in this turn.
    bulk: AtomicBool,
    /// Whether channels wait for room.
    awaits_room: AtomicBool,
    /// Whether a thread that waits for credit serves records that are not data.
    serves_controls: AtomicBool,
    offers: Weak<dyn Offers>,
    device: Arc<Device>,
    /// This carrier, for its channels.
    this: Weak<Self>,
}

/// The sending end.
#[derive(Debug)]
struct Sending {
    writer: Writer,
    /// Records for which there was no room. They come before all others.
    controls: VecDeque<Control>,
    /// The numbers of channels that wait for room. Not the channels, which keep the carrier alive.
    waiting: BTreeSet<u32>,
}

impl Carrier {
    /// Creates one end of a carrier in this memory.
    pub(crate) fn new(
        segment: MappedSegment,
        side: Side,
        bell: Arc<Bell>,
        offers: Weak<dyn Offers>,
        device: Arc<Device>,
    ) -> Arc<Self> {
        let segment = Arc::new(segment);
        let (writer, reader, watch) = open(Arc::<MappedSegment>::clone(&segment), side);
        Arc::new_cyclic(|this| Self {
            segment,
            bell,
            watch,
            writer: Mutex::new(Sending { writer, controls: VecDeque::new(), waiting: BTreeSet::new() }),
            reader: Mutex::new(reader),
            channels: Mutex::default(),
            pollers: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            corrupt: AtomicBool::new(false),
            creator: Creator::this(),
            traffic: SharedCounters::new(),
            bulk: AtomicBool::new(false),
            awaits_room: AtomicBool::new(false),
            serves_controls: AtomicBool::new(false),
            offers,
            device,
            this: Weak::clone(this),
        })
    }

    /// Returns the error of a carrier that cannot be used: the other process has broken the protocol, or this process is
    /// a forked child.
    fn check(&self) -> Result<(), LinkError> {
        if self.corrupt.load(Ordering::Relaxed) {
            return Err(LinkError::Lost(libc::EPROTO));
        }
        if self.creator.is_parent() {
            return Err(LinkError::Lost(libc::EBADF));
        }
        Ok(())
    }

    // --- Channels ---

    /// Creates a channel for a connection. Returns `None` if the carrier is closed, or has too many channels.
    fn add_channel(&self, owner: &Weak<dyn ChannelOwner>, asked_by: AskedBy) -> Option<Arc<Channel>> {
        let this = self.this.upgrade()?;
        let mut channels = lock(&self.channels);
        let is_retiring = self.retiring.load(Ordering::Relaxed) && asked_by == AskedBy::ThisEnd;
        if is_retiring || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let channel = channels.insert(|id| Arc::new(Channel::new(this, id, Weak::clone(owner))))?;
        self.retiring.store(false, Ordering::Relaxed);
        Some(channel)
    }

    /// Removes a channel whose connection is closed. If it was the last one, tells the other end, which closes the carrier
    /// unless it has channels: it may be asking for one just now. Returns whether it was the last one: the caller then
    /// closes the carrier after a while, in case that the other end does not.
    pub(crate) fn remove_channel(&self, channel: &Channel) -> bool {
        let is_last = {
            let mut channels = lock(&self.channels);
            let is_last = channels.remove(channel.id);
            if is_last {
                self.retiring.store(true, Ordering::Relaxed);
            }
            is_last
        };
        lock(&self.writer).waiting.remove(&channel.id);
        if is_last {
            self.send_control(Control::Close);
        }
        is_last
    }

    /// Closes the carrier if it has no channels and none is requested. A lane that was late for the request must not
    /// close the carrier first: the connection would stay with TCP.
    pub(crate) fn close_if_idle(&self) {
        self.drain();
        self.close_if_unused();
    }

    /// Closes the carrier if it has no channels.
    fn close_if_unused(&self) {
        let channels = lock(&self.channels);
        if channels.is_empty() {
            self.close();
        }
    }

    /// Asks the other process for a channel for the connection on which it has offered `token`. Returns false if the
    /// carrier makes no new channels.
    pub(crate) fn attach(&self, token: Token, owner: &Weak<dyn ChannelOwner>) -> bool {
        let Some(connection) = owner.upgrade() else { return true };
        let Some(channel) = self.add_channel(owner, AskedBy::ThisEnd) else { return false };
        if connection.bind(&channel) {
            self.send_control(Control::Attach { token, reply: channel.id });
        } else {
            self.remove_channel(&channel);
        }
        true
    }

    /// Returns whether this end can make new channels.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) && !self.retiring.load(Ordering::Relaxed) && self.check().is_ok()
    }

    /// Closes the carrier: connections that still use it notice the end of TCP.
    fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.bell.close();
        }
    }

    /// Ends all connections of the carrier, because its memory is corrupt. Returns the error for the connection that
    /// noticed.
    #[cold]
    pub(super) fn fail(&self, why: &dyn std::fmt::Display) -> LinkError {
        if !self.corrupt.swap(true, Ordering::SeqCst) {
            tracing::warn!(%why, "a peer broke the protocol of shared memory: its connections end");
            self.close(); // no connection may be left to do it
            self.end_channels(libc::EPROTO); // calls no function that waits for a lock: they all check the flag first
        }
        LinkError::Lost(libc::EPROTO)
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl ReactorCarrier for Carrier {
    #[inline]
    fn has_news(&self) -> bool {
        if self.check().is_err() {
            return false;
        }
        if self.watch.has_news() || self.awaits_room.load(Ordering::Relaxed) {
            return true;
        }
        if self.watch.peer_wants_room() {
            self.bell.ring();
        }
        false
    }

    fn serve(&self) -> bool {
        self.bulk.store(false, Ordering::Relaxed);
        for _ in 0..RECORDS_PER_TURN {
            if !self.serve_front() {
                break;
            }
        }
        self.serve_room();
        self.bulk.load(Ordering::Relaxed)
    }

    fn hear(&self, ended: bool) {
        match self.bell.hear() {
            Heard::Rings if !ended => {}
            Heard::Flood => {
                self.fail(&"rings without end");
            }
            // The end may be behind rings, and is not reported again.
            Heard::Rings | Heard::End if !self.closed.swap(true, Ordering::SeqCst) => {
                self.drain();
                self.end_channels(libc::ECONNRESET);
            }
            Heard::Rings | Heard::End => {}
        }
    }

    fn begin_polling(&self) {
        if self.pollers.fetch_add(1, Ordering::SeqCst) == 0 && self.check().is_ok() {
            self.watch.wake();
        }
    }

    fn end_polling(&self) -> bool {
        self.pollers.fetch_sub(1, Ordering::SeqCst) > 1 || self.go_to_sleep()
    }

    fn sleep(&self) -> bool {
        self.pollers.load(Ordering::SeqCst) > 0 || self.go_to_sleep()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Carrier {
    /// Has the other process ring from now on. Returns false if something has arrived.
    fn go_to_sleep(&self) -> bool {
        if self.check().is_err() {
            return true;
        }
        match self.watch.sleep() {
            Sleep::News => false,
            Sleep::Asleep { peer_wants_room } => {
                if peer_wants_room {
                    self.bell.ring();
                }
                true
            }
        }
    }
}
