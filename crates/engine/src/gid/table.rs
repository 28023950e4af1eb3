//! GID tables: a GID for every IPv4 and IPv6 address of every interface that is up, or for those that belong to one port
//! of a logical device.
//!
//! The index of a GID never changes, because programs exchange and keep it. If an address disappears, its index stays
//! empty until the address comes back. New addresses are appended. So the process has one table of each scope for all
//! its adapters.

use super::notifications::Notifications;
use super::parse::{Address, Interface, NetworkState};
use super::scope::Scope;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::sys::fork::{self, ProcessLock, WhileForking};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::sync::lock;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

#[cfg(test)]
mod tests;

/// Maximum number of indices, as with RoCE adapters. Since indices are not reused, new addresses have none once so many
/// were seen.
pub const MAX_GIDS: usize = 256;

/// An entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Index in the table.
    pub index: usize,
    /// The GID.
    pub gid: Gid,
    /// Name of the interface that has the address.
    pub interface: String,
    /// The kernel's index of the interface, which is the scope of a link-local address.
    pub interface_index: u32,
    /// MTU of the interface.
    pub mtu: u32,
}

/// A GID table of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidTable {
    /// Index in [`Tables::states`].
    at: usize,
}

/// The tables of this process.
#[derive(Debug)]
struct Tables {
    /// Notifications of changes, so that the kernel is asked only after one. With them the ID of the process that opened
    /// the socket: after a fork, parent and child would take each other's notifications. `None` until a table is first
    /// read.
    notifications: Option<(u32, Arc<Notifications>)>,
    /// The lanes that read the socket, with the ID of their process. A forked child has no lane of its parent.
    lanes: Vec<(u32, Weak<LaneHandle>)>,
    /// The state of the host when it was last read.
    host: NetworkState,
    /// One state for each scope. They are never removed.
    states: Vec<State>,
}

/// The state of a table.
#[derive(Debug, Default)]
struct State {
    /// The addresses that belong to the table.
    scope: Scope,
    /// The GIDs by index.
    slots: Vec<Slot>,
    /// Index of the GID whose interface the port represents; `None` as long as no interface with a GID was up and
    /// running.
    port_gid: Option<usize>,
    /// Whether that interface is up and running.
    active: bool,
    /// Incremented when GIDs are added or removed.
    version: u64,
}

/// An index of the table.
#[derive(Clone, Debug)]
struct Slot {
    /// The GID; if it is not present, as it was last.
    entry: GidEntry,
    /// Whether the host has the address now.
    present: bool,
}

/// The state of the port, which a monitor compares with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    /// Whether the port is active.
    pub(crate) active: bool,
    /// Changes when GIDs are added or removed.
    pub(crate) version: u64,
}

/// The tables of this process.
static TABLES: Mutex<Tables> = Mutex::new(Tables {
    notifications: None,
    lanes: Vec::new(),
    host: NetworkState { interfaces: Vec::new(), addresses: Vec::new(), routes: Vec::new() },
    states: Vec::new(),
});

/// Locks the tables while the process forks. Otherwise a child, which has only the forking thread, could find them
/// locked forever.
static FORK_LOCK: ProcessLock = ProcessLock {
    lock: || HELD.with(|held| held.set(lock(&TABLES))),
    unlock: || drop(HELD.with(WhileForking::take)),
};

thread_local! {
    /// The locked tables, in a thread that forks.
    static HELD: WhileForking<MutexGuard<'static, Tables>> = const { WhileForking::new() };
}

impl GidTable {
    /// Returns the table of all addresses of the host.
    pub fn of_process() -> Self {
        Self::of(&Scope::Host)
    }

    /// Returns the table of a scope. The first call creates it.
    pub(crate) fn of(scope: &Scope) -> Self {
        fork::hold_during_forks(&FORK_LOCK);
        let mut tables = lock(&TABLES);
        let at = tables.states.iter().position(|state| state.scope == *scope).unwrap_or_else(|| {
            let mut state = State { scope: scope.clone(), ..State::default() };
            state.update(&tables.host);
            tables.states.push(state);
            tables.states.len() - 1
        });
        Self { at }
    }

