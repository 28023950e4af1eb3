//! Runs `ironwarp devices` on this machine, in a network namespace, and in a sandbox.

mod common;

use common::{Place, command, stderr, stdout};
use std::process::Command;

/// Runs the command in a new network namespace, after shell commands that set it up.
fn in_a_network(setup: &str, ironwarp: &std::path::Path) -> Command {
    let script = format!("{setup}\nexec \"$0\" devices");
    let mut command = command("unshare");
    command.args(["--map-root-user", "--net", "sh", "-ec", &script]).arg(ironwarp);
    command
}

#[test]
fn the_adapter_of_this_machine() {
    let place = Place::new("devices");
    let ironwarp = place.installed();
    let output = command(&ironwarp).arg("devices").output().expect("runs");
    let text = stdout(&output);
    assert!(text.starts_with("ironwarp0: a RoCE adapter (persona roce), 1 port, active, "), "{text}");
    assert!(text.contains("\n\n  index  interface         MTU  GID\n"), "{text}");
    assert!(text.contains("::ffff:127.0.0.1 (127.0.0.1)\n"), "{text}");
    assert!(output.status.success(), "{output:?}");
    let output = command(&ironwarp).arg("devices").env("IRONWARP_PERSONA", "iwarp").output().expect("runs");
    assert!(stdout(&output).starts_with("ironwarp0: an iWARP adapter (persona iwarp), "), "{output:?}");
    let file = place.path("no.pcap");
    command(&ironwarp).arg("devices").env("IRONWARP_PCAP", &file).output().expect("runs");
    assert!(!file.exists(), "no capture file is created");
}

#[test]
fn several_logical_devices() {
    let place = Place::new("devices-logical");
    let ironwarp = place.installed();
    let spec = "2 ports=2 numa=0,1 speed=400g rate=1g delay=20us";
    let expected = "\
ironwarp0: a RoCE adapter (persona roce), 2 ports, active, 2 GIDs, speed 400 Gb/s, rate 1 Gb/s, delay 20µs, NUMA node 0

  port  index  interface         MTU  GID
     1      0  lo              65536  ::ffff:127.0.2.1 (127.0.2.1)
     2      0  lo              65536  ::ffff:127.0.2.2 (127.0.2.2)

ironwarp1: a RoCE adapter (persona roce), 2 ports, active, 2 GIDs, speed 400 Gb/s, rate 1 Gb/s, delay 20µs, NUMA node 1

  port  index  interface         MTU  GID
     1      0  lo              65536  ::ffff:127.0.2.3 (127.0.2.3)
     2      0  lo              65536  ::ffff:127.0.2.4 (127.0.2.4)
";
    let by_option =
        command(&ironwarp).args(["devices", "--devices", spec]).env("IRONWARP_DEVICES", "0").output();
    let by_variable = command(&ironwarp).arg("devices").env("IRONWARP_DEVICES", spec).output();
    for output in [by_option, by_variable].map(|output| output.expect("runs")) {
        assert_eq!((stdout(&output), stderr(&output)), (expected.to_owned(), String::new()));
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn logical_devices_that_do_not_work() {
    let place = Place::new("devices-logical-wrong");
    let ironwarp = place.installed();
    for (spec, says, code) in [
        ("1 fast=yes", "unknown option `fast`: expected one of name=, ports=", 2),
        ("2; 1 name=ironwarp1", "ironwarp: two devices have the name `ironwarp1`", 1),
        ("lo+nowhere0", "ironwarp: port 2 of ironwarp0 has no GID: nowhere0 does not exist", 1),
        (
            "192.0.2.77",
            "ironwarp: the port of ironwarp0 has no GID: its address is not one of this machine",
            1,
        ),
    ] {
        let output = command(&ironwarp).args(["devices", "--devices", spec]).output().expect("runs");
        assert!(stderr(&output).contains(says), "{output:?}");
        assert_eq!(output.status.code(), Some(code), "{spec}");
    }
}

#[test]
fn every_address_with_its_interface() {
    let place = Place::new("devices-addresses");
    let setup = "ip link add test0 type veth peer name test1; ip link set test1 up; ip link set test0 mtu 4000 up; ip address add 10.9.8.7/24 dev test0; ip link set lo up";
    let output = in_a_network(setup, &place.installed()).output().expect("runs");
    let text = stdout(&output);
    assert!(text.contains("  test0            4000  ::ffff:10.9.8.7 (10.9.8.7)\n"), "{output:?}");
    assert!(text.contains("  lo              65536  ::ffff:127.0.0.1 (127.0.0.1)\n"), "{text}");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn no_address_at_all() {
    let place = Place::new("devices-none");
    let output = in_a_network("", &place.installed()).output().expect("runs");
    assert_eq!(stdout(&output), "ironwarp0: a RoCE adapter (persona roce), 1 port, down, 0 GIDs\n");
    assert!(stderr(&output).starts_with("ironwarp: no interface is up and has an address: "));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn loopback_alone() {
    let place = Place::new("devices-loopback");
    let output = in_a_network("ip link set lo up", &place.installed()).output().expect("runs");
    assert!(
        stderr(&output).starts_with("ironwarp: only loopback has an address: only programs on this machine")
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_sandbox_that_forbids_netlink() {
    let place = Place::new("devices-sandbox");
    let (ironwarp, jail) = (place.installed(), place.compile("jail.c", "jail", &[]));
    let output = command(jail).arg(ironwarp).arg("devices").output().expect("runs");
    let said = stderr(&output);
    let begin =
        "ironwarp: failed to read the addresses of this machine over netlink: system call socket denied";
    assert!(said.starts_with(begin) && said.contains("AF_NETLINK"), "{said}");
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
}

#[test]
fn wrong_settings_and_a_missing_library() {
    let place = Place::new("devices-wrong");
    let ironwarp = place.installed();
    let set = [("IRONWARP_PERSONA", "ib"), ("IRONWARP_LANE", "1")];
    let output = command(&ironwarp).arg("devices").envs(set).output().expect("runs");
    let said = stderr(&output);
    assert!(said.contains("ironwarp: invalid value `ib` for the setting `persona`: "), "{said}");
    assert!(said.contains(", the closest is `lanes`; ignored\n"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    std::fs::remove_file(place.path("lib/ironwarp/libibverbs.so.1")).expect("was there");
    let output = command(&ironwarp).arg("devices").output().expect("runs");
    assert!(stderr(&output).starts_with("ironwarp: libibverbs.so.1 of Ironwarp not found in "), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}
