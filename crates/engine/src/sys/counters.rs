//! Counters of what this process has sent and received that do not show on an open socket: closed connections, and datagrams.

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

/// A counter that only grows.
type Count = AtomicU64;

/// Totals of closed connections and of datagrams.
struct Kept {
    sent: Count,
    received: Count,
    segments_sent: Count,
    segments_received: Count,
    retransmissions: Count,
}

static KEPT: Kept = Kept {
    sent: Count::new(0),
    received: Count::new(0),
    segments_sent: Count::new(0),
    segments_received: Count::new(0),
    retransmissions: Count::new(0),
};

/// Returns what was counted so far.
pub(super) fn kept() -> Traffic {
    let load = |count: &Count| count.load(Ordering::Relaxed);
    Traffic {
        sent: load(&KEPT.sent),
        received: load(&KEPT.received),
        segments_sent: load(&KEPT.segments_sent),
        segments_received: load(&KEPT.segments_received),
        retransmissions: load(&KEPT.retransmissions),
    }
}

/// Adds the traffic of a connection that is about to be closed.
pub(super) fn keep(connection: Traffic) {
    let Traffic { sent, received, segments_sent, segments_received, retransmissions } = connection;
    KEPT.sent.fetch_add(sent, Ordering::Relaxed);
    KEPT.received.fetch_add(received, Ordering::Relaxed);
    KEPT.segments_sent.fetch_add(segments_sent, Ordering::Relaxed);
    KEPT.segments_received.fetch_add(segments_received, Ordering::Relaxed);
    KEPT.retransmissions.fetch_add(retransmissions, Ordering::Relaxed);
}

/// Counts a datagram of `len` bytes that was sent.
#[inline]
pub(super) fn datagram_sent(len: usize) {
    KEPT.sent.fetch_add(len as u64, Ordering::Relaxed);
    KEPT.segments_sent.fetch_add(1, Ordering::Relaxed);
}

/// Counts a datagram of `len` bytes that was received.
#[inline]
pub(super) fn datagram_received(len: usize) {
    KEPT.received.fetch_add(len as u64, Ordering::Relaxed);
    KEPT.segments_received.fetch_add(1, Ordering::Relaxed);
}

/// Resets the counters in a forked child: the traffic so far is the parent's.
pub(super) fn forget() {
    let Kept { sent, received, segments_sent, segments_received, retransmissions } = &KEPT;
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
