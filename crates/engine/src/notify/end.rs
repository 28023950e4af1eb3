//! The end of an adapter, as threads see it that wait for its events.

use crate::sys::poller::EventFd;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes all threads that wait for events of an adapter when it was shut down (requirement N11): there will be none.
#[derive(Debug)]
pub(crate) struct EndSignal {
    /// Readable from the end on. Apart from the descriptors of events, which stay readable exactly while there is one.
    fd: EventFd,
    has_ended: AtomicBool,
}

impl EndSignal {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { fd: EventFd::counter()?, has_ended: AtomicBool::new(false) })
    }

    /// Wakes the threads that wait, and those that will.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.fd.signal();
    }

    /// Returns whether the adapter was shut down.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

impl AsFd for EndSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
