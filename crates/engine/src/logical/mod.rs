//! Logical devices (requirement X3): the adapter is presented as the set of devices that the setting `devices` describes.
//! Each has its own name, ports, GIDs, place in the machine, rate, delay and faults.
//!
//! An [`Engine`](crate::Engine) is an open of one logical device. Addresses keep the streams of devices apart: a device
//! listens at, connects from and accepts connections to the addresses of its own ports only.

pub(crate) mod admin;
pub(crate) mod monitor;
pub(crate) mod shaper;

pub use admin::NoSuchPort;
pub use monitor::{PortChange, PortWatcher};

use crate::config::devices::{DeviceGroup, DeviceOptions, Model, Place};
use crate::config::{Config, DeviceName, Devices, MAX_DEVICES, PortPlan, Rate};
use crate::gid::{Gid, GidEntry, GidTable, PortState, Scope, socket_addr};
use crate::sys::fork::{self, Creator, ProcessLock, WhileForking};
use crate::sys::socket::TcpLink;
use admin::{AdminState, Observers, Plan, PortObserver};
use ironwarp_rnic::fault::FaultPlan;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::sync::lock;
use shaper::Shaper;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The first address of the devices at addresses of loopback: 127.0.2.1. Debian maps the name of the host to 127.0.1.1.
const FIRST_LOOPBACK: u32 = Ipv4Addr::new(127, 0, 2, 1).to_bits();

/// A logical device.
#[derive(Debug)]
pub struct LogicalDevice {
    name: DeviceName,
    index: usize,
    ports: Vec<RdmaPort>,
    /// Whether the device has the addresses of all interfaces.
    has_all_addresses: bool,
    options: DeviceOptions,
    /// The rate and delay; `None` if the device has neither.
    shaper: Option<Arc<Shaper>>,
    observers: Observers,
    plan: Mutex<Plan>,
    creator: Creator,
}

/// A port of a logical device.
#[derive(Debug)]
pub struct RdmaPort {
    number: u8,
    scope: Scope,
    gids: GidTable,
    admin: AdminState,
}

/// The logical devices of a process, by the settings that describe them. Adapters with the same settings share them.
type Registry = Vec<Registered>;

/// The devices that settings describe.
#[derive(Debug)]
struct Registered {
    devices: Devices,
    name: DeviceName,
    list: Vec<Arc<LogicalDevice>>,
}

/// The registry of this process. Entries are never removed: devices keep their state while none is open.
static REGISTRY: Mutex<Registry> = Mutex::new(Vec::new());

/// Locks the registry while the process forks, so that a child does not find it locked forever.
static FORK_LOCK: ProcessLock = ProcessLock {
    lock: || HELD.with(|held| held.set(lock(&REGISTRY))),
    unlock: || drop(HELD.with(WhileForking::take)),
};

thread_local! {
    /// The locked registry, in a thread that forks.
    static HELD: WhileForking<MutexGuard<'static, Registry>> = const { WhileForking::new() };
}

/// Returns the logical devices that the settings describe, at least one, in the order of their indices. Which interfaces
/// have devices is decided by the first call with these settings.
///
/// # Errors
/// Fails if two devices have the same name, if no device would exist, or if the kernel does not list its interfaces.
pub fn devices(config: &Config) -> io::Result<Vec<Arc<LogicalDevice>>> {
    fork::hold_during_forks(&FORK_LOCK);
    let known = |registry: &Registry| {
        let is_same = |one: &&Registered| one.devices == config.devices && one.name == config.name;
        registry.iter().filter(|one| one.is_own()).find(is_same).map(|one| one.list.clone())
    };
    if let Some(known) = known(&lock(&REGISTRY)) {
        return Ok(known);
    }
    // Without the lock: this locks the GID tables, and a thread that forks may lock those first.
    let list = create(config)?;
    let mut registry = lock(&REGISTRY);
    if let Some(known) = known(&registry) {
        return Ok(known); // another thread was faster
    }
    registry.push(Registered {
        devices: config.devices.clone(),
        name: config.name.clone(),
        list: list.clone(),
    });
    Ok(list)
}

/// Returns all devices of this process.
fn all() -> Vec<Arc<LogicalDevice>> {
    lock(&REGISTRY).iter().filter(|one| one.is_own()).flat_map(|one| one.list.clone()).collect()
}

