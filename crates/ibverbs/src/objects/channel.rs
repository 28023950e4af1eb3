//! Completion channels: each has one descriptor for the events of any number of completion queues.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, destroy_object, publish};
use crate::support::wake::ChannelWake;
use ironwarp_engine::{ChannelSockets, CompletionQueue};
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

/// Result of [`Channel::take`].
#[derive(Debug)]
pub(crate) enum Taken {
    /// An event of this queue.
    Event(Arc<dyn EventTarget>),
    /// No event, and the descriptor is non-blocking.
    Nothing,
    /// No event. Wait for the next one at this descriptor, which is not that of the channel.
    Wait(RawFd),
}

/// A completion channel, which is a completion handler of the adapter.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    c: CCell<ibv_comp_channel>,
    handler: Arc<CompletionHandler>,
    wake: ChannelWake,
    /// The descriptor of the channel, which is readable while that of `wake` is, or while sockets are.
    sockets: Arc<ChannelSockets>,
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
        let sockets = ChannelSockets::new(&wake, handler.id())?;
        let c = ibv_comp_channel { context: context.c(), fd: sockets.fd(), refcnt: 0 };
        let (c, queues) = (CCell::new(c), Mutex::default());
        Ok(publish(Self { c, handler, wake, sockets, queues, _context: context }, Uses::default()))
    }

    /// Starts to deliver the events of a queue. Events name `target`.
    pub(crate) fn add(&self, queue: &CompletionQueue, target: Weak<dyn EventTarget>) {
        self.queues().insert(queue.cq().id(), target);
        queue.cq().set_handler(Some(Arc::clone(&self.handler)));
        queue.join_channel(&self.sockets);
    }

    /// Stops delivering events of a queue that is about to be destroyed, and discards those that are pending.
    pub(crate) fn remove(&self, queue: &CompletionQueue) {
        queue.leave_channel();
        queue.cq().set_handler(None);
        let id = queue.cq().id();
        self.handler.revoke(id);
        self.queues().remove(&id);
    }

    /// Takes the next event, or says how to wait for one. If there is none, serves the sockets first, which may have made
    /// the descriptor readable.
    pub(crate) fn take(&self) -> Taken {
        let pending = self.next();
        if !self.sockets.wakes_program() {
            if self.sockets.is_nonblocking() {
                self.sockets.use_sockets();
            } else if pending.is_none() {
                return Taken::Wait(self.wake.fd());
            }
        }
        if let Some(cq) = pending {
            return Taken::Event(cq);
        }
        let found = {
            let _taking = self.wake.begin_take();
            self.sockets.serve(|| self.next())
        };
        match found {
            Some(cq) => Taken::Event(cq),
            None if self.sockets.is_nonblocking() => Taken::Nothing,
            None => {
                self.sockets.leave_sockets_to_lanes();
                Taken::Wait(self.wake.fd())
            }
        }
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
