//! What this process has sent and received, over all adapters that it has and had: the counters of a port. Nothing is counted
//! for it on the path of a stream: the kernel counts for each connection, and what it says last is kept when one is closed.

use crate::sys::fork;
use crate::sys::socket::Traffic as Connection;
use crate::sys::socket::traffic_of;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that peers have acknowledged, and of datagrams those that were sent.
    pub sent: u64,
    /// Bytes that were received.
    pub received: u64,
    /// TCP segments, and datagrams.
    pub segments_sent: u64,
    /// TCP segments, and datagrams.
    pub segments_received: u64,
    /// TCP segments that were sent again.
    pub retransmissions: u64,
}

/// A count that only grows.
type Count = AtomicU64;

/// What does not show on an open socket: connections that were closed, and datagrams.
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

/// Returns the traffic of this process, and asks the kernel for that of each open connection. A connection that is closed during the
/// call may be counted twice in this result.
pub fn of_process() -> Traffic {
    let load = |count: &Count| count.load(Ordering::Relaxed);
    let mut sum = Traffic {
        sent: load(&KEPT.sent),
        received: load(&KEPT.received),
        segments_sent: load(&KEPT.segments_sent),
        segments_received: load(&KEPT.segments_received),
        retransmissions: load(&KEPT.retransmissions),
    };
    fork::known().for_each(|fd| sum += traffic_of(fd).into());
    sum
}

/// Adds the traffic of a connection that is about to be closed.
pub(crate) fn keep(connection: Connection) {
    let Traffic { sent, received, segments_sent, segments_received, retransmissions } = connection.into();
    KEPT.sent.fetch_add(sent, Ordering::Relaxed);
    KEPT.received.fetch_add(received, Ordering::Relaxed);
    KEPT.segments_sent.fetch_add(segments_sent, Ordering::Relaxed);
    KEPT.segments_received.fetch_add(segments_received, Ordering::Relaxed);
    KEPT.retransmissions.fetch_add(retransmissions, Ordering::Relaxed);
}

/// Counts a datagram of `len` bytes that was sent.
#[inline]
pub(crate) fn datagram_sent(len: usize) {
    KEPT.sent.fetch_add(len as u64, Ordering::Relaxed);
    KEPT.segments_sent.fetch_add(1, Ordering::Relaxed);
}

/// Counts a datagram of `len` bytes that was received.
#[inline]
pub(crate) fn datagram_received(len: usize) {
    KEPT.received.fetch_add(len as u64, Ordering::Relaxed);
    KEPT.segments_received.fetch_add(1, Ordering::Relaxed);
}

/// Resets the counters in a forked child: the traffic so far is the parent's.
pub(crate) fn forget() {
    let Kept { sent, received, segments_sent, segments_received, retransmissions } = &KEPT;
    [sent, received, segments_sent, segments_received, retransmissions]
        .iter()
        .for_each(|count| count.store(0, Ordering::Relaxed));
}

impl From<Connection> for Traffic {
    fn from(connection: Connection) -> Self {
        Self {
            sent: connection.acknowledged,
            received: connection.received,
            segments_sent: connection.segments_sent.into(),
            segments_received: connection.segments_received.into(),
            retransmissions: connection.retransmissions.into(),
        }
    }
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