impl Registered {
    /// Returns whether this process created the devices. Those of a parent may be locked forever: none of its threads
    /// exist in a forked child.
    fn is_own(&self) -> bool {
        self.list.iter().all(|device| !device.creator.is_parent())
    }
}

/// Returns the logical device of this name.
///
/// # Errors
/// Fails if there is none; the error lists the names.
pub fn find(config: &Config, name: &str) -> io::Result<Arc<LogicalDevice>> {
    let devices = devices(config)?;
    devices.iter().find(|device| device.name() == name).cloned().ok_or_else(|| {
        let known = devices.iter().map(|device| device.name()).collect::<Vec<_>>().join(", ");
        io::Error::new(io::ErrorKind::NotFound, format!("no device `{name}`: the devices are {known}"))
    })
}

/// Checks that the settings describe devices, and that the ports in the setting `port_plan` exist. Returns the names of
/// devices that have no address now, which are useless.
///
/// # Errors
/// Fails as [`devices`] does, and if the plan names a device or a port that does not exist.
pub fn check(config: &Config) -> io::Result<Vec<String>> {
    check_plan(config)?;
    let has_no_address =
        |device: &&Arc<LogicalDevice>| device.entries().is_ok_and(|entries| entries.is_empty());
    Ok(devices(config)?.iter().filter(has_no_address).map(|device| device.name().to_owned()).collect())
}

/// Checks that the ports in the setting `port_plan` exist.
pub(crate) fn check_plan(config: &Config) -> io::Result<()> {
    for planned in config.port_plan.ports() {
        let device = find(config, planned.device.as_str())?;
        planned.port.map_or(Ok(()), |port| device.check_port(port).map(|_| ()))?;
    }
    Ok(())
}

/// Returns whether a port of any device of this process that has this address was taken down.
pub(crate) fn is_down_at(ip: IpAddr) -> bool {
    if !admin::any_is_down() {
        return false;
    }
    // Not the devices with all addresses: others may have the same ones.
    all().iter().any(|device| !device.has_all_addresses && device.is_down_at(ip))
}

/// Returns the devices of this process with this name, whatever the settings that describe them.
pub(crate) fn all_named(name: &str) -> Vec<Arc<LogicalDevice>> {
    all().into_iter().filter(|device| device.name() == name).collect()
}

/// Creates the devices that the settings describe.
fn create(config: &Config) -> io::Result<Vec<Arc<LogicalDevice>>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mut devices: Vec<Arc<LogicalDevice>> = Vec::new();
    let mut loopback = FIRST_LOOPBACK;
    for group in config.devices.groups() {
        let first = devices.len();
        for (at, scopes) in scopes(group, &mut loopback)?.into_iter().enumerate() {
            let name = match &group.options.name {
                Some(name) => name.incremented(at),
                None => config.name.incremented(first + at),
            };
            if devices.iter().any(|device| device.name == name) {
                return Err(invalid(format!(
                    "two devices have the name `{name}`: set name= for one of them"
                )));
            }
            devices.push(Arc::new(LogicalDevice::new(name, devices.len(), scopes, group, at)));
        }
    }
    match devices.len() {
        0 => Err(invalid("no interface is up, so `interfaces` describes no device".to_owned())),
        1..=MAX_DEVICES => Ok(devices),
        many => Err(invalid(format!("{many} devices exceed the maximum of {MAX_DEVICES}"))),
    }
}

/// Returns the scopes of the ports of each device of a group. `loopback` is the next free address of loopback.
fn scopes(group: &DeviceGroup, loopback: &mut u32) -> io::Result<Vec<Vec<Scope>>> {
    let mut next_loopback = || {
        let address = Ipv4Addr::from_bits(*loopback);
        *loopback += 1;
        Scope::Address(address.into())
    };
    Ok(match &group.model {
        Model::All => vec![vec![Scope::Host]],
        Model::Interfaces => {
            let mut interfaces: Vec<String> = Vec::new();
            for entry in GidTable::of_process().entries()? {
                let is_loopback = entry.gid.ip().is_some_and(|ip| ip.is_loopback());
                if !is_loopback && !interfaces.contains(&entry.interface) {
                    interfaces.push(entry.interface);
                }
            }
            interfaces.into_iter().map(|name| vec![Scope::Interface(name)]).collect()
        }
        Model::Loopback(count) => {
            let ports = group.options.ports.unwrap_or(1);
            (0..*count).map(|_| (0..ports).map(|_| next_loopback()).collect()).collect()
        }
        Model::Places(places) => {
            let scope = |place: &Place| match place {
                Place::Interface(name) => Scope::Interface(name.clone()),
                Place::Address(ip) => Scope::Address(*ip),
            };
            vec![places.iter().map(scope).collect()]
        }
    })
}

