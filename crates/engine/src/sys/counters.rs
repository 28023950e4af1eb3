//! Counters of this process for the traffic that no open TCP socket counts: that of closed connections, datagrams, and
//! shared memory.

use ironwarp_rnic::sync::lock;
use std::ops::{AddAssign, Deref};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes and segments sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes acknowledged by peers, plus bytes sent in datagrams and in shared memory.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// TCP segments, datagrams and records in shared memory sent.
    pub segments_sent: u64,
    /// TCP segments, datagrams and records in shared memory received.
    pub segments_received: u64,
    /// TCP segments sent again.
    pub retransmissions: u64,
}

/// The counters, with the meaning that [`Traffic`] gives them.
struct Totals {
    sent: AtomicU64,
    received: AtomicU64,
    segments_sent: AtomicU64,
    segments_received: AtomicU64,
    retransmissions: AtomicU64,
}

/// Totals of closed connections and of datagrams.
static TOTALS: Totals = Totals {
    sent: AtomicU64::new(0),
    received: AtomicU64::new(0),
    segments_sent: AtomicU64::new(0),
    segments_received: AtomicU64::new(0),
    retransmissions: AtomicU64::new(0),
};

/// The traffic in memory shared with one other process.
#[derive(Debug, Default)]
pub(crate) struct SharedTraffic {
    sent: AtomicU64,
    received: AtomicU64,
    records_sent: AtomicU64,
    records_received: AtomicU64,
}

/// The traffic in all shared memory that is in use. Locked while the totals are read, and while traffic moves from here to
/// the totals, so that it is counted once.
static SHARED: Mutex<Vec<Arc<SharedTraffic>>> = Mutex::new(Vec::new());

/// The counters of shared memory that is in use. Dropping it moves them to the totals.
#[derive(Debug)]
pub(crate) struct SharedCounters(Arc<SharedTraffic>);

impl SharedCounters {
    /// Creates counters that [`totals`] includes.
    pub(crate) fn new() -> Self {
        let traffic = Arc::<SharedTraffic>::default();
        lock(&SHARED).push(Arc::clone(&traffic));
        Self(traffic)
    }
}

impl Deref for SharedCounters {
    type Target = SharedTraffic;

    #[inline]
    fn deref(&self) -> &SharedTraffic {
        &self.0
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        let mut shared = lock(&SHARED);
        // Not found in a forked child: it is the traffic of the parent.
        if let Some(place) = shared.iter().position(|traffic| Arc::ptr_eq(traffic, &self.0)) {
            add_closed(shared.swap_remove(place).traffic());
        }
    }
}

impl SharedTraffic {
    /// Counts a record that was sent. Called by one thread at a time.
    #[inline]
    pub(crate) fn count_sent(&self, len: usize) {
        add(&self.sent, len as u64);
        add(&self.records_sent, 1);
    }

    /// Counts a record, or a part of one, that was received. Called by one thread at a time.
    #[inline]
    pub(crate) fn count_received(&self, len: usize) {
        add(&self.received, len as u64);
        add(&self.records_received, 1);
    }

    fn traffic(&self) -> Traffic {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            sent: load(&self.sent),
            received: load(&self.received),
            segments_sent: load(&self.records_sent),
            segments_received: load(&self.records_received),
            retransmissions: 0,
        }
    }
}

/// Adds to a counter that only one thread changes at a time, which is cheaper than `fetch_add`.
#[inline]
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

/// Locks the list of shared memory, for a thread that forks.
pub(super) fn lock_shared() -> MutexGuard<'static, Vec<Arc<SharedTraffic>>> {
    lock(&SHARED)
}

/// Returns the totals of closed connections, of datagrams, and of shared memory.
pub(super) fn totals() -> Traffic {
    let shared = lock(&SHARED);
    let mut sum = closed_totals();
    shared.iter().for_each(|shared| sum += shared.traffic());
    sum
}

/// Returns the totals of closed connections and of datagrams.
fn closed_totals() -> Traffic {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Traffic {
        sent: load(&TOTALS.sent),
        received: load(&TOTALS.received),
        segments_sent: load(&TOTALS.segments_sent),
        segments_received: load(&TOTALS.segments_received),
        retransmissions: load(&TOTALS.retransmissions),
    }
}

/// Adds the traffic of a connection that is about to be closed.
pub(super) fn add_closed(connection: Traffic) {
    let Traffic { sent, received, segments_sent, segments_received, retransmissions } = connection;
    TOTALS.sent.fetch_add(sent, Ordering::Relaxed);
    TOTALS.received.fetch_add(received, Ordering::Relaxed);
    TOTALS.segments_sent.fetch_add(segments_sent, Ordering::Relaxed);
    TOTALS.segments_received.fetch_add(segments_received, Ordering::Relaxed);
    TOTALS.retransmissions.fetch_add(retransmissions, Ordering::Relaxed);
}

/// Counts a sent datagram of `len` bytes.
#[inline]
pub(super) fn count_sent_datagram(len: usize) {
    TOTALS.sent.fetch_add(len as u64, Ordering::Relaxed);
    TOTALS.segments_sent.fetch_add(1, Ordering::Relaxed);
}

/// Counts a received datagram of `len` bytes.
#[inline]
pub(super) fn count_received_datagram(len: usize) {
    TOTALS.received.fetch_add(len as u64, Ordering::Relaxed);
    TOTALS.segments_received.fetch_add(1, Ordering::Relaxed);
}

/// Resets the counters in a forked child: the traffic so far is the parent's. `shared` is the locked list.
pub(super) fn reset(shared: Option<&mut Vec<Arc<SharedTraffic>>>) {
    shared.into_iter().for_each(Vec::clear);
    let Totals { sent, received, segments_sent, segments_received, retransmissions } = &TOTALS;
    [sent, received, segments_sent, segments_received, retransmissions]
        .iter()
        .for_each(|count| count.store(0, Ordering::Relaxed));
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.segments_sent += other.segments_sent;
        self.segments_received += other.segments_received;
        self.retransmissions += other.retransmissions;
    }
}