    /// Has a lane read notifications of changes as soon as there are any, from now on, or from when a table is first read.
    pub(crate) fn read_notifications_on(lane: &Arc<LaneHandle>) {
        fork::hold_during_forks(&FORK_LOCK);
        let (mut tables, process) = (lock(&TABLES), std::process::id());
        tables.lanes.retain(|(_, known)| known.strong_count() > 0);
        tables.lanes.push((process, Arc::downgrade(lane)));
        if let Some((_, notifications)) = tables.notifications.as_ref().filter(|(owner, _)| *owner == process)
        {
            lane.submit(Command::AddSource(Arc::<Notifications>::clone(notifications)));
        }
    }

    /// Returns all GIDs, in order of their indices, without empty indices.
    pub fn entries(self) -> io::Result<Vec<GidEntry>> {
        self.read(|state| state.present().cloned().collect())
    }

    /// Returns the GID with this index; `None` if the index is empty.
    pub fn get(self, index: usize) -> io::Result<Option<GidEntry>> {
        self.read(|state| state.slots.get(index).filter(|slot| slot.present).map(|slot| slot.entry.clone()))
    }

    /// Returns the first entry with this GID.
    pub fn find(self, gid: Gid) -> io::Result<Option<GidEntry>> {
        self.read(|state| state.present().find(|entry| entry.gid == gid).cloned())
    }

    /// Returns whether the port is active. The port represents an interface that was up and running when the process
    /// first read the table: that of the first GID with such an interface, which is loopback if there was no other.
    pub fn port_is_active(self) -> io::Result<bool> {
        self.read(|state| state.port_state().active)
    }

    /// Updates the table from the kernel, also without a notification, and returns the state of the port.
    pub(crate) fn refresh(self) -> io::Result<PortState> {
        let found = NetworkState::read()?;
        let mut tables = lock(&TABLES);
        tables.update(found);
        Ok(tables.states[self.at].port_state())
    }

    /// Calls `query` with the table, after updating the table from the kernel if there was a notification.
    fn read<T>(self, query: impl FnOnce(&State) -> T) -> io::Result<T> {
        let mut tables = lock(&TABLES);
        let notifications = tables.notifications()?;
        if notifications.take()? {
            let found = NetworkState::read().inspect_err(|_| notifications.put_back())?;
            tables.update(found);
        }
        Ok(query(&tables.states[self.at]))
    }
}

impl Tables {
    /// Returns the notifications of this process. The first call opens the socket: before the state of the host is read,
    /// so that no change in between is missed.
    fn notifications(&mut self) -> io::Result<Arc<Notifications>> {
        let process = std::process::id();
        if let Some((_, notifications)) = self.notifications.as_ref().filter(|(owner, _)| *owner == process) {
            return Ok(Arc::clone(notifications));
        }
        let opened = Arc::new(Notifications::open()?);
        for lane in
            self.lanes.iter().filter(|(owner, _)| *owner == process).filter_map(|(_, lane)| lane.upgrade())
        {
            lane.submit(Command::AddSource(Arc::<Notifications>::clone(&opened)));
        }
        self.notifications = Some((process, Arc::clone(&opened)));
        Ok(opened)
    }

    /// Updates all tables to the current state of the host.
    fn update(&mut self, host: NetworkState) {
        self.states.iter_mut().for_each(|state| state.update(&host));
        self.host = host;
    }
}

impl GidEntry {
    /// Creates an entry.
    #[doc(hidden)]
    pub fn new(index: usize, gid: Gid, interface: &str, interface_index: u32, mtu: u32) -> Self {
        Self { index, gid, interface: interface.to_owned(), interface_index, mtu }
    }

    /// Returns the address with this port to bind sockets of this GID to; `None` if the GID has no IP address.
    ///
    /// ```
    /// # use ironwarp_engine::gid::GidTable;
    /// for entry in GidTable::of_process().entries()? {
    ///     println!("{}: {:?}", entry.index, entry.socket_addr(7471));
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn socket_addr(&self, port: u16) -> Option<SocketAddr> {
        Some(socket_addr(self.gid.ip()?, port, self.interface_index))
    }
}

/// Returns a socket address. Link-local addresses get the index of the interface as scope.
pub(crate) fn socket_addr(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, interface).into(),
        ip => SocketAddr::new(ip, port),
    }
}

impl State {
    /// Returns the GIDs that the host has now, in order of their indices.
    fn present(&self) -> impl Iterator<Item = &GidEntry> {
        self.slots.iter().filter(|slot| slot.present).map(|slot| &slot.entry)
    }

    fn port_state(&self) -> PortState {
        PortState { active: self.active, version: self.version }
    }

