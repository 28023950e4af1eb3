//! The status of a unit as a person sees it.

use crate::agent::{is_agent, ping_from};
use crate::network::Network;
use ironwarp_testkit::child::{Partner, in_network};

#[test]
fn the_status_of_a_unit_is_shown_once_or_with_rates() {
    let test = "status::the_status_of_a_unit_is_shown_once_or_with_rates";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    let mut at_left = network.containers[0].agent(test);
    ping_from(&mut at_left, &network.containers[1].addresses()[0]);
    let output = network.status_command("status").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    let lines: Vec<_> = table.lines().collect();
    let [unit, columns, left, right] = lines[..] else { panic!("not four lines: {table}") };
    assert!(
        unit.starts_with("2 hosts, ") && unit.ends_with(" tags, 0 connections not attached, 0 closing"),
        "{unit}"
    );
    assert!(columns.contains(" in MB ") && columns.contains(" out MB "), "{columns}");
    assert!(left.starts_with("left  ") && left.contains(" 1 10.77.0.11:"), "{left}");
    assert!(right.starts_with("right  ") && right.contains(" 2 10.77.0.12:"), "{right}");

    let mut watch = network.status_command("status");
    watch.arg("--watch");
    let mut watch = Partner::start(watch);
    for unit in ["MB", "Mbit/s", "Mbit/s"] {
        let columns = watch.wait_for("host  ");
        assert!(columns.contains(&format!(" in {unit} ")), "{columns}");
        watch.wait_for("left  ");
        watch.wait_for("right  ");
    }
    watch.kill();

    let output = network.status_command("nobody").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("failed to read the status at "), "{errors}");
    at_left.finish();
}
