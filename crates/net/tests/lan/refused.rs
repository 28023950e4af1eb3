//! What a unit refuses.

use crate::agent::{is_agent, ping_from};
use crate::network::{Network, write_private};
use ironwarp::prelude::*;
use ironwarp_io_unit::message::{Join, Message, Proof, Request};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::wait::until;
use std::time::Duration;

/// Time for a unit to close a connection: longer than its own limit.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_host_cannot_use_the_address_of_another() {
    let test = "refused::a_host_cannot_use_the_address_of_another";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let mut at_left = left.agent(test);
    let target = &right.addresses()[0];
    ping_from(&mut at_left, target);
    let mac = |line: &str| line.split("link/ether ").nth(1).unwrap()[..17].to_owned();
    let (own, other) = (mac(&left.ip("link show iw0")), mac(&right.ip("link show iw0")));
    // Frames that were sent before are all counted first.
    assert_eq!(network.field("left", "refused"), 0);
    left.ip(&format!("link set iw0 address {other}"));
    at_left.tell("ping-once 10.5.0.99");
    at_left.wait_for("pinged");
    until(|| network.field("left", "refused") > 0);
    left.ip(&format!("link set iw0 address {own}"));
    ping_from(&mut at_left, target);
    at_left.finish();
}

#[test]
fn a_host_with_a_wrong_key_or_mtu_is_refused() {
    let test = "refused::a_host_with_a_wrong_key_or_mtu_is_refused";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(1);
    let fails = |arguments: &[&str], why: &str| {
        let output = network.host_command(1, arguments).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(why), "{errors}");
    };
    fails(&["--mtu", "9001"], "MTU 9001 exceeds that of the unit: use --mtu 9000");
    fails(&["--mac", "02:00:00:00:00:99"], "failed to attach: MAC address not allowed");
    write_private(&network.directory.path("left"), "key of somebody else");
    fails(&[], "failed to attach: authentication failed");
    // The first of them had attached before it compared the MTU.
    until(|| network.status("left").is_none());
}

#[test]
fn an_invalid_setting_in_the_environment_is_refused_by_both_programs() {
    let test = "refused::an_invalid_setting_in_the_environment_is_refused_by_both_programs";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(1);
    // The unit first: its address is in use, so that it ends in any case.
    for mut command in [network.unit_command(), network.host_command(1, &[])] {
        let output = command.env("IRONWARP_SHM", "perhaps").output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains("perhaps"), "{errors}");
    }
}

#[test]
fn strangers_do_not_disturb_a_session() {
    let test = "refused::strangers_do_not_disturb_a_session";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let adapter = Adapter::new().unwrap();
    let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
    let address = network.address.parse().unwrap();
    let connect = |private_data: &[u8]| {
        let qp = domain.queue_pair(&cq).create().unwrap();
        let done = qp.connect(address, &ConnectOptions::new().private_data(private_data));
        (qp, done)
    };
    for private_data in [&b""[..], &[2], &[0, 0], &[1], &[1, 0, 0, 0, 0, 0, 0, 0, 99]] {
        assert!(connect(private_data).1.is_err(), "{private_data:?}");
    }
    // A data channel for the session of the left host: what it sends instead of a Join closes it alone.
    let session = network.field("left", "session").to_be_bytes();
    let data = [&[1], &session[..]].concat();
    let join = Join { session: network.field("left", "session"), generation: 1, proof: Proof([7; 32]) };
    for message in [vec![0; 64], Message::Request(Request::Join(join)).encode(1)] {
        let (qp, done) = connect(&data);
        done.unwrap();
        qp.post_send(WorkRequest::send_inline(1, &message)).unwrap();
        assert!(qp.wait_closed(LIMIT), "it is closed");
    }
    // Channels that say nothing are closed after a while.
    let silent = [connect(&[0]), connect(&data)];
    for (qp, done) in silent {
        done.unwrap();
        assert!(qp.wait_closed(LIMIT), "it is closed");
    }
    let mut at_left = network.containers[0].agent(test);
    ping_from(&mut at_left, &network.containers[1].addresses()[0]);
    assert_eq!(network.field("left", "session").to_be_bytes(), session, "the same session");
    at_left.finish();
}
