//! Event channels: one descriptor for the events of any number of ids. Before this: `watch.rs` and the calls of ids, which
//! push events; after: the program's thread, for which `event.rs` puts them into C's form.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::event::{Event, deliver};
use super::state::{Request, Shared};
use crate::abi::*;
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one, object};
use crate::object::{CObject, Uses, find, publish, put, take_back};
use crate::sync::lock;
use crate::wake::{ChannelWake, wait, wait_for_ever};
use ironwarp_rnic::event::Wake;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// An event channel.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CmChannel {
    c: UnsafeCell<rdma_event_channel>,
    queue: Arc<Queue>,
    /// The thread that took its last event; zero: nobody did yet.
    reader: AtomicI32,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for CmChannel {
    type C = rdma_event_channel;
}
// SAFETY: as above.
unsafe impl Sync for CmChannel {}
// SAFETY: as above.
unsafe impl Send for CmChannel {}

/// Events that wait. Ids hold it too: one that outlives its channel has nobody who listens.
#[derive(Debug)]
pub(super) struct Queue {
    events: Mutex<VecDeque<Event>>,
    wake: ChannelWake,
}

impl Queue {
    /// Appends an event. Whenever the lock is free, there are as many signals as events.
    pub(super) fn push(&self, event: Event) {
        let mut events = self.events();
        events.push_back(event);
        self.wake.signal();
    }

    /// Takes the oldest event. From then on it counts as delivered.
    fn next(&self) -> Option<Event> {
        let mut events = self.events();
        let event = events.pop_front()?;
        self.wake.consume();
        event.about.delivered();
        Some(event)
    }

    /// Takes back the events of an id.
    pub(super) fn take_back(&self, id: &Arc<Shared>) -> Vec<Event> {
        let mut events = self.events();
        let (its, others): (VecDeque<_>, _) =
            std::mem::take(&mut *events).into_iter().partition(|event| Arc::ptr_eq(&event.about, id));
        *events = others;
        for _ in &its {
            self.wake.consume();
        }
        its.into()
    }

    /// Drops requests of peers that are gone.
    pub(super) fn withdraw(&self, is_gone: impl Fn(&Request) -> bool) {
        let mut events = self.events();
        let gone = |event: &Event| event.request.as_ref().is_some_and(&is_gone);
        let (gone, others): (VecDeque<_>, _) = std::mem::take(&mut *events).into_iter().partition(gone);
        *events = others;
        for _ in &gone {
            self.wake.consume();
        }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        lock(&self.events)
    }
}

impl CmChannel {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let wake = ChannelWake::new()?;
        let c = UnsafeCell::new(rdma_event_channel { fd: wake.fd() });
        let queue = Arc::new(Queue { events: Mutex::default(), wake });
        let channel = publish(Self { c, queue, reader: AtomicI32::new(0) }, Uses::default());
        lock(&LEFT).retain(|(address, _)| *address != channel.c().addr());
        Ok(channel)
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    fn fd(&self) -> RawFd {
        self.queue.wake.fd()
    }
}

/// Channels that one thread destroyed and another used to read: where they were, and who that was. A program that ends as rping
/// does destroys its channel while its other thread takes events from it. Mostly that thread is in the call then, and stays
/// there as it would with the kernel's ([`wait`]). If it is on its way back to it, it stays there, too: an error would be
/// taken for a failure.
static LEFT: Mutex<Vec<(usize, i32)>> = Mutex::new(Vec::new());

pub(super) fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let gone = take_back::<CmChannel>(channel)?;
    let reader = gone.reader.load(Ordering::Relaxed);
    if reader != 0 && reader != this_thread() {
        lock(&LEFT).push((channel.addr(), reader));
    }
    Ok(())
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

fn was_left(channel: *mut rdma_event_channel) -> bool {
    lock(&LEFT).contains(&(channel.addr(), this_thread()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object!(CmChannel::new().map(|channel| channel.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Err(errno) = uncancelled(|| destroy(channel)) {
        errno.set();
    }
}

/// The next event of a channel. Blocks in here, where the program may cancel the thread: nothing with a destructor is
/// alive, here and in the callers, and the channel is looked up again afterwards.
pub(super) fn next_event(c: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        let fd = match uncancelled(|| find::<CmChannel>(c).map(|channel| channel.fd())) {
            Ok(fd) => fd,
            Err(_) if was_left(c) => return Err(wait_for_ever()),
            Err(errno) => return Err(errno),
        };
        wait(fd)?;
        if let Some(event) = uncancelled(|| find::<CmChannel>(c).ok().and_then(|channel| take(&channel))) {
            return Ok(event);
        }
    }
}

fn take(channel: &CmChannel) -> Option<*mut rdma_cm_event> {
    let event = deliver(channel.queue.next()?)?;
    channel.reader.store(this_thread(), Ordering::Relaxed);
    Some(event)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return minus_one!(Err(Errno::null("event")));
    }
    match next_event(channel) {
        Ok(next) => {
            // SAFETY: not NULL, and the caller's.
            unsafe { put(event, next) };
            0
        }
        Err(errno) => minus_one!(Err(errno)),
    }
}