impl LogicalDevice {
    /// Creates the device at this place of its group.
    fn new(name: DeviceName, index: usize, scopes: Vec<Scope>, group: &DeviceGroup, at: usize) -> Self {
        let port = |(number, scope): (u8, Scope)| RdmaPort {
            number,
            gids: GidTable::of(&scope),
            scope,
            admin: AdminState::default(),
        };
        let mut options = group.options.clone();
        options.numa = options.numa.get(at % options.numa.len().max(1)).copied().into_iter().collect();
        let has_all_addresses = group.model == Model::All;
        let ports = (1..).zip(scopes).map(port).collect();
        let observers = Observers::default();
        let plan = Mutex::default();
        let mut device = Self {
            name,
            index,
            ports,
            has_all_addresses,
            options,
            shaper: None,
            observers,
            plan,
            creator: Creator::this(),
        };
        if device.rate().is_some() || !device.delay().is_zero() {
            device.shaper = Some(Arc::new(Shaper::new(device.rate(), device.delay())));
        }
        device
    }

    /// Returns this device, or in a forked child the child's own one: its ports are up, and it has the full rate.
    pub(crate) fn in_this_process(self: &Arc<Self>, config: &Config) -> io::Result<Arc<Self>> {
        if !self.creator.is_parent() {
            return Ok(Arc::clone(self));
        }
        find(config, self.name())
    }

    /// Returns the name that programs see.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the index in the list of devices.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the ports, in the order of their numbers, which begin at 1.
    pub fn ports(&self) -> &[RdmaPort] {
        &self.ports
    }

    /// Returns the port with this number, or `None` if there is none.
    pub fn port(&self, number: u8) -> Option<&RdmaPort> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// Returns the port with this number. Fails if there is none.
    fn check_port(&self, number: u8) -> Result<&RdmaPort, NoSuchPort> {
        self.port(number).ok_or_else(|| NoSuchPort {
            port: number,
            device: self.name().to_owned(),
            ports: self.ports.len(),
        })
    }

    /// Returns whether the device has the addresses of all interfaces, as the default device does. Such a device also
    /// accepts addresses that the kernel does not list, such as 127.0.0.2.
    pub fn has_all_addresses(&self) -> bool {
        self.has_all_addresses
    }

    /// Returns the speed that programs see, in bits per second.
    pub fn speed(&self) -> u64 {
        self.options.speed.or(self.options.rate).map_or(100_000_000_000, Rate::bits_per_second)
    }

    /// Returns the maximum rate of each direction in bits per second, or `None` if it is not limited.
    ///
    /// It limits the streams of all connections of the device in this process together, over TCP and shared memory, with
    /// their headers. Bursts of 2 ms, and of 64 KiB, are possible. Datagrams and the handshakes of connections are not
    /// limited.
    pub fn rate(&self) -> Option<u64> {
        self.options.rate.map(Rate::bits_per_second)
    }

    /// Returns the time by which everything that the device receives is delayed.
    ///
    /// It adds to the latency of the streams of connections, over TCP and shared memory, and does not limit their
    /// throughput unless more than 8 MiB of a connection are on the way. Datagrams and the handshakes of connections are
    /// not delayed.
    pub fn delay(&self) -> Duration {
        self.options.delay.unwrap_or_default()
    }

    /// Returns the rate and delay, for the streams of connections; `None` if the device has neither.
    pub(crate) fn shaper(&self) -> Option<&Arc<Shaper>> {
        self.shaper.as_ref()
    }

    /// Returns the NUMA node that programs see, or `None` if the device is near no node in particular.
    pub fn numa_node(&self) -> Option<u16> {
        self.options.numa.first().copied()
    }

