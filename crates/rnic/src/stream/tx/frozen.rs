//! The sending half of a stream that is frozen, or was loaded from a snapshot (requirement X2).

use super::{Tx, Unsent, mulpdu_of};
use crate::broken;
use crate::link::Link;
use crate::outbound::{Cursor, FrameKind, InProgress, TxObligations};
use crate::queue::SendQueue;
use std::sync::Arc;

impl Tx {
    /// Gives a half that was loaded its link.
    pub(crate) fn set_link(&mut self, link: &Arc<dyn Link>) {
        self.link = Arc::clone(link);
        self.mulpdu = mulpdu_of(&**link, self.cursor.writer.framing());
    }

    /// Adds bytes that the source's link had taken and not sent. They are sent before all others.
    pub(crate) fn carry(&mut self, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let mut kind = FrameKind::Other;
        if let Some(tail) = self.unsent.take() {
            bytes.extend(&tail.bytes[tail.sent..]);
            kind = tail.kind;
        }
        self.unsent = Some(Box::new(Unsent { bytes, sent: 0, kind }));
    }

    /// Returns the request that this half is at, and whether the request was started.
    pub(crate) fn position(&self) -> (u64, bool) {
        (self.cursor.seq, !self.cursor.is_between_requests())
    }

    /// Returns whether a half that was loaded can be driven, with this send queue and these obligations.
    pub(crate) fn is_consistent(&self, sq: &SendQueue, obligations: &TxObligations) -> bool {
        let Cursor { in_progress, seq, responded, terminate, .. } = self.cursor;
        let is_left = |unsent: &Unsent| unsent.sent < unsent.bytes.len();
        let len = match in_progress {
            _ if terminate => None, // it has replaced the message in progress, and nothing follows
            InProgress::Nothing | InProgress::Immediate => Some(0),
            InProgress::Request => sq.request(seq).map(|request| request.data.len()),
            InProgress::Response => {
                let response = obligations.responses.get(responded as usize);
                Some(response.map_or(0, |response| response.request.response_len().into()))
            }
        };
        self.unsent.as_deref().is_none_or(is_left)
            && self.cursor.is_consistent(len)
            && obligations.is_consistent(responded)
    }

    /// Forgets a part of the state, in a build that must be found to lose it.
    pub(crate) fn forget(&mut self) {
        if broken::is("tail") {
            self.unsent = None;
        }
    }
}
