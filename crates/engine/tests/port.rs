//! The port and its GIDs follow the host's interfaces. The tests change real interfaces in a network
//! namespace of their own, which needs no root if the system allows user namespaces.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::Engine;
use ironwarp_engine::config::Config;
use ironwarp_engine::gid::{Gid, GidTable};
use ironwarp_engine::logical::{PortChange, PortWatcher};
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::net::ip;
use ironwarp_testkit::wait;
use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

fn gids() -> Vec<(usize, String)> {
    let entries = GidTable::of_process().entries().unwrap();
    entries.iter().map(|entry| (entry.index, entry.gid.to_string())).collect()
}

fn known(list: &[(usize, &str)]) -> Vec<(usize, String)> {
    list.iter().map(|&(index, gid)| (index, gid.to_owned())).collect()
}

/// Returns the bytes that wait in each netlink socket for notifications. This process has a network of its own.
fn unread_notifications() -> Vec<u64> {
    let table = fs::read_to_string("/proc/self/net/netlink").unwrap();
    let sockets = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The columns are: sk, Eth (the protocol), Pid, Groups, Rmem.
    sockets.filter(|words| words[3] != "00000000").map(|words| words[4].parse().unwrap()).collect()
}

/// Starts the lanes of an adapter, and returns once they run.
fn start_lanes(engine: &Engine) {
    let (sender, runs) = mpsc::channel();
    engine.call_at(Instant::now(), move || sender.send(()).unwrap()).unwrap();
    runs.recv_timeout(TIMEOUT).unwrap();
}

#[derive(Debug)]
struct Teller(Mutex<mpsc::Sender<PortChange>>);

impl PortWatcher for Teller {
    fn on_port_change(&self, port: u8, change: PortChange) {
        assert_eq!(port, 1);
        let _ = self.0.lock().unwrap().send(change);
    }
}

#[test]
fn gids_follow_the_interfaces_and_keep_their_indices() {
    if !in_network("gids_follow_the_interfaces_and_keep_their_indices") {
        return;
    }
    assert_eq!(gids(), [], "no interface is up");
    assert!(!GidTable::of_process().port_is_active().unwrap());
    ip("link set lo up");
    // As in a container with loopback only.
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

    // An interface with a carrier and the default route appears later: existing entries keep their index.
    ip("link add wan type veth peer name far");
    ip("addr add 10.1.0.1/24 dev wan");
    assert_eq!(gids().len(), 3, "the interface is down");
    ip("link set far up");
    ip("link set wan mtu 4000 up");
    ip("route add default dev wan");
    let wan: Gid = "10.1.0.1".parse().unwrap();
    let entry = GidTable::of_process().find(wan).unwrap().unwrap();
    assert_eq!((entry.index, &*entry.interface, entry.mtu), (3, "wan", 4000));
}

#[test]
fn port_changes_are_reported_once_and_in_order() {
    if !in_network("port_changes_are_reported_once_and_in_order") {
        return;
    }
    ip("link set lo up");
    let engine = Engine::new(Config::default()).unwrap();
    let (sender, changes) = mpsc::channel();
    engine.watch_port(Arc::new(Teller(Mutex::new(sender)))).unwrap();
    let next = || changes.recv_timeout(TIMEOUT).unwrap();

    ip("link set lo down");
    assert_eq!(next(), PortChange::Error);
    assert_eq!(next(), PortChange::Gids);
    assert!(!GidTable::of_process().port_is_active().unwrap());
    ip("link set lo up");
    assert_eq!(next(), PortChange::Active);
    assert_eq!(next(), PortChange::Gids);
    // The IPv6 loopback address may appear together with the interface, or in a later notification.
    while gids().len() < 2 {
        assert_eq!(next(), PortChange::Gids);
    }
    ip("addr add 10.0.0.1/24 dev lo");
    assert_eq!(next(), PortChange::Gids);
    ip("addr del 10.0.0.1/24 dev lo");
    assert_eq!(next(), PortChange::Gids);

    drop(engine);
    assert_eq!(changes.recv_timeout(TIMEOUT), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn changes_of_the_port_are_asynchronous_events() {
    if !in_network("changes_of_the_port_are_asynchronous_events") {
        return;
    }
    ip("link set lo up");
    let engine = Engine::new(Config::default()).unwrap();
    let events = engine.async_events().unwrap();
    ip("link set lo down");
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::PortError(1)));
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::GidChange(1)));
    ip("link set lo up");
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::PortActive(1)));
}

/// CRIU refuses to checkpoint a process with unread notifications (requirement X2).
#[test]
fn a_lane_reads_notifications_that_the_program_does_not_ask_for() {
    if !in_network("a_lane_reads_notifications_that_the_program_does_not_ask_for") {
        return;
    }
    ip("link set lo up");
    assert_eq!(gids().len(), 2);
    ip("addr add 10.0.0.1/24 dev lo");
    assert_ne!(unread_notifications(), [0], "without a lane, notifications wait for the next question");

    let engine = Engine::new(Config::default()).unwrap();
    start_lanes(&engine);
    wait::until(|| unread_notifications() == [0]);
    ip("addr add 10.0.0.2/24 dev lo");
    wait::until(|| unread_notifications() == [0]);
    assert_eq!(gids().len(), 4, "a notification that was read counts");

    // Another adapter reads them when the first is closed.
    let next = Engine::new(Config::default()).unwrap();
    start_lanes(&next);
    drop(engine);
    ip("addr add 10.0.0.3/24 dev lo");
    wait::until(|| unread_notifications() == [0]);
    assert_eq!(gids().len(), 5);
}

#[test]
fn a_lane_that_started_first_reads_notifications_too() {
    if !in_network("a_lane_that_started_first_reads_notifications_too") {
        return;
    }
    ip("link set lo up");
    let engine = Engine::new(Config::default()).unwrap();
    start_lanes(&engine);
    assert_eq!(unread_notifications(), [], "a program that does not use GIDs has no socket");
    assert_eq!(gids().len(), 2);
    ip("addr add 10.0.0.1/24 dev lo");
    wait::until(|| unread_notifications() == [0]);
    assert_eq!(gids().len(), 3);
}

/// If there is a default route at the beginning, its interface has GID 0, and the port follows that
/// interface.
#[test]
fn the_port_is_the_default_routes_interface() {
    if !in_network("the_port_is_the_default_routes_interface") {
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
