//! Finds the request that a Terminate of the peer refers to. All functions return a sequence number.

use super::SendQueue;
use crate::queue::Operation;
use crate::queue::entry::Entry;
use ironwarp_wire::{ReadRequest, RemoteAddr};

impl SendQueue {
    /// Finds the request with this message sequence number: a Read or atomic operation if `read` is true, else a Send
    /// or a Write with Immediate.
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

    /// Finds the oldest unanswered Read whose range contains the start of `returned`, the Read Request in a
    /// Terminate: a peer returns the whole request, or the part that it has not served.
    pub(crate) fn find_read(&self, returned: &ReadRequest) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Read(source) => {
                source.tag == returned.source.tag
                    && (source.offset..=source.offset.saturating_add(entry.request.data.len()))
                        .contains(&returned.source.offset)
                    && entry.number > 0
                    && !entry.done
            }
            _ => false,
        })
    }

    /// Finds the oldest Write that covers `addr` and is not acknowledged. Later Writes may cover `addr` as well,
    /// but a peer acknowledges all delivered messages before it sends the Terminate, so the oldest one failed.
    pub(crate) fn find_write(&self, addr: RemoteAddr) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Write(to) => {
                to.tag == addr.tag
                    && (to.offset..=to.offset.saturating_add(entry.request.data.len())).contains(&addr.offset)
                    && entry.number > self.acknowledged
            }
            _ => false,
        })
    }

    /// Returns the oldest request that is not complete.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.first)
    }

    /// Finds the oldest request for which `matches` returns true.
    fn find(&self, matches: impl Fn(&Entry) -> bool) -> Option<u64> {
        (self.first..).zip(&self.entries).find(|(_, entry)| matches(entry)).map(|(seq, _)| seq)
    }
}
