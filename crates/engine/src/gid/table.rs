//! The GIDs of this host: one for every IPv4 and IPv6 address of every interface that is up.
//!
//! Indices never change, because programs exchange and keep them: an address that goes away leaves its index empty, and gets it
//! again when it comes back; new addresses are appended. So there is one table for the process, whatever adapters it has.

use super::parse::{Address, Interface, NetworkState};
use crate::sys::fork::{self, ProcessLock};
use crate::sys::netlink::Netlink;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::sync::lock;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
mod tests;

/// Maximum number of indices, as with RoCE adapters. A host whose addresses keep changing uses them all up.
pub const MAX_GIDS: usize = 256;

/// A GID of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index.
    pub index: usize,
    /// The GID.
    pub gid: Gid,
    /// Name of the interface that has the address.
    pub interface: String,
    /// Index of the interface, which is the scope of a link-local address.
    pub interface_index: u32,
    /// MTU of the interface.
    pub mtu: u32,
}

/// The GIDs of this host.
#[derive(Debug, Default)]
pub struct GidTable {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Reports changes, so that the kernel is asked only after one. It belongs to this process: after a fork, two processes would take each
    /// other's notices.
    changes: Option<(u32, Netlink)>,
    slots: Vec<Slot>,
    /// The index whose interface the port represents.
    principal: Option<usize>,
    /// That interface is up and running.
    active: bool,
    /// Incremented with every change of a GID.
    version: u64,
}

/// An index.
#[derive(Clone, Debug)]
struct Slot {
    entry: GidEntry,
    present: bool,
}

/// What a monitor compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) active: bool,
    pub(crate) version: u64,
}

static TABLE: GidTable = GidTable {
    state: Mutex::new(State { changes: None, slots: Vec::new(), principal: None, active: false, version: 0 }),
};

/// Keeps the table unlocked in forked children.
static FORK_LOCK: ProcessLock =
    ProcessLock { lock: || HELD.set(Some(lock(&TABLE.state))), unlock: || drop(HELD.take()) };

thread_local! {
    /// The lock of the table, in a thread that forks.
    static HELD: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

impl GidTable {
    /// Returns the table of this process.
    pub fn of_process() -> &'static Self {
        fork::hold_during_forks(&FORK_LOCK);
        &TABLE
    }

    /// Returns all GIDs, in order of their indices, without empty indices.
    pub fn entries(&self) -> io::Result<Vec<GidEntry>> {
        self.read(|state| state.present().cloned().collect())
    }

    /// Returns the GID with this index; `None` if the index is empty.
    pub fn get(&self, index: usize) -> io::Result<Option<GidEntry>> {
        self.read(|state| state.slots.get(index).filter(|slot| slot.present).map(|slot| slot.entry.clone()))
    }

    /// Returns the first entry with this GID.
    pub fn find(&self, gid: Gid) -> io::Result<Option<GidEntry>> {
        self.read(|state| state.present().find(|entry| entry.gid == gid).cloned())
    }

    /// Returns whether the port is active. It represents the interface of the first GID that was up and running when the process first read the
    /// table: loopback, if there was no other.
    pub fn port_is_active(&self) -> io::Result<bool> {
        self.read(|state| state.standing().active)
    }

    /// Asks the kernel, whether or not there was a notice.
    pub(crate) fn refresh(&self) -> io::Result<Standing> {
        let found = NetworkState::read()?;
        let mut state = lock(&self.state);
        state.update(&found);
        Ok(state.standing())
    }

    /// Reads the table, after asking the kernel if anything changed.
    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> io::Result<T> {
        let mut state = lock(&self.state);
        if state.is_stale()? {
            let found = NetworkState::read()?;
            state.update(&found);
        }
        Ok(look(&state))
    }
}

impl GidEntry {
    /// Returns the address to bind sockets of this GID to, with this port.
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

/// The address of a socket: link-local addresses need the interface.
pub(crate) fn socket_addr(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, interface).into(),
        ip => SocketAddr::new(ip, port),
    }
}

