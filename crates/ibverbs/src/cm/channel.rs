//! Event channels (`rdma_event_channel`). A channel has one queue, with one descriptor, for the events of any
//! number of ids.
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
    /// Number of the thread (gettid) that took the last event, or zero if none was taken.
    reader: AtomicI32,
}

// SAFETY: the C structure is the first field of a `repr(C)` structure. It is not written after `publish`.
unsafe impl CObject for CmChannel {
    type C = rdma_event_channel;
}

impl CmChannel {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let queue = EventQueue::new()?;
        let c = CCell::new(rdma_event_channel { fd: queue.fd() });
        let channel = publish(Self { c, queue, reader: AtomicI32::new(0) }, Uses::default());
        // A new channel may have the address of a destroyed one.
        lock(&ABANDONED_READERS).retain(|(address, _)| *address != channel.c().addr());
        Ok(channel)
    }

    pub(super) fn queue(&self) -> &Arc<EventQueue<Event>> {
        &self.queue
    }

    pub(super) fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    /// Takes the oldest event. Its id then waits for the acknowledgement before it is destroyed.
    pub(super) fn take_next(&self) -> Option<Event> {
        self.queue.next(|event| event.about.count_delivery())
    }

    /// Records that this thread took the last event.
    pub(super) fn record_reader(&self) {
        self.reader.store(this_thread(), Ordering::Relaxed);
    }
}

/// Addresses of channels that were destroyed by another thread than the one that read their events, with the
/// number of that reader.
///
/// Programs such as rping destroy the channel at their end while another thread reads events from it. Usually
/// the reader is waiting in `rdma_get_cm_event`, and stays there as it would with the kernel's channels
/// (`wake::wait`). If the reader is between two calls, its next call waits forever as well: an error would
/// make the program report a failure.
static ABANDONED_READERS: Mutex<Vec<(usize, i32)>> = Mutex::new(Vec::new());

/// Destroys a channel. If another thread reads its events, remembers that reader in [`ABANDONED_READERS`].
pub(super) fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let destroyed = destroy_object::<CmChannel>(channel)?;
    let reader = destroyed.reader.load(Ordering::Relaxed);
    if reader != 0 && reader != this_thread() {
        lock(&ABANDONED_READERS).push((channel.addr(), reader));
    }
    Ok(())
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Whether this thread read the events of the channel that had this address, until another thread destroyed it.
pub(super) fn is_abandoned_reader(channel: *mut rdma_event_channel) -> bool {
    lock(&ABANDONED_READERS).contains(&(channel.addr(), this_thread()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object!(CmChannel::new().map(|channel| channel.c()))
}

/// Destroys a channel. Sets errno on failure, because the function returns nothing.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Err(errno) = without_cancellation(|| destroy(channel)) {
        errno.set();
    }
}
