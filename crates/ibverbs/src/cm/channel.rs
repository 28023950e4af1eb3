//! Event channels: one descriptor for the events of any number of ids.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::queue::EventQueue;
use super::state::Event;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, object};
use crate::support::object::{CCell, CObject, Uses, destroy_object, publish};
use ironwarp_rnic::sync::lock;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

/// An event channel.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CmChannel {
    c: CCell<rdma_event_channel>,
    queue: Arc<EventQueue<Event>>,
    /// The thread that took the last event, or zero.
    reader: AtomicI32,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for CmChannel {
    type C = rdma_event_channel;
}

impl CmChannel {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let queue = Arc::new(EventQueue::new()?);
        let c = CCell::new(rdma_event_channel { fd: queue.fd() });
        let channel = publish(Self { c, queue, reader: AtomicI32::new(0) }, Uses::default());
        lock(&LEFT).retain(|(address, _)| *address != channel.c().addr());
        Ok(channel)
    }

    pub(super) fn queue(&self) -> &Arc<EventQueue<Event>> {
        &self.queue
    }

    pub(super) fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    /// Takes the oldest event, which then counts as delivered.
    pub(super) fn next(&self) -> Option<Event> {
        self.queue.next(|event| event.about.delivered())
    }

    /// Records that this thread took the last event.
    pub(super) fn note_reader(&self) {
        self.reader.store(this_thread(), Ordering::Relaxed);
    }
}

/// Addresses of destroyed channels, with the thread that used to read them, if another thread destroyed them.
/// A program that ends as rping does destroys the channel while another thread reads events from it. Usually
/// that thread is waiting in the call, and stays there as it would with the kernel's channels (`wake::wait`).
/// If it is about to call again, it waits forever as well, because the program would take an error for a
/// failure.
static LEFT: Mutex<Vec<(usize, i32)>> = Mutex::new(Vec::new());

pub(super) fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let gone = destroy_object::<CmChannel>(channel)?;
    let reader = gone.reader.load(Ordering::Relaxed);
    if reader != 0 && reader != this_thread() {
        lock(&LEFT).push((channel.addr(), reader));
    }
    Ok(())
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

pub(super) fn was_left(channel: *mut rdma_event_channel) -> bool {
    lock(&LEFT).contains(&(channel.addr(), this_thread()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object!(CmChannel::new().map(|channel| channel.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Err(errno) = without_cancellation(|| destroy(channel)) {
        errno.set();
    }
}