impl State {
    fn present(&self) -> impl Iterator<Item = &GidEntry> {
        self.slots.iter().filter(|slot| slot.present).map(|slot| &slot.entry)
    }

    fn standing(&self) -> Standing {
        Standing { active: self.active, version: self.version }
    }

    /// Whether the kernel has to be asked.
    fn is_stale(&mut self) -> io::Result<bool> {
        let process = std::process::id();
        match &self.changes {
            Some((owner, changes)) if *owner == process => changes.take_notices(),
            _ => {
                // Before the first question, so that no change is missed.
                self.changes = Some((process, Netlink::for_changes()?));
                Ok(true)
            }
        }
    }

    fn update(&mut self, found: &NetworkState) {
        let before: Vec<bool> = self.slots.iter().map(|slot| slot.present).collect();
        self.slots.iter_mut().for_each(|slot| slot.present = false);
        let mut left = Vec::new();
        for wanted in wanted(found) {
            if !self.take_slot(&wanted, true) {
                left.push(wanted);
            }
        }
        for wanted in left {
            if !self.take_slot(&wanted, false) {
                self.append(wanted);
            }
        }
        if !self.slots.iter().map(|slot| slot.present).eq(before) {
            self.version += 1;
        }
        self.follow_principal(found);
    }

    /// Gives an address the index that it had: on the same interface, or on any.
    fn take_slot(&mut self, wanted: &GidEntry, same_interface: bool) -> bool {
        let its_own = |slot: &&mut Slot| {
            !slot.present
                && slot.entry.gid == wanted.gid
                && (!same_interface || slot.entry.interface == wanted.interface)
        };
        let Some(slot) = self.slots.iter_mut().find(its_own) else { return false };
        slot.entry = GidEntry { index: slot.entry.index, ..wanted.clone() };
        slot.present = true;
        true
    }

    fn append(&mut self, entry: GidEntry) {
        let index = self.slots.len();
        if index < MAX_GIDS {
            self.slots.push(Slot { entry: GidEntry { index, ..entry }, present: true });
        } else {
            tracing::warn!(gid = %entry.gid, "GID table full: an address has no index");
        }
    }

    fn follow_principal(&mut self, found: &NetworkState) {
        let is_active = |entry: &GidEntry| {
            found.interfaces.iter().any(|one| one.name == entry.interface && one.up && one.running)
        };
        if self.principal.is_none() {
            let first = self.present().find(|entry| is_active(entry)).map(|entry| entry.index);
            self.principal = first;
        }
        self.active = self.principal.is_some_and(|index| is_active(&self.slots[index].entry));
    }
}

/// The current GIDs, in the order in which a process numbers them the first time: first those of the default route's interface, its
/// preferred address before the others; then other interfaces, those without a carrier after the others; loopback last. IPv4 comes before
/// IPv6, and link-local addresses come last of an interface.
fn wanted(found: &NetworkState) -> Vec<GidEntry> {
    let route = found.default_route();
    let rank = |interface: &Interface, ip: IpAddr| {
        let of_route = route.is_some_and(|route| route.interface == interface.index);
        let preferred = route.is_some_and(|route| route.source == Some(ip));
        let kind = match (of_route, interface.loopback) {
            (true, _) => 0_u8,
            (false, false) => 1 + u8::from(!interface.running),
            (false, true) => 3,
        };
        // Some hosts have the preferred address on another interface.
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
    // A stable sort: addresses of one kind stay in the kernel's order, which has the primary first.
    list.sort_by_key(|&(interface, ip)| rank(interface, ip));
    let mut entries: Vec<GidEntry> = Vec::with_capacity(list.len());
    for (interface, ip) in list {
        let entry = GidEntry {
            index: 0,
            gid: ip.into(),
            interface: interface.name.clone(),
            interface_index: interface.index,
            mtu: interface.mtu,
        };
        // The same address may be there twice, with prefixes of different lengths.
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries
}