    /// Returns the faults to inject: those of the device, or else those of the settings.
    pub(crate) fn faults(&self, config: &Config) -> FaultPlan {
        self.options.faults.unwrap_or(config.faults)
    }

    /// Returns the GUID: an EUI-64 whose last three bytes are those of the first GID, as bytes in network order.
    pub fn guid(&self) -> [u8; 8] {
        let gids = self.entries().unwrap_or_default();
        let bytes = gids.first().map_or([0; 16], |(_, entry)| entry.gid.to_bytes());
        // Locally administered, with the letters IW as vendor.
        let mut id = *b"\x02IW\xff\xfe\0\0\0";
        id[5..].copy_from_slice(&bytes[13..]);
        id
    }

    /// Returns the GIDs of all ports, each with the number of its port.
    pub fn entries(&self) -> io::Result<Vec<(u8, GidEntry)>> {
        let mut all = Vec::new();
        for port in &self.ports {
            all.extend(port.gids.entries()?.into_iter().map(|entry| (port.number, entry)));
        }
        Ok(all)
    }

    /// Returns the port that has a GID, with the entry of its table.
    pub fn find_gid(&self, gid: Gid) -> io::Result<Option<(&RdmaPort, GidEntry)>> {
        for port in &self.ports {
            if let Some(entry) = port.gids.find(gid)? {
                return Ok(Some((port, entry)));
            }
        }
        Ok(None)
    }

    /// Updates the GID tables from the kernel, and returns the states of the ports.
    pub(crate) fn port_states(&self) -> io::Result<Vec<PortState>> {
        let state = |port: &RdmaPort| {
            let state = port.gids.refresh()?;
            Ok(PortState { active: state.active && !port.is_down(), ..state })
        };
        self.ports.iter().map(state).collect()
    }

    // --- Ports that go down ---

    /// Takes a port down, or up again, for all adapters of this process that have the device open, and for those that
    /// open it later. Returns whether that is a change.
    ///
    /// While a port is down, nothing is sent or received there, as if its cable were unplugged: a request of either end
    /// fails when its retries are exceeded, unless the port is up before. New connections fail, and datagrams are lost.
    /// The port is not active, and its asynchronous events report that.
    ///
    /// Do not call this from a [`PortWatcher`].
    ///
    /// # Errors
    /// Fails if the device has no such port.
    pub fn set_port(&self, number: u8, up: bool) -> Result<bool, NoSuchPort> {
        let port = self.check_port(number)?;
        Ok(self.observers.while_stable(|| {
            let changed = port.admin.set_down(!up);
            if changed {
                tracing::info!(
                    device = self.name(),
                    port = number,
                    "port {}",
                    if up { "up" } else { "down" }
                );
                self.observers.notify();
                self.close_kept();
            }
            changed
        }))
    }

    /// Begins the plan of the ports, unless an adapter that has opened the device before has begun one. Returns the times
    /// at which to call [`follow_plan`](Self::follow_plan).
    pub(crate) fn begin_plan(&self, plan: &PortPlan) -> Vec<Instant> {
        let mut steps = Vec::new();
        for planned in plan.ports().iter().filter(|planned| planned.device == self.name) {
            let all = self.ports.iter().map(RdmaPort::number);
            for port in all.filter(|port| planned.port.is_none_or(|planned| planned == *port)) {
                steps.extend(planned.steps.iter().map(|step| (step.at, port, step.up)));
            }
        }
        lock(&self.plan).begin(|| steps)
    }

    /// Takes the steps of the plan that are due. All adapters that have the device open call this, in case that others
    /// are closed.
    pub(crate) fn follow_plan(&self) {
        let next = || lock(&self.plan).take_due(Instant::now());
        while let Some((port, up)) = next() {
            let _ = self.set_port(port, up); // the plan has only ports of the device
        }
    }

    /// Keeps the socket of a connection open that was given up while its port is down.
    pub(crate) fn keep_until_up(&self, link: Arc<TcpLink>) {
        self.observers.keep(link);
    }

    /// Closes the sockets that were kept and whose ports are up: the peers that still wait for an answer get a reset.
    fn close_kept(&self) {
        for link in self.observers.take_kept() {
            if link.local_addr().is_ok_and(|local| self.is_down_at(local.ip())) {
                self.observers.keep(link);
            } else {
                link.abort();
            }
        }
    }

