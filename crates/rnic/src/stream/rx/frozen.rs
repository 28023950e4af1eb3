//! The receiving half of a stream that is frozen, or was loaded from a snapshot (requirement X2).

use super::failure::Target;
use super::{Message, Rx, Segment};
use crate::broken;
use crate::device::Device;
use crate::link::Link;
use crate::memory::Touch;
use crate::queue::{MAX_COUNT, Receive};
use ironwarp_wire::mpa::FpduReader;
use std::sync::Arc;

impl Rx {
    /// Has the device count the messages that wait for a receive, in a half that moved here.
    pub(crate) fn count_parked(&mut self, device: &Arc<Device>) {
        self.park.count(device);
    }

    /// Gives a half that was loaded its link. What the link has reported before is not known, so the half receives until
    /// the link is empty.
    pub(crate) fn set_link(&mut self, link: &Arc<dyn Link>) {
        self.link = Arc::clone(link);
        self.until_empty = true;
    }

    /// Adds bytes that had arrived at the source and were not received there. They are parsed before those of the link.
    pub(crate) fn carry(&mut self, received: &[u8]) {
        self.early = [&self.early, received].concat().into();
    }

    /// Returns the receive that the message in progress uses, if there is one.
    pub(crate) fn receive_in_use(&mut self) -> Option<&mut Receive> {
        match &mut self.message {
            Message::Send { receive, .. } => Some(receive),
            Message::None | Message::Write(_) => None,
        }
    }

    /// Returns whether a half that was loaded can be driven.
    pub(crate) fn is_consistent(&self) -> bool {
        let message = match &self.message {
            Message::Send { receive, received, .. } => receive.is_consistent() && *received <= receive.room,
            Message::None | Message::Write(_) => true,
        };
        let is_in_progress = |segment: &Segment| {
            let left = usize::from(segment.fpdu.payload_len).checked_sub(segment.done);
            let stored = if let Target::Park(bytes) = &segment.target { bytes.len() } else { segment.done };
            left.is_some_and(|left| self.reader.run_len() <= left) && stored == segment.done
        };
        self.reader.is_consistent()
            && message
            && [self.written, self.delivered, self.acked_parked].iter().all(|count| *count <= MAX_COUNT)
            && (self.discarding || self.segment.is_some() == self.reader.is_within_fpdu())
            && self.segment.as_deref().is_none_or(is_in_progress)
    }

    /// Forgets a part of the state, in a build that must be found to lose it.
    pub(crate) fn forget(&mut self) {
        if broken::is("partial") {
            self.reader = FpduReader::new(self.reader.framing());
            self.segment = None;
        }
        if broken::is("parked") {
            while self.park.pop().is_some() {}
        }
        if broken::is("claim") {
            self.touch = Touch::default();
        }
    }
}
