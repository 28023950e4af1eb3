//! Reports changes to the port and its GIDs. A lane waits for notifications from the kernel; then the table is read
//! again, and compared with the state that was reported last. So a change that is undone before the lane reads the
//! table is not reported.

use super::table::{GidTable, PortState};
use crate::reactor::source::{EventSource, Rearm};
use crate::sys::netlink::Netlink;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// A change to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The port became active.
    Active,
    /// The port is not active any more: its interface is down, or lost its carrier.
    Error,
    /// GIDs were added or removed.
    Gids,
}

/// A receiver of changes to the port, for `Engine::watch_port`.
pub trait PortWatcher: Send + Sync + fmt::Debug {
    /// Receives a change to the port. Called on a lane's thread: an implementation must not block.
    fn on_port_change(&self, change: PortChange);
}

/// Reports changes to the port, on the lane that waits for its netlink socket.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Receives notifications from the kernel.
    netlink: Netlink,
    table: &'static GidTable,
    /// The state that was reported last.
    reported: Mutex<PortState>,
    watcher: Arc<dyn PortWatcher>,
}

impl Monitor {
    /// Creates a monitor that reports changes from now on, once it is added to a lane.
    pub(crate) fn new(watcher: Arc<dyn PortWatcher>) -> io::Result<Self> {
        let table = GidTable::of_process();
        // Opened before the table is read, so that no change in between is missed.
        let netlink = Netlink::for_changes()?;
        let reported = Mutex::new(table.refresh()?);
        Ok(Self { netlink, table, reported, watcher })
    }
}

impl EventSource for Monitor {
    /// Reads the table after a notification, and reports the changes since the last report.
    fn on_readable(&self) -> io::Result<Rearm> {
        if !self.netlink.take_notices()? {
            return Ok(Rearm::Now);
        }
        let now = self.table.refresh()?;
        let before = std::mem::replace(&mut *lock(&self.reported), now);
        for change in changes(before, now) {
            self.watcher.on_port_change(change);
        }
        Ok(Rearm::Now)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

/// Returns the differences between two states of the port.
fn changes(before: PortState, now: PortState) -> impl Iterator<Item = PortChange> {
    let state = match (before.active, now.active) {
        (false, true) => Some(PortChange::Active),
        (true, false) => Some(PortChange::Error),
        _ => None,
    };
    let gids = (before.version != now.version).then_some(PortChange::Gids);
    state.into_iter().chain(gids)
}
