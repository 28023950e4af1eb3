//! Tells of changes to the port and its GIDs, once somebody asked. A lane waits for the kernel's notices; then the table is
//! read anew, and compared with what was told last. So a change that is undone before anybody looks is not told.

use super::{GidTable, Standing};
use crate::lane::{Again, Attended};
use crate::set::lock;
use crate::sys::netlink::Netlink;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// What happened to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// It is active.
    Active,
    /// It is not: its interface is down, or lost its carrier.
    Error,
    /// GIDs came or went.
    Gids,
}

/// Who is told. It is called from a lane and must not wait.
pub trait PortWatcher: Send + Sync + fmt::Debug {
    /// Something happened to the port.
    fn port_changed(&self, change: PortChange);
}

/// Waits for changes.
#[derive(Debug)]
pub(crate) struct Monitor {
    netlink: Netlink,
    table: &'static GidTable,
    told: Mutex<Standing>,
    watcher: Arc<dyn PortWatcher>,
}

impl Monitor {
    /// Changes from now on are told.
    pub(crate) fn new(watcher: Arc<dyn PortWatcher>) -> io::Result<Self> {
        let table = GidTable::of_process();
        // Before the first look, so that no change falls between.
        let netlink = Netlink::for_changes()?;
        let told = Mutex::new(table.refresh()?);
        Ok(Self { netlink, table, told, watcher })
    }
}

impl Attended for Monitor {
    /// There are notices.
    fn look(&self) -> io::Result<Again> {
        if !self.netlink.take_notices()? {
            return Ok(Again::AtOnce);
        }
        let now = self.table.refresh()?;
        let before = std::mem::replace(&mut *lock(&self.told), now);
        for change in changes(before, now) {
            self.watcher.port_changed(change);
        }
        Ok(Again::AtOnce)
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
