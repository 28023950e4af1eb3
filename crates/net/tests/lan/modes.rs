//! Ways for a frame to travel: Writes with immediate data or an indication behind them, and Sends.

use crate::agent::{datagram_of, is_agent, ping_from, stream_of};
use crate::network::{Network, Setup};
use crate::traffic::exchange;
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::tshark::tshark;
use ironwarp_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

#[test]
fn frames_above_65_535_bytes_arrive_with_an_indication() {
    let test = "modes::frames_above_65_535_bytes_arrive_with_an_indication";
    if is_agent() || !in_network(test) {
        return;
    }
    // With 14 bytes of the Ethernet header and 12 of the virtio header, the longest packet is a frame of 65,547 bytes.
    let network = Network::start_with(2, Setup { mtu: "65521", captures: true, ..Setup::default() });
    let _hosts = [1, 2].map(|number| network.attach(number, &["--mtu", "65521"]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    let ([left_v4, left_v6], [right_v4, right_v6]) = (left.addresses(), right.addresses());
    datagram_of(65_521 - 28, &mut at_left, &mut at_right, &right_v4);
    datagram_of(65_521 - 48, &mut at_right, &mut at_left, &left_v6);
    stream_of(4 << 20, &mut at_left, &mut at_right, &right_v6);
    stream_of(4 << 20, &mut at_right, &mut at_left, &left_v4);
    for name in ["left", "right"] {
        assert_eq!(network.field(name, "refused"), 0);
    }
    at_left.finish();
    at_right.finish();
    let unit = network.address.rsplit(':').next().unwrap();
    let sends = sends(&network.directory.path("unit.pcap"));
    let indications: Vec<_> = sends.iter().filter(|(_, function)| function == "0009").collect();
    let from_unit = indications.iter().filter(|(from, _)| from == unit).count();
    assert!(from_unit >= 4, "{from_unit} from the unit: two datagrams, and both again");
    assert!(indications.len() - from_unit >= 4, "{} to the unit", indications.len() - from_unit);
}

/// Returns the TCP port that has sent each Send in a capture, and its function: the first two bytes behind the headers of MPA,
/// DDP and RDMAP.
fn sends(file: &Path) -> Vec<(String, String)> {
    let fields = ["-T", "fields", "-e", "tcp.srcport", "-e", "tcp.payload"];
    let text = tshark(file, &[&["-Y", "iwarp_rdma.opcode == 3"], &fields[..]].concat());
    text.lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(from, bytes)| (from.to_owned(), bytes[40..44].to_owned()))
        .collect()
}

#[test]
fn hosts_in_send_and_in_rdma_mode_share_a_lan() {
    let test = "modes::hosts_in_send_and_in_rdma_mode_share_a_lan";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let _hosts = [network.attach(1, &["--mode", "send"]), network.attach(2, &[])];
    exchange(test, &network);
    for (name, session) in [("left", 1), ("right", 2)] {
        assert_eq!(network.field(name, "session"), session, "the same session as in the beginning");
    }
}

#[test]
fn a_host_that_stalls_keeps_its_session() {
    let test = "modes::a_host_that_stalls_keeps_its_session";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let hosts = [network.attach(1, &["--mode", "send"]), network.attach(2, &["--mode", "rdma"])];
    let mut agents: Vec<_> = network.containers.iter().map(|container| container.agent(test)).collect();
    for (stalled, name, other) in [(0, "left", 1), (1, "right", 0)] {
        let [address, _] = network.containers[stalled].addresses();
        ping_from(&mut agents[other], &address);
        let process = Pid::from_raw(hosts[stalled].id().try_into().unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        until(|| {
            agents[other].tell(&format!("flood {address}"));
            agents[other].wait_for("flooded");
            network.field(name, "stalls") > 0 && network.field(name, "drops") > 0
        });
        kill_process(process, Signal::CONT).unwrap();
        ping_from(&mut agents[other], &address);
        let [from, to] = agents.get_disjoint_mut([other, stalled]).unwrap();
        stream_of(4 << 20, from, to, &address);
        stream_of(4 << 20, to, from, &network.containers[other].addresses()[0]);
    }
    for (name, session) in [("left", 1), ("right", 2)] {
        assert_eq!(network.field(name, "session"), session, "the same session as in the beginning");
    }
    agents.into_iter().for_each(Partner::finish);
}

#[test]
fn a_long_stream_arrives_byte_by_byte() {
    let test = "modes::a_long_stream_arrives_byte_by_byte";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    stream_of(1 << 30, &mut at_left, &mut at_right, &right.addresses()[0]);
    at_left.finish();
    at_right.finish();
}
