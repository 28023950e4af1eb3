//! Traffic between containers on two hosts.

use crate::agent::{ROLE, is_agent, ping_from, stream};
use crate::network::Network;
use ironwarp_testkit::child::{Partner, in_front, in_network};

/// Pings in both directions and over both IP versions, and sends a stream in each direction. No frame is refused.
pub(crate) fn exchange(test: &str, network: &Network) {
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    let ([left_v4, left_v6], [right_v4, right_v6]) = (left.addresses(), right.addresses());
    for (to_left, to_right) in [(&left_v4, &right_v4), (&left_v6, &right_v6)] {
        ping_from(&mut at_left, to_right);
        ping_from(&mut at_right, to_left);
    }
    stream(&mut at_left, &mut at_right, &right_v4);
    stream(&mut at_right, &mut at_left, &left_v6);
    for name in ["left", "right"] {
        let (frames, bytes) = (network.field(name, "frames_in"), network.field(name, "bytes_in"));
        assert!(bytes > 64 << 20, "{name}: {frames} frames with {bytes} bytes");
        assert_eq!(network.field(name, "refused"), 0);
    }
    at_left.finish();
    at_right.finish();
}

fn exchange_with(test: &str, arguments: &[&str]) -> ([Partner; 2], Network) {
    let network = Network::start(2);
    let hosts = [1, 2].map(|number| network.attach(number, arguments));
    exchange(test, &network);
    (hosts, network)
}

#[test]
fn containers_on_two_hosts_share_a_lan() {
    let test = "traffic::containers_on_two_hosts_share_a_lan";
    if is_agent() || !in_network(test) {
        return;
    }
    let (_hosts, network) = exchange_with(test, &[]);
    let (frames, bytes) = (network.field("left", "frames_in"), network.field("left", "bytes_in"));
    assert!(bytes / frames > 1526, "super-packets of {} bytes on average", bytes / frames);
}

#[test]
fn containers_exchange_jumbo_frames() {
    let test = "traffic::containers_exchange_jumbo_frames";
    if is_agent() || !in_network(test) {
        return;
    }
    let (_hosts, network) = exchange_with(test, &["--mtu", "9000"]);
    assert!(network.containers[0].ip("link show iw0").contains(" mtu 9000 "));
}

#[test]
fn a_host_takes_part_with_a_tap_device_of_its_own() {
    let test = "traffic::a_host_takes_part_with_a_tap_device_of_its_own";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(1);
    let _left = network.attach(1, &[]);
    let host = &network.hosts[1];
    let _right = network.attach_host(host, "right", "tap7");
    host.ip("addr add 10.5.0.2/24 dev tap7");
    host.ip("link set tap7 up");
    let container = &network.containers[0];
    let mut at_left = container.agent(test);
    let mut at_right = Partner::start(in_front(&["nsenter", &host.namespace()], test, ROLE));
    ping_from(&mut at_left, "10.5.0.2");
    ping_from(&mut at_right, &container.addresses()[0]);
    at_left.finish();
    at_right.finish();
}
