//! Finds the request that a Terminate is about.

use super::SendQueue;
use crate::queue::Operation;
use crate::queue::entry::Entry;
use ironwarp_wire::{Place, ReadRequest};

impl SendQueue {
    /// The request with this message sequence number: a Read or atomic operation if `read`, else a Send or Write
    /// with Immediate.
    pub(crate) fn find_msn(&self, msn: u32, read: bool) -> Option<u64> {
        self.find(|entry| {
            entry.msn == msn
                && entry.number > 0
                && match entry.request.operation {
                    Operation::Send { .. } => !read,
                    Operation::Write(_) => !read && entry.request.immediate.is_some(),
                    Operation::Read(_) | Operation::Atomic { .. } => read,
                    _ => false,
                }
        })
    }

    /// The Read that sent this request, or of which this request is the rest. It is not answered yet. Responses
    /// come in order: if several requested the same, it is the oldest.
    pub(crate) fn find_read(&self, asked: &ReadRequest) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Read(source) => {
                source.tag == asked.source.tag
                    && (source.offset..=source.offset.saturating_add(entry.request.data.len()))
                        .contains(&asked.source.offset)
                    && entry.number > 0
                    && !entry.done
            }
            _ => false,
        })
    }

    /// The oldest Write that covers this place and is not acknowledged. A peer that acknowledges does so before
    /// it terminates the stream, so it is the first that is not acknowledged, even if others cover the place as
    /// well.
    pub(crate) fn find_write(&self, place: Place) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Write(to) => {
                to.tag == place.tag
                    && (to.offset..=to.offset.saturating_add(entry.request.data.len()))
                        .contains(&place.offset)
                    && entry.number > self.acknowledged
            }
            _ => false,
        })
    }

    /// The oldest request that is not complete.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.first)
    }

    fn find(&self, wanted: impl Fn(&Entry) -> bool) -> Option<u64> {
        (self.first..).zip(&self.entries).find(|(_, entry)| wanted(entry)).map(|(seq, _)| seq)
    }
}
