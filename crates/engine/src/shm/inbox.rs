//! [`Inbox`], bytes of a stream that were received before the connection could take them.
#![expect(clippy::box_collection, reason = "an inbox that is empty has to be small")]

use ironwarp_rnic::host::{Span, Unmapped};
use ironwarp_rnic::link::LinkError;
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of bytes of one receive.
const MAX_LEN: usize = 8 << 10;

/// Bytes of a stream, in order. Allocates nothing while it is empty.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Mutex<Option<Box<VecDeque<u8>>>>,
    /// Whether there are bytes, to read without the lock. Changed under the lock.
    any: AtomicBool,
}

impl Inbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        lock(&self.bytes).as_ref().map_or(0, |bytes| bytes.len())
    }

    /// Appends bytes.
    pub(super) fn push_back(&self, new: &[u8]) {
        self.change(|bytes| bytes.extend(new));
    }

    /// Puts bytes before all others.
    pub(super) fn push_front(&self, new: &[u8]) {
        self.change(|bytes| new.iter().rev().for_each(|byte| bytes.push_front(*byte)));
    }

    fn change(&self, change: impl FnOnce(&mut VecDeque<u8>)) {
        let mut bytes = lock(&self.bytes);
        change(bytes.get_or_insert_default());
        self.set_any(&mut bytes);
    }

    /// Updates the flag, and frees the memory of an empty inbox.
    fn set_any(&self, bytes: &mut Option<Box<VecDeque<u8>>>) {
        if bytes.as_ref().is_some_and(|bytes| bytes.is_empty()) {
            *bytes = None;
        }
        self.any.store(bytes.is_some(), Ordering::Release);
    }

    /// Moves bytes to the program's memory at `host` and then to `own`, as `Link::recv` does. `scatter` copies to the
    /// program's memory.
    pub(super) fn recv(
        &self,
        host: &[Span],
        own: &mut [u8],
        scatter: impl Fn(&[u8], Span) -> Result<(), Unmapped>,
    ) -> Result<usize, LinkError> {
        let mut bytes = lock(&self.bytes);
        let Some(queue) = &mut *bytes else { return Err(LinkError::WouldBlock) };
        // Not all of it, and not moved to be contiguous: what follows a switch of the route is put back, so that a peer
        // that switches all the time would have the same bytes copied again and again.
        let (front, _) = queue.as_slices();
        let from = &front[..front.len().min(MAX_LEN)];
        let mut moved = 0;
        for span in host {
            let len = span.len.min(from.len() - moved);
            if len > 0 && scatter(&from[moved..moved + len], Span { len, ..*span }).is_err() {
                // Without any progress the caller fails the stream.
                if moved == 0 {
                    return Err(LinkError::Unmapped);
                }
                break;
            }
            moved += len;
        }
        if moved == host.iter().map(|span| span.len).sum::<usize>() {
            let len = own.len().min(from.len() - moved);
            own[..len].copy_from_slice(&from[moved..moved + len]);
            moved += len;
        }
        queue.drain(..moved);
        self.set_any(&mut bytes);
        if moved > 0 { Ok(moved) } else { Err(LinkError::WouldBlock) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_an_empty_inbox_has_no_memory() {
        let inbox = Inbox::default();
        inbox.push_back(b"cde");
        inbox.push_front(b"ab");
        let mut own = [0; 4];
        let none = |_: &[u8], _: Span| Ok(());
        let mut all: Vec<u8> = Vec::new();
        while all.len() < 4 {
            let room = 4 - all.len();
            let len = inbox.recv(&[], &mut own[..room], none).unwrap();
            all.extend(&own[..len]);
        }
        assert_eq!(all, b"abcd");
        assert!(!inbox.is_empty());
        assert_eq!(inbox.recv(&[Span::new(0, 3)], &mut own, none), Ok(1));
        assert!(inbox.is_empty() && lock(&inbox.bytes).is_none());
        assert_eq!(inbox.recv(&[], &mut own, none), Err(LinkError::WouldBlock));
    }
}