    /// Has an observer learn when a port is taken down, or up again.
    pub(crate) fn observe(&self, observer: Weak<dyn PortObserver>) {
        self.observers.add(observer);
    }

    /// Calls a function while an observer learns when a port is taken down, or up again.
    pub(crate) fn while_observed<R>(&self, observer: Weak<dyn PortObserver>, act: impl FnOnce() -> R) -> R {
        self.observers.add(Weak::clone(&observer));
        let result = act();
        self.observers.remove(&observer);
        result
    }

    /// Calls a function that applies the state of a port, while no thread changes it.
    pub(crate) fn while_ports_are_stable<R>(&self, act: impl FnOnce() -> R) -> R {
        self.observers.while_stable(act)
    }

    /// Returns the port that has an address. A device with the addresses of all interfaces has one port.
    fn port_at(&self, ip: IpAddr) -> Option<&RdmaPort> {
        if self.has_all_addresses {
            return self.ports.first();
        }
        self.find_gid(Gid::from(ip.to_canonical())).ok()?.map(|(port, _)| port)
    }

    /// Returns whether the port with this address was taken down.
    pub(crate) fn is_down_at(&self, ip: IpAddr) -> bool {
        admin::any_is_down() && self.port_at(ip).is_some_and(RdmaPort::is_down)
    }

    /// Checks that the port was not taken down from which the device connects: the one with this address, or the first
    /// one if the kernel chooses the address.
    pub(crate) fn check_up(&self, from: Option<IpAddr>) -> io::Result<()> {
        if !admin::any_is_down() {
            return Ok(());
        }
        let port = from.map_or_else(|| self.ports.first(), |ip| self.port_at(ip));
        match port.filter(|port| port.is_down()) {
            Some(port) => {
                let why = format!("port {} of device {} is down", port.number, self.name);
                Err(io::Error::new(io::ErrorKind::NetworkDown, why))
            }
            None => Ok(()),
        }
    }

    /// Returns whether an address belongs to the device: streams from and to all others belong to other devices.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.has_all_addresses
            || self.find_gid(Gid::from(ip.to_canonical())).is_ok_and(|found| found.is_some())
    }

    /// Returns the address from which the device connects to `to`, with port 0. `None` lets the kernel choose.
    ///
    /// # Errors
    /// Fails if the device has no address of this IP version.
    pub fn source_for(&self, to: IpAddr) -> io::Result<Option<SocketAddr>> {
        if self.has_all_addresses {
            return Ok(None);
        }
        for (_, entry) in self.entries()? {
            if let Some(ip) = entry.gid.ip().filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
                return Ok(Some(socket_addr(ip, 0, entry.interface_index)));
            }
        }
        Err(self.not_available(format_args!("no address of this IP version to reach {to} from")))
    }

    /// Returns the address to listen at, if the program listens at `at`: if that is a wildcard address and the device has
    /// only one address, that one. Otherwise connections to addresses of other devices have to be rejected.
    ///
    /// # Errors
    /// Fails if the address belongs to another device.
    pub(crate) fn listen_address(&self, at: SocketAddr) -> io::Result<SocketAddr> {
        if self.has_all_addresses {
            return Ok(at);
        }
        if !at.ip().is_unspecified() {
            return self.check_owns(at.ip()).map(|()| at);
        }
        Ok(match &self.entries()?[..] {
            [(_, only)] => only.socket_addr(at.port()).unwrap_or(at),
            _ => at,
        })
    }

    /// Checks that an address belongs to the device.
    pub(crate) fn check_owns(&self, ip: IpAddr) -> io::Result<()> {
        if self.owns(ip) {
            Ok(())
        } else {
            Err(self.not_available(format_args!("{ip} is not one of its addresses")))
        }
    }

    fn not_available(&self, why: std::fmt::Arguments<'_>) -> io::Error {
        io::Error::new(io::ErrorKind::AddrNotAvailable, format!("device {}: {why}", self.name))
    }
}

impl RdmaPort {
    /// Returns the number of the port.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the GID table of the port.
    pub fn gids(&self) -> GidTable {
        self.gids
    }

    /// Returns whether the port is active: its interface is, and it was not [taken down](LogicalDevice::set_port).
    pub fn is_active(&self) -> io::Result<bool> {
        Ok(!self.is_down() && self.gids.port_is_active()?)
    }

