//! The kernel's notifications of changes to interfaces and addresses, after which the GID tables are read again.
//!
//! The tables ask for notifications when they are read. In between, a lane of each adapter reads the socket as soon as
//! there is a notification: CRIU refuses to checkpoint a process with unread notifications (requirement X2).

use crate::reactor::source::{EventSource, Rearm};
use crate::sys::netlink::Netlink;
use ironwarp_rnic::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

/// A socket that receives notifications, and whether there was one.
#[derive(Debug)]
pub(super) struct Notifications {
    netlink: Netlink,
    /// Whether there was a notification since [`take`](Self::take) was last called. Locked while the socket is read, so
    /// that a notification is found either here or in the socket.
    received: Mutex<bool>,
}

impl Notifications {
    /// Opens the socket. The first [`take`](Self::take) returns true.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::for_changes()?, received: Mutex::new(true) })
    }

    /// Returns whether there was a notification since the last call.
    pub(super) fn take(&self) -> io::Result<bool> {
        let mut received = lock(&self.received);
        let new = self.netlink.take_notices()?;
        Ok(std::mem::take(&mut *received) || new)
    }

    /// Makes the next [`take`](Self::take) return true, because the caller failed to act on the last one.
    pub(super) fn put_back(&self) {
        *lock(&self.received) = true;
    }
}

impl EventSource for Notifications {
    fn on_readable(&self) -> io::Result<Rearm> {
        let mut received = lock(&self.received);
        *received |= self.netlink.take_notices()?;
        Ok(Rearm::Now)
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}
