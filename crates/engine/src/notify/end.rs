//! The end of an adapter, as threads see it that wait for its events.

use crate::sys::poller::EventFd;
use ironwarp_rnic::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Wakes all threads that wait for events of an adapter when it was shut down (requirement N11): there will be none.
#[derive(Debug, Default)]
pub(crate) struct EndSignal {
    has_ended: AtomicBool,
    /// Readable from the end on. Apart from the descriptors of events, which stay readable exactly while there is one.
    /// Created for the first thread that waits: many programs have none.
    fd: Mutex<Option<Arc<EventFd>>>,
}

impl EndSignal {
    /// Wakes the threads that wait, and those that will.
    pub(crate) fn end(&self) {
        let fd = lock(&self.fd);
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(fd) = &*fd {
            fd.signal();
        }
    }

    /// Returns whether the adapter was shut down.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Returns a descriptor that becomes readable at the end, for a thread that then checks whether the adapter
    /// [has ended](Self::has_ended) before it waits. `None` if the process has no descriptors left: then the thread
    /// waits for its events only.
    pub(crate) fn descriptor(&self) -> Option<Arc<EventFd>> {
        let mut fd = lock(&self.fd);
        if fd.is_none() {
            *fd = EventFd::counter().ok().map(Arc::new);
        }
        fd.clone()
    }
}
