//! A completion queue whose consumer sleeps at a completion handler, and polls only what it was woken for.

use super::Host;
use crate::Result;
use crate::control::PATIENCE;
use ironwarp::{Arm, Class, Completion, CompletionHandler, CompletionQueue, QueuePair};

#[derive(Debug)]
pub(super) struct Sleeper {
    pub(super) cq: CompletionQueue,
    pub(super) handler: CompletionHandler,
}

impl Sleeper {
    pub(super) fn new(host: &Host, depth: usize) -> Result<Self> {
        Self::at(host, host.adapter.completion_queue(depth)?)
    }

    /// One whose consumer is in a hurry.
    pub(super) fn urgent(self) -> Result<Self> {
        self.handler.set_class(Class::LowLatency)?;
        Ok(self)
    }

    /// For a queue that there is.
    pub(super) fn at(host: &Host, cq: CompletionQueue) -> Result<Self> {
        let handler = host.adapter.completion_handler()?;
        cq.modify(&handler);
        Ok(Self { cq, handler })
    }

    pub(super) fn pair(&self, host: &Host, depth: usize) -> Result<QueuePair> {
        let pair = host.domain.queue_pair(&self.cq).send_depth(depth).receive_depth(depth);
        Ok(pair.max_sges(1).create()?)
    }

    /// The next completion, which must be a good one.
    pub(super) fn next(&self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.cq.poll_one()? {
                return Ok(completion.success()?);
            }
            if !self.cq.arm(Arm::Next) {
                self.handler.wait(PATIENCE).ok_or("no completion in time")?;
            }
        }
    }
}
