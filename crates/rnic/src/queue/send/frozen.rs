//! Freezes a send queue (requirement X2): takes it out of its queue pair, and refuses requests meanwhile.

use super::SendQueue;
use crate::error::QpError;
use crate::host::Span;
use crate::memory::{NotCarried, Translation};
use crate::queue::entry::check_request;
use crate::queue::{Completion, MAX_COUNT, Operation, Receive};
use std::sync::Arc;

impl SendQueue {
    /// Takes the queue out, and leaves one that refuses requests. No call to the link is in progress: the caller has taken
    /// the tx half.
    pub(crate) fn freeze(&mut self) -> Self {
        let mut substitute = Self::new(0, 0, false, self.completes, None);
        substitute.frozen = true;
        std::mem::replace(self, substitute)
    }

    /// Puts a frozen queue back. If the stream has failed meanwhile, completes its requests.
    pub(crate) fn thaw(
        &mut self,
        mut frozen: Self,
        qp: u32,
        failure: Option<&Arc<QpError>>,
        complete: impl FnMut(Completion),
    ) {
        if let Some(cause) = failure
            && !frozen.failed
        {
            frozen.fail(qp, None, cause, complete);
        }
        *self = frozen;
    }

    /// Puts a queue that was loaded from a snapshot in place.
    pub(crate) fn restore(&mut self, loaded: Self) {
        *self = loaded;
    }

    /// Relocates the memory that requests register: see [`Translation::relocate`].
    pub(crate) fn relocate(
        &mut self,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<(), NotCarried> {
        for entry in &mut self.entries {
            if let Operation::Register { memory, .. } | Operation::RegisterSend { memory, .. } =
                &mut entry.request.operation
                && let Some(translation) = Arc::get_mut(&mut memory.translation)
            {
                translation.relocate(relocate)?;
            }
        }
        Ok(())
    }

    /// Forgets the Reads and atomic operations that were not answered, for a build that must be found to lose them.
    pub(crate) fn forget_reads(&mut self) {
        self.reads.clear();
    }

    /// Returns the receive that is to be flushed after the requests, if there is one.
    pub(crate) fn receive_to_flush(&mut self) -> Option<&mut Receive> {
        self.flush.as_mut()?.as_mut().as_mut()
    }

    /// Returns whether a queue that was loaded is one that requests could have been posted to. `position` is the request
    /// that the tx half is at, if there is one, and whether the request was started.
    pub(crate) fn is_consistent(&self, position: Option<(u64, bool)>) -> bool {
        let end = self.first.saturating_add(self.entries.len() as u64);
        let is_at = |at: u64| (self.first..end).contains(&at);
        let is_between = |at: u64, started: bool| is_at(at) || !started && at == end;
        let refused = self.entries.iter().filter(|entry| entry.refused).count();
        let numbers = self.entries.iter().map(|entry| entry.number);
        let mut counts = numbers.chain(self.reads.iter().map(|read| read.number));
        !self.sending
            && self.entries.len() <= self.capacity as usize
            && self.first.max(self.acknowledged) <= MAX_COUNT
            && counts.all(|count| count <= MAX_COUNT)
            && self.flush.iter().filter_map(|receive| receive.as_ref().as_ref()).all(Receive::is_consistent)
            && self
                .entries
                .iter()
                .all(|entry| check_request(&entry.request, self.max_sges as usize, self.registration).is_ok())
            && self.reads.iter().all(|read| read.received <= read.len && read.entry.is_none_or(is_at))
            && self.extra.as_ref().map_or(0, |extra| extra.refusals.ends.len()) == refused
            && (self.failed || position.is_none_or(|(at, started)| is_between(at, started)))
    }
}
