//! What the flight recorder records of the device. The engine starts the recorder; until then, and in simulations, recording
//! does nothing.
//!
//! Events are recorded where they cost least. On the shortest path of a message there is one at each end: it was posted and
//! sent, it arrived and completed. The meaning of the argument depends on the kind, see [`Recorded`].
//!
//! [`Recorded`]: crate::recorded::Recorded

pub(crate) use ironwarp_recorder::is_started;
use ironwarp_recorder::record as record_number;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A request was posted to the send queue. The argument of a request is the lower half of its identifier.
    Posted = 1,
    /// A request was posted, and sent at once.
    Sent,
    /// The request that was posted last was sent.
    SentLast,
    /// A receive was posted.
    PostedReceive,
    /// Segments were passed to the link: the number of bytes.
    SegmentsSent,
    /// A segment has arrived: its type and the length of its payload.
    SegmentReceived,
    /// A Write of one segment has arrived and was placed: its length.
    WritePlaced,
    /// A Send of one segment has arrived and completed a receive.
    Received,
    /// A request or receive has completed with success.
    Completed,
    /// A request or receive has completed with an error.
    Failed,
    /// The status of the [`Failed`](Self::Failed) before.
    Status,
    /// The peer acknowledges messages: their number since the connection was established.
    Acknowledged,
    /// This end acknowledges messages.
    Acknowledging,
    /// The queue pair is in another state.
    State,
    /// The connection has ended: the cause as a `vendor_err`.
    Ended,
    /// This end sends a Terminate: the cause, as it is in a `vendor_err`.
    TerminateSent,
    /// The peer has sent a Terminate.
    TerminateReceived,
    /// A fault was injected.
    Fault,
    /// A message of the peer waits until a receive is posted.
    NoReceive,
    /// The peer says that a message waits until its program posts a receive: the number of messages before it.
    PeerNotReady,
    /// The link takes no more bytes.
    Blocked,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::Posted,
        Self::Sent,
        Self::SentLast,
        Self::PostedReceive,
        Self::SegmentsSent,
        Self::SegmentReceived,
        Self::WritePlaced,
        Self::Received,
        Self::Completed,
        Self::Failed,
        Self::Status,
        Self::Acknowledged,
        Self::Acknowledging,
        Self::State,
        Self::Ended,
        Self::TerminateSent,
        Self::TerminateReceived,
        Self::Fault,
        Self::NoReceive,
        Self::PeerNotReady,
        Self::Blocked,
    ];
}

/// Records an event of a queue pair.
#[inline(always)]
pub(crate) fn record(kind: Kind, qp: u32, argument: u32) {
    record_number(kind as u8, qp, argument);
}

/// Returns the lower half of a number, such as the identifier of a request.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "only the lower half is recorded")]
pub(crate) const fn low(number: u64) -> u32 {
    number as u32
}