    /// Updates the table to the current state of the host. Addresses that were in the table before get their index
    /// again.
    fn update(&mut self, host: &NetworkState) {
        let found = &self.scope.restrict(host);
        let before: Vec<bool> = self.slots.iter().map(|slot| slot.present).collect();
        self.slots.iter_mut().for_each(|slot| slot.present = false);
        // First, addresses that stayed on their interface. Only then addresses on any interface, so that none of these
        // takes the index of an equal link-local address that stayed.
        let mut moved_or_new = Vec::new();
        for entry in current_gids(found) {
            if !self.reuse_slot(&entry, SlotMatch::SameInterface) {
                moved_or_new.push(entry);
            }
        }
        for entry in moved_or_new {
            if !self.reuse_slot(&entry, SlotMatch::AnyInterface) {
                self.append(entry);
            }
        }
        if !self.slots.iter().map(|slot| slot.present).eq(before) {
            self.version += 1;
        }
        self.update_port(found);
    }

    /// Gives a GID the index that it had before. Returns false if there is no such index.
    fn reuse_slot(&mut self, new: &GidEntry, by: SlotMatch) -> bool {
        let matches = |slot: &&mut Slot| {
            !slot.present
                && slot.entry.gid == new.gid
                && (by == SlotMatch::AnyInterface || slot.entry.interface == new.interface)
        };
        let Some(slot) = self.slots.iter_mut().find(matches) else { return false };
        slot.entry = GidEntry { index: slot.entry.index, ..new.clone() };
        slot.present = true;
        true
    }

    /// Gives a new GID the next index. If the table is full, logs that the GID has none.
    fn append(&mut self, entry: GidEntry) {
        let index = self.slots.len();
        if index < MAX_GIDS {
            self.slots.push(Slot { entry: GidEntry { index, ..entry }, present: true });
        } else {
            tracing::warn!(gid = %entry.gid, "GID table full: an address has no index");
        }
    }

    /// Chooses the interface that the port represents, if none was chosen before, and updates whether the port is
    /// active.
    fn update_port(&mut self, found: &NetworkState) {
        let is_active = |entry: &GidEntry| {
            found.interfaces.iter().any(|one| one.name == entry.interface && one.up && one.running)
        };
        if self.port_gid.is_none() {
            let first = self.present().find(|entry| is_active(entry)).map(|entry| entry.index);
            self.port_gid = first;
        }
        self.active = self.port_gid.is_some_and(|index| is_active(&self.slots[index].entry));
    }
}

/// How [`State::reuse_slot`] recognises the earlier index of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotMatch {
    /// The GID was on an interface of the same name.
    SameInterface,
    /// The GID was on any interface.
    AnyInterface,
}

/// Returns the current GIDs in the order in which a new table numbers them. The index of each entry is zero.
///
/// The preferred source address of the default route comes first. Then come the addresses of the default route's
/// interface, then those of other interfaces, of interfaces without a carrier, and of loopback. Of one interface, IPv4
/// comes before IPv6, and link-local addresses come last.
fn current_gids(found: &NetworkState) -> Vec<GidEntry> {
    let route = found.default_route();
    let rank = |interface: &Interface, ip: IpAddr| {
        let has_route = route.is_some_and(|route| route.interface == interface.index);
        let preferred = route.is_some_and(|route| route.source == Some(ip));
        let kind = match (has_route, interface.loopback) {
            (true, _) => 0_u8,
            (false, false) => 1 + u8::from(!interface.running),
            (false, true) => 3,
        };
        // `preferred` comes first, because some hosts have the preferred address on another interface than the route.
        (!preferred, kind, interface.index, ip.is_ipv6(), Gid::from(ip).is_link_local())
    };
    let interface_of = |address: &Address| {
        found.interfaces.iter().find(|one| one.index == address.interface).filter(|one| one.up)
    };
    let mut list: Vec<(&Interface, IpAddr)> = found
        .addresses
        .iter()
        .filter_map(|address| interface_of(address).map(|interface| (interface, address.ip)))
        .collect();
    // The sort is stable: addresses of equal rank stay in the kernel's order, which has the primary address first.
    list.sort_by_key(|&(interface, ip)| rank(interface, ip));
    let mut entries: Vec<GidEntry> = Vec::with_capacity(list.len());
    for (interface, ip) in list {
        let entry = GidEntry::new(0, ip.into(), &interface.name, interface.index, interface.mtu);
        // An interface may have the same address twice, with prefixes of different lengths.
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries
}
