//! Reports changes to the ports of a logical device and to their GIDs. A lane waits for notifications from the kernel; then the tables are read
//! again, and compared with the state that was reported last. So a change that is undone before the lane reads the
//! tables is not reported.

use super::LogicalDevice;
use super::admin::PortObserver;
use crate::gid::PortState;
use crate::reactor::source::{EventSource, Rearm};
use crate::sys::netlink::Netlink;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// A change to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The port became active.
    Active,
    /// The port is not active any more: its interface is down, or lost its carrier, or the port was taken down.
    Error,
    /// GIDs were added or removed.
    Gids,
}

/// A receiver of changes to the ports of a device, for `Engine::watch_port`.
pub trait PortWatcher: Send + Sync + fmt::Debug {
    /// Receives a change to the port with this number. Called on a lane's thread, or by a thread that takes a port down
    /// or up: an implementation must not block, nor change ports.
    fn on_port_change(&self, port: u8, change: PortChange);
}

/// Reports changes to the ports of a device, on the lane that waits for its netlink socket.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Receives notifications from the kernel.
    netlink: Netlink,
    device: Arc<LogicalDevice>,
    /// The states of the ports that were reported last.
    reported: Mutex<Vec<PortState>>,
    watcher: Arc<dyn PortWatcher>,
}

impl Monitor {
    /// Creates a monitor that reports changes from now on, once it is added to a lane.
    pub(crate) fn new(device: &Arc<LogicalDevice>, watcher: Arc<dyn PortWatcher>) -> io::Result<Self> {
        // Opened before the tables are read, so that no change in between is missed.
        let netlink = Netlink::for_changes()?;
        let reported = Mutex::new(device.port_states()?);
        Ok(Self { netlink, device: Arc::clone(device), reported, watcher })
    }

    /// Reports the changes since the last report.
    fn report(&self) -> io::Result<()> {
        // Locked until all changes are reported, so that two threads report them in order.
        let mut reported = lock(&self.reported);
        let now = self.device.port_states()?;
        let before = std::mem::replace(&mut *reported, now.clone());
        for (port, (before, now)) in (1..).zip(before.into_iter().zip(now)) {
            for change in changes(before, now) {
                self.watcher.on_port_change(port, change);
            }
        }
        Ok(())
    }
}

impl PortObserver for Monitor {
    fn on_port_state(self: Arc<Self>) {
        if let Err(error) = self.report() {
            tracing::error!(%error, "failed to report a change of a port");
        }
    }
}

impl EventSource for Monitor {
    /// Reads the tables after a notification, and reports the changes since the last report.
    fn on_readable(&self) -> io::Result<Rearm> {
        if !self.netlink.take_notices()? {
            return Ok(Rearm::Now);
        }
        self.report()?;
        Ok(Rearm::Now)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

/// Returns the differences between two states of a port.
fn changes(before: PortState, now: PortState) -> impl Iterator<Item = PortChange> {
    let state = match (before.active, now.active) {
        (false, true) => Some(PortChange::Active),
        (true, false) => Some(PortChange::Error),
        _ => None,
    };
    let gids = (before.version != now.version).then_some(PortChange::Gids);
    state.into_iter().chain(gids)
}
