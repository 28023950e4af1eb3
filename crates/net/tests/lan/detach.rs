//! Hosts that are told to stop.

use crate::agent::{is_agent, ping_from};
use crate::network::Network;
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Longest time for a host to end: less than the 5 s after which a session without answers ends.
const LIMIT: Duration = Duration::from_secs(3);

/// Tells a host to stop, and waits until it has ended successfully.
fn stop(host: Partner) {
    let start = Instant::now();
    kill_process(Pid::from_raw(host.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    host.finish();
    assert!(start.elapsed() < LIMIT, "it took {:?} to end", start.elapsed());
}

#[test]
fn a_host_detaches_when_it_is_told_to_stop() {
    let test = "detach::a_host_detaches_when_it_is_told_to_stop";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(2);
    let _left = network.attach(1, &[]);
    let usage = |network: &Network| network.unit_fields(["hosts", "pools", "tags", "strangers", "closing"]);
    until(|| network.unit_fields(["pools", "strangers"]) == [4, 0]);
    let before = usage(&network);
    for mode in ["rdma", "send"] {
        let right = network.attach(2, &["--mode", mode]);
        let mut at_right = network.containers[1].agent(test);
        ping_from(&mut at_right, &network.containers[0].addresses()[0]);
        at_right.finish();
        let [hosts, pools, tags, ..] = usage(&network);
        assert!(hosts == 2 && pools > before[1] && tags > before[2], "{hosts}, {pools}, {tags}");
        stop(right);
        let why = network.unit.as_mut().unwrap().wait_for("host right left session ");
        assert!(why.ends_with(": the host has detached"), "{why}");
        assert_eq!(network.status("right"), None);
        // Its memory is deregistered once its connections are closed.
        until(|| usage(&network) == before);
    }
}

#[test]
fn a_host_without_a_unit_ends_when_it_is_told_to_stop() {
    let test = "detach::a_host_without_a_unit_ends_when_it_is_told_to_stop";
    if is_agent() || !in_network(test) {
        return;
    }
    let mut network = Network::start(1);
    let host = network.attach(1, &[]);
    network.unit.take().unwrap().kill();
    until(|| network.containers[0].ip("link show iw0").contains("NO-CARRIER"));
    stop(host);
}
