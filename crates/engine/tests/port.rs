//! The port and its GIDs follow the host's interfaces. Interfaces are changed for real, in a network namespace of the test's
//! own, which needs no root where the system allows user namespaces.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp_engine::Engine;
use ironwarp_engine::gid::{Gid, GidTable, PortChange, PortWatcher};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::event::AsyncEvent;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
/// The process in the namespace is this test again, told so.
const INSIDE: &str = "IRON_TEST_PORT_INSIDE";

/// Runs `test` again in a network namespace where nothing is up yet. True: this is the process inside.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success());
    false
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn gids() -> Vec<(usize, String)> {
    let entries = GidTable::of_process().entries().unwrap();
    entries.iter().map(|entry| (entry.index, entry.gid.to_string())).collect()
}

fn known(list: &[(usize, &str)]) -> Vec<(usize, String)> {
    list.iter().map(|&(index, gid)| (index, gid.to_owned())).collect()
}

#[derive(Debug)]
struct Teller(Mutex<mpsc::Sender<PortChange>>);

impl PortWatcher for Teller {
    fn port_changed(&self, change: PortChange) {
        let _ = self.0.lock().unwrap().send(change);
    }
}

#[test]
fn gids_follow_the_interfaces_and_keep_their_indices() {
    if !inside("gids_follow_the_interfaces_and_keep_their_indices") {
        return;
    }
    assert_eq!(gids(), [], "nothing is up");
    assert!(!GidTable::of_process().port_is_active().unwrap());
    ip("link set lo up");
    // A container with loopback alone.
    let alone = [(0, "::ffff:127.0.0.1"), (1, "::1")];
    assert_eq!(gids(), known(&alone));
    assert!(GidTable::of_process().port_is_active().unwrap());

    ip("addr add 10.0.0.1/24 dev lo");
    assert_eq!(gids(), known(&[alone[0], alone[1], (2, "::ffff:10.0.0.1")]));
    ip("addr del 127.0.0.1/8 dev lo");
    assert_eq!(gids(), known(&[alone[1], (2, "::ffff:10.0.0.1")]));
    assert_eq!(GidTable::of_process().get(0).unwrap(), None, "index 0 stays empty");
    ip("addr add 127.0.0.1/8 dev lo");
    assert_eq!(gids(), known(&[alone[0], alone[1], (2, "::ffff:10.0.0.1")]));

    // An interface with a carrier, which comes late, and the default route: what has an index keeps it.
    ip("link add wan type veth peer name far");
    ip("addr add 10.1.0.1/24 dev wan");
    assert_eq!(gids().len(), 3, "it is down");
    ip("link set far up");
    ip("link set wan mtu 4000 up");
    ip("route add default dev wan");
    let wan: Gid = "10.1.0.1".parse().unwrap();
    let entry = GidTable::of_process().find(wan).unwrap().unwrap();
    assert_eq!((entry.index, &*entry.interface, entry.mtu), (3, "wan", 4000));
}

#[test]
fn changes_of_the_port_are_told_once_and_in_order() {
    if !inside("changes_of_the_port_are_told_once_and_in_order") {
        return;
    }
    ip("link set lo up");
    let engine = Engine::new(Config::default()).unwrap();
    let (sender, changes) = mpsc::channel();
    engine.watch_port(Arc::new(Teller(Mutex::new(sender)))).unwrap();
    let next = || changes.recv_timeout(PATIENCE).unwrap();

    ip("link set lo down");
    assert_eq!(next(), PortChange::Error);
    assert_eq!(next(), PortChange::Gids);
    assert!(!GidTable::of_process().port_is_active().unwrap());
    ip("link set lo up");
    assert_eq!(next(), PortChange::Active);
    assert_eq!(next(), PortChange::Gids);
    // IPv6's own loopback address may come with the interface or a notice later.
    while gids().len() < 2 {
        assert_eq!(next(), PortChange::Gids);
    }
    ip("addr add 10.0.0.1/24 dev lo");
    assert_eq!(next(), PortChange::Gids);
    ip("addr del 10.0.0.1/24 dev lo");
    assert_eq!(next(), PortChange::Gids);

    drop(engine);
    assert_eq!(changes.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn changes_of_the_port_are_asynchronous_events() {
    if !inside("changes_of_the_port_are_asynchronous_events") {
        return;
    }
    ip("link set lo up");
    let engine = Engine::new(Config::default()).unwrap();
    let events = engine.async_events().unwrap();
    ip("link set lo down");
    assert_eq!(events.wait(Some(PATIENCE)), Some(AsyncEvent::PortError(1)));
    assert_eq!(events.wait(Some(PATIENCE)), Some(AsyncEvent::GidChange(1)));
    ip("link set lo up");
    assert_eq!(events.wait(Some(PATIENCE)), Some(AsyncEvent::PortActive(1)));
}

/// With a default route at the first look, its interface has GID 0, and the port is that interface's.
#[test]
fn the_port_is_the_default_routes_interface() {
    if !inside("the_port_is_the_default_routes_interface") {
        return;
    }
    ip("link set lo up");
    ip("link add wan type veth peer name far");
    ip("addr add 10.1.0.1/24 dev wan");
    ip("link set far up");
    ip("link set wan up");
    ip("route add default dev wan");
    let table = GidTable::of_process();
    assert_eq!(table.get(0).unwrap().unwrap().gid, "10.1.0.1".parse().unwrap());
    assert!(table.port_is_active().unwrap());
    ip("link set lo down");
    assert!(table.port_is_active().unwrap());
    ip("link set far down");
    assert!(!table.port_is_active().unwrap(), "no carrier");
    assert!(table.get(0).unwrap().is_some(), "the address is still there");
    ip("link set far up");
    assert!(table.port_is_active().unwrap());
}
