//! Counters of this process for the traffic that no open TCP socket counts: that of closed connections, and datagrams.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes and segments sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes acknowledged by peers, plus bytes sent in datagrams.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// TCP segments and datagrams sent.
    pub segments_sent: u64,
    /// TCP segments and datagrams received.
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

/// Returns the totals of closed connections and of datagrams.
pub(super) fn totals() -> Traffic {
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

/// Resets the counters in a forked child: the traffic so far is the parent's.
pub(super) fn reset() {
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
