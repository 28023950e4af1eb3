//! Completion channels: each has one descriptor for the events of any number of completion queues.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, destroy_object, publish};
use crate::support::wake::{ChannelWake, WaitList};
use ironwarp_engine::{ChannelSockets, CompletionQueue};
use ironwarp_rnic::event::CompletionHandler;
use ironwarp_rnic::sync::lock;
use std::cell::Cell;
use std::collections::HashMap;
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
    /// No event. Wait until one of these descriptors is readable, and call [`end_wait`] afterwards.
    Wait(WaitList),
    /// No event, but something has arrived. Try again.
    Retry,
}

thread_local! {
    /// The channel at which this thread waits for an event. It is here and not on the stack, because nothing with a
    /// destructor may be there while the program can cancel the thread.
    static WAITING: Cell<Option<Arc<ChannelSockets>>> = const { Cell::new(None) };
}

/// Ends the wait of the calling thread, whose channel may be gone.
pub(crate) fn end_wait() {
    if let Some(sockets) = WAITING.take() {
        sockets.end_block();
    }
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
    context: Arc<Context>,
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
        let handler = handler.map_err(|too_many| Errno::NO_MEMORY.because(format_args!("{too_many}")))?;
        let sockets = ChannelSockets::new(&wake, handler.id())?;
        let c = ibv_comp_channel { context: context.c(), fd: sockets.fd(), refcnt: 0 };
        let (c, queues) = (CCell::new(c), Mutex::default());
        Ok(publish(Self { c, handler, wake, sockets, queues, context }, Uses::default()))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Starts to deliver the events of a queue. Events name `target`.
    pub(crate) fn add(&self, queue: &Arc<CompletionQueue>, target: Weak<dyn EventTarget>) {
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
                return self.begin_wait();
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
                self.begin_wait()
            }
        }
    }

    /// Registers the calling thread, which is about to wait for an event.
    fn begin_wait(&self) -> Taken {
        let mut list = WaitList::new(self.wake.fd());
        let may_wait = self.sockets.begin_block(|fd| list.add(fd));
        if !may_wait {
            return Taken::Retry;
        }
        WAITING.set(Some(Arc::clone(&self.sockets)));
        Taken::Wait(list)
    }

    /// Ends the wait of the calling thread, which serves the sockets, and takes the next event.
    pub(crate) fn end_wait_and_take(&self) -> Option<Arc<dyn EventTarget>> {
        let _taking = self.wake.begin_take();
        end_wait();
        self.next()
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
