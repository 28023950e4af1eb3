//! Reports changes to the port and its GIDs. A lane waits for the kernel's notices; then the table is read again, and compared with what was
//! reported last. So a change that is undone before the lane looks is not reported.

use super::table::{GidTable, Standing};
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

/// Receives changes to the port. It is called on a lane's thread and must not block.
pub trait PortWatcher: Send + Sync + fmt::Debug {
    /// The port has changed.
    fn on_port_change(&self, change: PortChange);
}

/// Waits for changes to the port.
#[derive(Debug)]
pub(crate) struct Monitor {
    netlink: Netlink,
    table: &'static GidTable,
    reported: Mutex<Standing>,
    watcher: Arc<dyn PortWatcher>,
}

impl Monitor {
    /// Reports changes from now on.
    pub(crate) fn new(watcher: Arc<dyn PortWatcher>) -> io::Result<Self> {
        let table = GidTable::of_process();
        // Before the table is read, so that no change is missed.
        let netlink = Netlink::for_changes()?;
        let reported = Mutex::new(table.refresh()?);
        Ok(Self { netlink, table, reported, watcher })
    }
}

impl EventSource for Monitor {
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

fn changes(before: Standing, now: Standing) -> impl Iterator<Item = PortChange> {
    let state = match (before.active, now.active) {
        (false, true) => Some(PortChange::Active),
        (true, false) => Some(PortChange::Error),
        _ => None,
    };
    let gids = (before.version != now.version).then_some(PortChange::Gids);
    state.into_iter().chain(gids)
}
