//! Completion channels: each has one descriptor for the events of any number of completion queues.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, destroy_object, publish};
use crate::support::wake::ChannelWake;
use ironwarp_engine::CompletionQueue;
use ironwarp_rnic::event::CompletionHandler;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A completion queue whose events a channel delivers.
pub(crate) trait EventTarget: Send + Sync + std::fmt::Debug {
    /// Returns the C structure of the queue.
    fn cq(&self) -> *mut ibv_cq;

    /// Counts an event that was delivered and that the program has to acknowledge.
    fn record_delivery(&self);
}

/// A completion channel, which is a completion handler of the adapter.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    c: CCell<ibv_comp_channel>,
    handler: Arc<CompletionHandler>,
    wake: ChannelWake,
    /// The completion queues whose events the channel delivers, by their numbers in the adapter.
    queues: Mutex<HashMap<u32, Weak<dyn EventTarget>>>,
    /// Kept alive because the C structure points to it.
    _context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Channel {
    type C = ibv_comp_channel;
}

impl Channel {
    /// Creates a channel without completion queues.
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Self>, Errno> {
        let wake = ChannelWake::new()?;
        let handler = context.engine().device().create_handler(Box::new(wake.clone()));
        let handler = handler.map_err(|_| Errno::NO_MEMORY)?;
        let c = ibv_comp_channel { context: context.c(), fd: wake.fd(), refcnt: 0 };
        let (c, queues) = (CCell::new(c), Mutex::default());
        Ok(publish(Self { c, handler, wake, queues, _context: context }, Uses::default()))
    }

    /// Starts to deliver the events of a queue. Events name `target`.
    pub(crate) fn add(&self, queue: &CompletionQueue, target: Weak<dyn EventTarget>) {
        self.queues().insert(queue.cq().id(), target);
        queue.cq().set_handler(Some(Arc::clone(&self.handler)));
    }

    /// Stops delivering events of a queue that is about to be destroyed, and discards those that are pending.
    pub(crate) fn remove(&self, queue: &CompletionQueue) {
        queue.cq().set_handler(None);
        let id = queue.cq().id();
        self.handler.revoke(id);
        self.queues().remove(&id);
    }

    /// Returns the descriptor that the program waits on.
    pub(crate) fn fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Locks the map of completion queues.
    fn queues(&self) -> MutexGuard<'_, HashMap<u32, Weak<dyn EventTarget>>> {
        lock(&self.queues)
    }

    /// Takes the next event and returns its queue, or `None` if there is no event. The event counts as delivered.
    pub(crate) fn next(&self) -> Option<Arc<dyn EventTarget>> {
        loop {
            let event = self.handler.try_next()?;
            let queues = self.queues();
            if let Some(cq) = queues.get(&event.cq).and_then(Weak::upgrade) {
                cq.record_delivery();
                return Some(cq);
            }
        }
    }
}

/// Destroys a channel. Fails with EBUSY if completion queues use it.
pub(crate) fn destroy(c: *mut ibv_comp_channel) -> Result<(), Errno> {
    destroy_object::<Channel>(c).map(|channel| channel.handler.shut_down())
}
