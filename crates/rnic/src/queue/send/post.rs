//! Adds requests to a send queue, and stores their inline data.

use super::SendQueue;
use crate::error::PostError;
use crate::queue::entry::{Entry, check_request};
use crate::queue::{InlineData, SharedSendQueue, WorkRequest};

impl SendQueue {
    /// Stores `len` bytes of inline data, which `write` writes, in memory of this queue, if they are at most `size` bytes.
    /// Longer data, and that of a queue pair without a send queue of its own, gets an allocation.
    pub(crate) fn inline_data(
        &mut self,
        len: usize,
        size: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> InlineData {
        let max = self.capacity as usize;
        let slots = &mut self.extra.get_or_insert_default().inline;
        slots.store(len, (size, max), write).unwrap_or_else(|write| InlineData::allocate(len, write))
    }

    /// Appends all of `requests`, or none.
    pub(crate) fn post(&mut self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| self.post_one(&mut Some(request)));
        if posted.is_err() {
            self.entries.truncate(before);
        }
        posted
    }

    /// Appends a request, which it takes unless it fails.
    #[inline]
    pub(crate) fn post_one(&mut self, request: &mut Option<WorkRequest>) -> Result<(), PostError> {
        if let Some(request) = request {
            if self.entries.len() >= self.capacity as usize {
                return Err(self.full_error());
            }
            check_request(request, self.max_sges as usize, self.registration)?;
        }
        if let Some(request) = request.take() {
            self.entries.push_back(Entry::new(request));
        }
        Ok(())
    }

    /// Returns the error for a request that does not fit. A queue that a shared send queue feeds has capacity zero, so
    /// every post that bypasses the shared send queue ends here.
    #[cold]
    fn full_error(&self) -> PostError {
        match &self.feed {
            _ if self.frozen => PostError::Frozen,
            Some(_) => PostError::NoSendQueue,
            None => PostError::Full { capacity: self.capacity as usize },
        }
    }

    /// Appends requests that were posted to the shared send queue `from`: all of them, or none. Fails if `from` does
    /// not feed this queue, if it is full, or if a request is invalid.
    pub(crate) fn post_shared(
        &mut self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        let Some(feed) = self.feed.as_mut().filter(|feed| std::ptr::eq(&*feed.queue, from)) else {
            return Err(PostError::OtherSendQueue);
        };
        // This queue has memory for requests only while it has requests: the shared send queue lends it a ring. Without
        // one, the capacity of `entries` is zero.
        if self.entries.capacity() == 0 {
            (self.entries, feed.numbers) = feed.queue.lend_ring();
        }
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| {
            check_request(&request, self.max_sges as usize, self.registration)?;
            from.reserve()?; // last, so that there is one reservation for each entry
            self.entries.push_back(Entry::new(request));
            Ok(())
        });
        if posted.is_err() {
            from.release(self.entries.len() - before);
            self.entries.truncate(before);
            self.return_ring();
        }
        posted
    }

    /// Returns the ring to the shared send queue if no request is left in it. Does nothing without a shared send queue.
    pub(super) fn return_ring(&mut self) {
        if let Some(feed) = &mut self.feed
            && self.entries.is_empty()
            && self.entries.capacity() > 0
        {
            let numbers = std::mem::take(&mut feed.numbers);
            feed.queue.take_back_ring((std::mem::take(&mut self.entries), numbers));
        }
    }
}
