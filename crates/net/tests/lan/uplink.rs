//! The LAN beyond the hosts: a TAP device of the unit, whose addresses are in the namespace of the test. With the two hosts,
//! these are three machines.

use crate::agent::{ROLE, datagram_of, is_agent, ping_from, stream};
use crate::iperf::iperf_both_ways;
use crate::network::{Network, Setup};
use ironwarp_testkit::child::{Partner, command, in_network};
use ironwarp_testkit::wait::until;

const TAP: Setup = Setup { lan: "tap=lan0", mtu: "1500", captures: false, environment: &[] };

/// Lets two containers and the LAN of the unit ping each other over both IP versions, and exchange the longest datagrams of one
/// frame. Returns the agents at the left, the right, and the LAN.
fn meet(test: &str, network: &Network, mtu: usize) -> [Partner; 3] {
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let mut agents = [left.agent(test), right.agent(test), Partner::start(command(test, ROLE))];
    let addresses = [left.addresses(), right.addresses(), network.configure_lan()];
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        let [v4, v6] = &addresses[to];
        ping_from(&mut agents[from], v4);
        ping_from(&mut agents[from], v6);
        let [from, to] = agents.get_disjoint_mut([from, to]).unwrap();
        datagram_of(mtu - 28, from, to, v4);
        datagram_of(mtu - 48, from, to, v6);
    }
    agents
}

#[test]
fn containers_reach_the_lan_of_the_unit() {
    let test = "uplink::containers_reach_the_lan_of_the_unit";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(2, TAP);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [mut at_left, mut at_right, mut at_lan] = meet(test, &network, 1500);
    stream(&mut at_left, &mut at_lan, "10.5.0.9");
    stream(&mut at_lan, &mut at_right, &network.containers[1].addresses()[1]);
    for name in ["left", "right"] {
        assert_eq!(network.field(name, "refused"), 0);
    }
    [at_left, at_right, at_lan].into_iter().for_each(Partner::finish);
}

#[test]
fn containers_reach_the_lan_of_the_unit_with_jumbo_frames() {
    let test = "uplink::containers_reach_the_lan_of_the_unit_with_jumbo_frames";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(2, Setup { mtu: "9000", ..TAP });
    let _hosts = [1, 2].map(|number| network.attach(number, &["--mtu", "9000"]));
    meet(test, &network, 9000).into_iter().for_each(Partner::finish);
}

#[test]
fn the_lan_keeps_nothing_of_a_host_that_is_killed() {
    let test = "uplink::the_lan_keeps_nothing_of_a_host_that_is_killed";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(1, TAP);
    let host = network.attach(1, &[]);
    let (mut at_lan, [_, v6]) = (Partner::start(command(test, ROLE)), network.containers[0].addresses());
    network.configure_lan();
    ping_from(&mut at_lan, &v6);
    host.kill();
    // One tag is for frames of the LAN.
    until(|| network.unit_line() == "unit hosts=0 pools=0 tags=1 strangers=0 closing=0");
    at_lan.finish();
}

#[test]
fn iperf3_measures_containers_and_the_lan_of_the_unit() {
    let test = "uplink::iperf3_measures_containers_and_the_lan_of_the_unit";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(2, TAP);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let [lan_v4, _] = network.configure_lan();
    iperf_both_ways(&left.enter(), &right.enter(), &right.addresses()[0]);
    iperf_both_ways(&right.enter(), &[], &lan_v4);
}
