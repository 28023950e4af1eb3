//! How far the sending half of a stream has come.

use ironwarp_wire::mpa::{FpduWriter, Framing};

/// State of the sending half between two FPDUs. Plain data, so that it can be rolled back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) writer: FpduWriter,
    pub(crate) in_progress: InProgress,
    /// Sequence number of the work request in progress, or of the next one.
    pub(crate) seq: u64,
    /// Number of bytes of the message in progress that are in FPDUs.
    pub(crate) offset: u32,
    /// Number of messages of the request class that are in FPDUs.
    pub(crate) requests: u64,
    /// The next message sequence numbers on DDP queues 0 and 1, starting from 1 (RFC 5041 §5.2).
    pub(crate) send_msn: u32,
    pub(crate) read_msn: u32,
    /// The next message sequence numbers on queue 3 and on the queue of Read V2 Responses.
    pub(crate) atomic_msn: u32,
    pub(crate) read_v2_msn: u32,
    /// Number of responses due that are in FPDUs.
    pub(crate) responded: u32,
    /// A response goes next: requests and responses take turns.
    pub(crate) response_next: bool,
    /// Number of messages acknowledged to the peer.
    pub(crate) acknowledged: u64,
    /// The last message reported as waiting for a receive, counted from one. Zero if none was.
    pub(crate) not_ready: u64,
    pub(crate) read_rtr: bool,
    pub(crate) opening: bool,
    pub(crate) terminate: bool,
}

/// The message of which some but not all segments are in FPDUs. It is finished before another begins (RFC
/// 5041 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InProgress {
    Nothing,
    Request,
    /// The Write of a Write with Immediate is in FPDUs; the Immediate Data is next.
    Immediate,
    Response,
}

/// What kind of message a frame belongs to: decides what to do once it is sent, or rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// The last segment of a work request.
    Request(u64),
    /// A Read or Atomic Request, of a work request or (`None`) of the adapter itself.
    Read(Option<u64>),
    /// The last segment of a response to a Read or Atomic Request.
    Response,
    /// The Terminate, the last message of the stream.
    Terminate,
    /// Any other frame: nothing depends on when it is sent.
    Other,
}

impl Cursor {
    /// The position at the start of a stream.
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
        }
    }

    pub(crate) fn is_between_requests(&self) -> bool {
        matches!(self.in_progress, InProgress::Nothing | InProgress::Response)
    }
}