    /// Returns whether the port was [taken down](LogicalDevice::set_port).
    pub fn is_down(&self) -> bool {
        self.admin.is_down()
    }

    /// Returns the name of the only interface of the port; `None` if the port has the addresses of several.
    pub fn interface(&self) -> Option<String> {
        match &self.scope {
            Scope::Host => None,
            Scope::Interface(name) => Some(name.clone()),
            Scope::Address(_) => self.gids.entries().ok()?.first().map(|entry| entry.interface.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Vec<Arc<LogicalDevice>> {
        devices(&Config::default().devices(text.parse().unwrap())).unwrap()
    }

    #[test]
    fn the_default_device_has_all_addresses() {
        let devices = described("all");
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].name(), devices[0].ports().len()), ("ironwarp0", 1));
        assert_eq!(devices[0].port(1).unwrap().gids(), GidTable::of_process());
        assert!(devices[0].owns("127.0.0.9".parse().unwrap()));
        assert_eq!(devices[0].source_for("127.0.0.1".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn devices_at_loopback_have_an_address_for_each_port() {
        let devices = described("2 ports=2 numa=3,5; 1 name=mlx5_4 rate=1g");
        let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        assert_eq!(names, ["ironwarp0", "ironwarp1", "mlx5_4"]);
        let gid = |device: usize, port| {
            let entries = devices[device].port(port).unwrap().gids().entries().unwrap();
            assert_eq!(entries.len(), 1);
            assert_eq!((entries[0].index, entries[0].interface.as_str()), (0, "lo"));
            entries[0].gid.ip().unwrap().to_string()
        };
        assert_eq!(
            [gid(0, 1), gid(0, 2), gid(1, 1), gid(1, 2)],
            ["127.0.2.1", "127.0.2.2", "127.0.2.3", "127.0.2.4"]
        );
        assert_eq!(gid(2, 1), "127.0.2.5");
        assert_eq!(
            (devices[0].numa_node(), devices[1].numa_node(), devices[2].numa_node()),
            (Some(3), Some(5), None)
        );
        assert_eq!((devices[2].rate(), devices[2].speed()), (Some(1_000_000_000), 1_000_000_000));
        assert!(
            devices[1].owns("127.0.2.3".parse().unwrap()) && !devices[1].owns("127.0.2.1".parse().unwrap())
        );
        let source = devices[1].source_for("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(source, Some("127.0.2.3:0".parse().unwrap()));
        assert!(devices[1].source_for("::1".parse().unwrap()).is_err());
        let listen = |device: usize, at: &str| {
            devices[device].listen_address(at.parse().unwrap()).map(|at| at.to_string())
        };
        assert_eq!(listen(1, "0.0.0.0:7").unwrap(), "0.0.0.0:7", "it has two addresses");
        assert_eq!(listen(2, "[::]:7").unwrap(), "127.0.2.5:7");
        assert!(
            listen(2, "127.0.2.4:7")
                .unwrap_err()
                .to_string()
                .contains("127.0.2.4 is not one of its addresses")
        );
        assert!(devices[0].port(0).is_none() && devices[0].port(3).is_none());
        let guids: std::collections::BTreeSet<_> = devices.iter().map(|device| device.guid()).collect();
        assert_eq!(guids.len(), 3);
        assert!(devices[0].port(1).unwrap().is_active().unwrap());
    }

    #[test]
    fn equal_settings_share_devices() {
        assert!(Arc::ptr_eq(&described("3")[2], &described("3")[2]));
        assert!(!Arc::ptr_eq(&described("3")[2], &described("4")[2]));
    }

    #[test]
    fn names_are_unique_and_found() {
        let twice = Config::default().devices("1; 1 name=ironwarp0".parse().unwrap());
        assert!(devices(&twice).unwrap_err().to_string().contains("two devices have the name `ironwarp0`"));
        let two = Config::default().devices("2".parse().unwrap());
        assert_eq!(find(&two, "ironwarp1").unwrap().index(), 1);
        let error = find(&two, "mlx5_0").unwrap_err().to_string();
        assert_eq!(error, "no device `mlx5_0`: the devices are ironwarp0, ironwarp1");
    }
}
