//! Completion channels: one descriptor for the events of any number of completion queues. Before this: `cq.rs` armed a
//! queue, and a completion came; after: the program's thread, which acknowledges the event.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::cancel::uncancelled;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::{Errno, destroyed, minus_one, object};
use crate::object::{CObject, Uses, find, publish, put, take_back};
use crate::sync::lock;
use crate::wake::{ChannelWake, wait};
use ironwarp_rnic::event::CompletionHandler;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A completion channel: a completion handler of the adapter.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    handler: Arc<CompletionHandler>,
    wake: ChannelWake,
    /// The completion queues that it serves, by their numbers in the adapter.
    queues: Mutex<HashMap<u32, Weak<Cq>>>,
    /// Its C structure leads there.
    _context: Arc<Context>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Channel {
    type C = ibv_comp_channel;
}
// SAFETY: as above.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    fn new(context: Arc<Context>) -> Result<Arc<Self>, Errno> {
        let wake = ChannelWake::new()?;
        let handler = context.engine().device().create_handler(Box::new(wake.clone()));
        let handler = handler.map_err(|_| Errno::NO_MEMORY)?;
        let c = ibv_comp_channel { context: context.c(), fd: wake.fd(), refcnt: 0 };
        let (c, queues) = (UnsafeCell::new(c), Mutex::default());
        Ok(publish(Self { c, handler, wake, queues, _context: context }, Uses::default()))
    }

    /// From now on it tells of this queue.
    pub(crate) fn add(&self, cq: &Arc<Cq>) {
        self.queues().insert(cq.inner().cq().id(), Arc::downgrade(cq));
        cq.inner().cq().set_handler(Some(Arc::clone(&self.handler)));
    }

    /// The queue is about to be destroyed: its events are taken back.
    pub(crate) fn remove(&self, cq: &Cq) {
        cq.inner().cq().set_handler(None);
        let id = cq.inner().cq().id();
        self.handler.revoke(id);
        self.queues().remove(&id);
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u32, Weak<Cq>>> {
        lock(&self.queues)
    }

    /// The next event: which queue has completions. It counts as delivered.
    fn next(&self) -> Option<Arc<Cq>> {
        loop {
            let event = self.handler.next()?;
            let queues = self.queues();
            if let Some(cq) = queues.get(&event.cq).and_then(Weak::upgrade) {
                cq.event_delivered();
                return Some(cq);
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object!(find::<Context>(context).and_then(Channel::new).map(|channel| channel.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    destroyed!(destroy(channel))
}

pub(crate) fn destroy(c: *mut ibv_comp_channel) -> Result<(), Errno> {
    take_back::<Channel>(c).map(|channel| channel.handler.shut_down())
}

/// Blocks in here, where the program may cancel the thread: nothing with a destructor is alive, and the channel is looked up
/// again afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let Ok(fd) = uncancelled(|| find::<Channel>(channel).map(|channel| channel.wake.fd())) else {
            return minus_one!(Err(Errno::INVALID));
        };
        if let Err(errno) = wait(fd) {
            return minus_one!(Err(errno));
        }
        let found = uncancelled(|| find::<Channel>(channel).ok()?.next());
        let Some(found) = found else { continue };
        let c: *mut ibv_cq = found.c().cast();
        // SAFETY: NULL or the caller's; the queue is alive as long as its event is not acknowledged.
        unsafe {
            put(cq, c);
            put(cq_context, (*c).cq_context);
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    if let Ok(cq) = find::<Cq>(cq.cast()) {
        cq.events_acknowledged(events);
    }
}
