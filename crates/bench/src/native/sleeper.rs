//! A completion queue whose consumer sleeps on a completion handler and polls only when woken.

use super::end::Host;
use crate::control::TIMEOUT;
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::completion::{Arm, Class, Completion, CompletionHandler, CompletionQueue};
use ironwarp::queue::QueuePair;

/// A completion queue with a completion handler.
#[derive(Debug)]
pub(super) struct Sleeper {
    pub(super) cq: CompletionQueue,
    pub(super) handler: CompletionHandler,
}

impl Sleeper {
    /// Creates a completion queue and a handler.
    pub(super) fn new(host: &Host, depth: usize) -> Result<Self> {
        Self::at(host, host.adapter.completion_queue(depth)?)
    }

    /// Creates a handler for the completion queue of the host, if the turn demands it.
    pub(super) fn of(turn: &Turn, host: &Host) -> Result<Option<Self>> {
        match turn.events {
            0 => Ok(None),
            _ => Self::at(host, host.cq.clone()).map(Some),
        }
    }

    /// Gives the handler the low-latency class.
    pub(super) fn with_low_latency(self) -> Result<Self> {
        self.handler.set_class(Class::LowLatency)?;
        Ok(self)
    }

    /// Creates a handler for an existing completion queue.
    pub(super) fn at(host: &Host, cq: CompletionQueue) -> Result<Self> {
        let handler = host.adapter.completion_handler()?;
        cq.set_handler(&handler);
        Ok(Self { cq, handler })
    }

    /// Creates a queue pair that completes on this completion queue.
    pub(super) fn pair(&self, host: &Host, depth: usize) -> Result<QueuePair> {
        let pair = host.domain.queue_pair(&self.cq).send_depth(depth).receive_depth(depth);
        Ok(pair.max_sges(1).create()?)
    }

    /// Waits for the next completion. Fails if the request failed.
    pub(super) fn next(&self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.cq.poll_one()? {
                return Ok(completion.success()?);
            }
            if !self.cq.arm(Arm::Next) {
                self.handler.wait(TIMEOUT)?;
            }
        }
    }
}
