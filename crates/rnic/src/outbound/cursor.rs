//! The position of the sending half of a stream.

use super::RouteSignals;
use crate::link::Route;
use crate::queue::MAX_COUNT;
use ironwarp_wire::mpa::{FpduWriter, Framing};
use serde::{Deserialize, Serialize};

/// The position of the sending half between two FPDUs. A copy of an earlier one restores that position, which rolls
/// back FPDUs that were built and not sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The position in the byte stream, which determines where markers are, and the framing of the route.
    pub(crate) writer: FpduWriter,
    /// The message of which some but not all segments are in FPDUs.
    pub(crate) in_progress: InProgress,
    /// Sequence number of the work request in progress, or of the next one.
    pub(crate) seq: u64,
    /// Number of bytes of the message in progress that are in FPDUs.
    pub(crate) offset: u32,
    /// Number of messages of the request class that are in FPDUs.
    pub(crate) requests: u64,
    /// The next message sequence number on DDP queue 0, for Sends. All of these start from 1 (RFC 5041 §5.2).
    pub(crate) send_msn: u32,
    /// The next message sequence number on DDP queue 1, for Read and Atomic Requests.
    pub(crate) read_msn: u32,
    /// The next message sequence number on DDP queue 3, for Atomic Responses.
    pub(crate) atomic_msn: u32,
    /// The next message sequence number on the private queue for Read V2 Responses.
    pub(crate) read_v2_msn: u32,
    /// Number of responses at the front of [`TxObligations::responses`](super::TxObligations::responses) that are in
    /// FPDUs.
    pub(crate) responded: u32,
    /// A response goes next, if one is due: requests and responses take turns.
    pub(crate) response_next: bool,
    /// Number of messages acknowledged to the peer.
    pub(crate) acknowledged: u64,
    /// The number in the last signal that a message waits for a receive, plus one. Zero if there was none.
    pub(crate) not_ready: u64,
    /// The RTR is in an FPDU, if it has to be a Read.
    pub(crate) read_rtr: bool,
    /// The opening message is in an FPDU.
    pub(crate) opening: bool,
    /// The Terminate is in an FPDU.
    pub(crate) terminate: bool,
    /// The route of the next FPDU. If it differs from that of the link, the switch signal is in an FPDU.
    pub(crate) route: Route,
    /// Number of parts of offers that are in FPDUs. A replaced offer counts as complete.
    pub(crate) offer_parts: u8,
    /// The leave and left signals that are in FPDUs.
    pub(crate) leaving: RouteSignals,
}

/// The message of which some but not all segments are in FPDUs. It is finished before another begins (RFC
/// 5041 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InProgress {
    /// No message is unfinished.
    Nothing,
    /// A Send or Write.
    Request,
    /// A Write with Immediate: all segments of the Write are in FPDUs, and the Immediate Data is next.
    Immediate,
    /// A Read Response.
    Response,
}

/// The kind of a frame, which decides what happens once the frame is sent, or rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrameKind {
    /// The last segment of the work request with this sequence number.
    Request(u64),
    /// A Read or Atomic Request, of the work request with this sequence number. `None` for a probe.
    Read(Option<u64>),
    /// The last segment of a response to a Read or Atomic Request.
    Response,
    /// The Terminate, the last message of the stream.
    Terminate,
    /// The switch to this route, the last message on the former one.
    Switch(Route),
    /// Any other frame: nothing depends on when it is sent.
    Other,
}

impl Cursor {
    /// Returns the position at the start of a stream.
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            writer: FpduWriter::new(framing),
            in_progress: InProgress::Nothing,
            seq: 0,
            offset: 0,
            requests: 0,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            read_v2_msn: 1,
            responded: 0,
            response_next: false,
            acknowledged: 0,
            not_ready: 0,
            read_rtr: false,
            opening: false,
            terminate: false,
            route: Route::Tcp,
            offer_parts: 0,
            leaving: RouteSignals::empty(),
        }
    }

    /// Returns whether a position that was loaded can be one of a stream. `len` is the length of the message in
    /// progress; `None` if its request is gone.
    pub(crate) fn is_consistent(&self, len: Option<u64>) -> bool {
        let counts = [self.seq, self.requests, self.acknowledged, self.not_ready];
        self.writer.is_consistent()
            && counts.iter().all(|count| *count <= MAX_COUNT)
            && len.is_none_or(|len| u64::from(self.offset) <= len)
    }

    /// Whether no work request is partly in FPDUs.
    pub(crate) fn is_between_requests(&self) -> bool {
        matches!(self.in_progress, InProgress::Nothing | InProgress::Response)
    }
}
