//! The sending half of a stream that is frozen, or was loaded from a snapshot (requirement X2).

use super::{Tx, Unsent, mulpdu_of};
use crate::broken;
use crate::link::Link;
use std::sync::Arc;

impl Tx {
    /// Gives a half that was loaded its link.
    pub(crate) fn set_link(&mut self, link: &Arc<dyn Link>) {
        self.link = Arc::clone(link);
        self.mulpdu = mulpdu_of(&**link, self.cursor.writer.framing());
    }

    /// Returns the request that this half is at, and whether the request was started.
    pub(crate) fn position(&self) -> (u64, bool) {
        (self.cursor.seq, !self.cursor.is_between_requests())
    }

    /// Returns whether a half that was loaded can be driven. `responses` is the number of responses that it owes.
    pub(crate) fn is_consistent(&self, responses: usize) -> bool {
        let is_left = |unsent: &Unsent| unsent.sent < unsent.bytes.len();
        self.unsent.as_deref().is_none_or(is_left) && self.cursor.responded as usize <= responses
    }

    /// Forgets a part of the state, in a build that must be found to lose it.
    pub(crate) fn forget(&mut self) {
        if broken::is("tail") {
            self.unsent = None;
        }
    }
}
