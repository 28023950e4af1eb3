//! Injected faults of the connections between a unit and its hosts (docs/faults.md).

use crate::agent::{is_agent, ping_from, stream, stream_of};
use crate::network::{Container, Network, Setup};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::wait::until;

const HARMLESS: &[(&str, &str)] =
    &[("IRONWARP_FAULTS", "split=0.2,delay=50us..200us@0.02,stall=50us..200us@0.02,no-receive@0.02")];

#[test]
fn streams_arrive_in_spite_of_split_and_late_segments() {
    let test = "faults::streams_arrive_in_spite_of_split_and_late_segments";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(2, Setup { environment: HARMLESS, ..Setup::default() });
    let _hosts = [1, 2].map(|number| network.attach_with(number, &[], HARMLESS));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    ping_from(&mut at_left, &right.addresses()[1]);
    stream(&mut at_left, &mut at_right, &right.addresses()[0]);
    stream(&mut at_right, &mut at_left, &left.addresses()[1]);
    for (name, session) in [("left", 1), ("right", 2)] {
        assert_eq!(network.field(name, "session"), session, "the same session as in the beginning");
    }
    at_left.finish();
    at_right.finish();
}

#[test]
fn a_host_whose_connections_are_cut_attaches_again() {
    let test = "faults::a_host_whose_connections_are_cut_attaches_again";
    if is_agent() || !in_network(test) {
        return;
    }
    // Each session has a greater number than all before it.
    const ENOUGH: u64 = 5;
    let mut network = Network::start(2);
    let _left = network.attach(1, &[]);
    let cut = network.attach_with(2, &[], &[("IRONWARP_FAULTS", "cut@0.01")]);
    let mut agents: Vec<_> = network.containers.iter().map(|container| container.agent(test)).collect();
    let addresses: Vec<_> = network.containers.iter().map(Container::addresses).collect();
    while network.field_if_attached("right", "session").is_none_or(|number| number < ENOUGH) {
        for (from, to) in [(0, 1), (1, 0)] {
            agents[from].tell(&format!("flood {}", addresses[to][0]));
            agents[from].wait_for("flooded");
            addresses[to].iter().for_each(|address| ping_from(&mut agents[from], address));
        }
    }
    for session in 2..ENOUGH {
        let why = network.unit.as_mut().unwrap().wait_for("host right left session ");
        let lost = why == format!("{session}: connection lost");
        // It may be faster than the news of the lost connection.
        let replaced = why.starts_with(&format!("{session}: the host has attached again"));
        assert!(lost || replaced, "{why}");
    }

    cut.kill();
    until(|| network.status("right").is_none());
    let _right = network.attach(2, &[]);
    let [at_left, at_right] = &mut agents[..] else { unreachable!("two agents") };
    stream_of(4 << 20, at_left, at_right, &addresses[1][0]);
    stream_of(4 << 20, at_right, at_left, &addresses[0][1]);
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    agents.into_iter().for_each(Partner::finish);
}
