//! Hosts and units that are killed.

use crate::agent::{is_agent, ping_from, stream};
use crate::network::{Container, Network};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_host_that_is_killed_leaves_the_others_connected() {
    let test = "failures::a_host_that_is_killed_leaves_the_others_connected";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(3);
    let _left = network.attach(1, &[]);
    let right = network.attach(2, &[]);
    let _middle = network.attach(3, &[]);
    let mut agents: Vec<_> = network.containers.iter().map(|container| container.agent(test)).collect();
    let addresses: Vec<_> = network.containers.iter().map(Container::addresses).collect();
    ping_from(&mut agents[0], &addresses[1][0]);
    right.kill();
    let why = network.unit.as_mut().unwrap().wait_for("host right left session ");
    assert!(why.ends_with(": connection lost"), "{why}");
    assert_eq!(network.status("right"), None);
    let [left, _, middle] = &mut agents[..] else { unreachable!("three agents") };
    ping_from(left, &addresses[2][1]);
    stream(left, middle, &addresses[2][0]);

    // Its TAP device was gone with it.
    let _right = network.attach(2, &[]);
    ping_from(&mut agents[0], &addresses[1][0]);
    ping_from(&mut agents[1], &addresses[2][1]);
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    agents.into_iter().for_each(Partner::finish);
}

#[test]
fn hosts_attach_again_after_the_unit_was_killed() {
    let test = "failures::hosts_attach_again_after_the_unit_was_killed";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(2);
    let mut hosts = [1, 2].map(|number| network.attach(number, &[]));
    let mut agents: Vec<_> = network.containers.iter().map(|container| container.agent(test)).collect();
    let [_, right] = &network.containers[..] else { unreachable!("two containers") };
    let [v4, v6] = right.addresses();
    ping_from(&mut agents[0], &v4);
    network.unit.take().unwrap().kill();
    for container in &network.containers {
        until(|| container.ip("link show iw0").contains("NO-CARRIER"));
    }
    network.start_unit();
    for (host, container) in hosts.iter_mut().zip(&network.containers) {
        host.wait_for("attached to ");
        until(|| !container.ip("link show iw0").contains("NO-CARRIER"));
    }
    ping_from(&mut agents[0], &v4);
    ping_from(&mut agents[0], &v6);
    let [at_left, at_right] = &mut agents[..] else { unreachable!("two agents") };
    stream(at_left, at_right, &v4);
    agents.into_iter().for_each(Partner::finish);
}

#[test]
fn a_host_that_hangs_is_detached_and_attaches_again() {
    let test = "failures::a_host_that_hangs_is_detached_and_attaches_again";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(2);
    let mut hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let mut at_left = left.agent(test);
    ping_from(&mut at_left, &right.addresses()[0]);
    let process = Pid::from_raw(hosts[1].id().try_into().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let why = network.unit.as_mut().unwrap().wait_for("host right left session ");
    assert!(why.ends_with(": no CfgUtilReply within 5s"), "{why}");
    kill_process(process, Signal::CONT).unwrap();
    hosts[1].wait_for("attached to ");
    ping_from(&mut at_left, &right.addresses()[0]);
    at_left.finish();
}

#[test]
fn a_newer_session_of_a_host_replaces_the_older_one() {
    let test = "failures::a_newer_session_of_a_host_replaces_the_older_one";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(1);
    let mut older = network.attach(1, &[]);
    let _newer = network.attach_host(&network.hosts[1], "left", "tap7");
    let why = network.unit.as_mut().unwrap().wait_for("host left left session ");
    assert_eq!(why, "1: the host has attached again: a newer session replaces this one");
    // The older one attaches again, as after every session that has ended.
    older.wait_for("attached to ");
}
