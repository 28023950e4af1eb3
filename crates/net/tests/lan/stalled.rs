//! Eight hosts with a fixed load, one of which stalls: the others do not notice.

use crate::agent::is_agent;
use crate::client::Client;
use crate::kills::process;
use crate::load::{count, is_load, start, wait_for_count};
use crate::network::{CLIENTS, Network};
use ironwarp::prelude::*;
use ironwarp_io_unit::message::{Mac, Message};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::long_form;
use ironwarp_testkit::wait::until;
use rustix::process::{Signal, kill_process};
use std::thread;
use std::time::{Duration, Instant};

/// Number of hosts that behave. There is one more.
const OTHERS: usize = 7;
/// Megabits a second that each host sends: far below what a unit can forward.
const RATE: u64 = if cfg!(debug_assertions) { 1 } else { 10 };
/// Megabits a second to the last host: more than it has room for while it stalls.
const LAST_RATE: u64 = 6 * RATE;
/// Time between the changes of a host that is slow.
const SLICE: Duration = Duration::from_millis(50);

/// Length of a measurement. Shorter than the time after which a unit gives up a host that hangs.
fn period() -> Duration {
    Duration::from_millis(if long_form::is_requested() { 4000 } else { 1200 })
}

/// Containers that send datagrams to each other in a ring, and one more.
struct Ring {
    /// Sender and receiver of each flow that the last host has no part in.
    flows: Vec<(Partner, Partner)>,
    /// Those from and to the last host.
    others: Vec<(Partner, Partner)>,
}

impl Ring {
    /// Every host sends to the next, and the first also to the last one of all, which sends to the first.
    fn start(test: &str, network: &Network) -> Self {
        let flow = |from: usize, to: usize, rate: u64| {
            let (from, to) = (&network.containers[from], &network.containers[to]);
            let (mut sender, mut receiver) = (start(test, from), start(test, to));
            receiver.tell(&format!("datagrams {}", to.addresses()[0]));
            sender.tell(&format!("flood {} {rate}", receiver.wait_for("listening at ")));
            (sender, receiver)
        };
        let flows = (0..OTHERS).map(|from| flow(from, (from + 1) % OTHERS, RATE)).collect();
        Self { flows, others: vec![flow(0, OTHERS, LAST_RATE), flow(OTHERS, 0, RATE)] }
    }

    /// Returns the throughput of each flow in Mbit/s, while `meanwhile` runs. Panics unless 90 % of what is sent meanwhile
    /// arrives in time.
    fn throughput(&mut self, meanwhile: impl FnOnce()) -> Vec<f64> {
        let start = Instant::now();
        let count = |(sender, receiver): &mut (Partner, Partner)| (count(sender), count(receiver));
        let before: Vec<_> = self.flows.iter_mut().map(count).collect();
        meanwhile();
        thread::sleep(period().saturating_sub(start.elapsed()));
        let (time, after): (_, Vec<_>) = (start.elapsed(), self.flows.iter_mut().map(count).collect());
        let flows = self.flows.iter_mut().zip(before).zip(after);
        let received = flows.map(|(((_, receiver), before), after)| {
            // The machine may be busy: what is on its way still arrives, while the other host stalls.
            wait_for_count(receiver, before.1 + (after.0 - before.0) * 9 / 10);
            after.1 - before.1
        });
        received.map(|bytes| bytes as f64 * 8.0 / time.as_secs_f64() / 1e6).collect()
    }
}

#[test]
fn a_host_that_stalls_costs_the_others_no_throughput() {
    let test = "stalled::a_host_that_stalls_costs_the_others_no_throughput";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let network = Network::start(OTHERS + 1);
    let mut hosts: Vec<_> = (1..=OTHERS + 1).map(|number| network.attach(number, &[])).collect();
    let mut ring = Ring::start(test, &network);
    let last = process(&hosts[OTHERS]);
    let session = network.field("eighth", "session");
    ring.throughput(|| ()); // addresses are resolved
    let usual = ring.throughput(|| ());

    let slow = ring.throughput(|| {
        let start = Instant::now();
        while start.elapsed() < period() {
            for signal in [Signal::STOP, Signal::CONT] {
                kill_process(last, signal).unwrap();
                thread::sleep(SLICE);
            }
        }
    });
    compare(&usual, &slow, &network, "slow");
    kill_process(last, Signal::STOP).unwrap();
    let before = network.field("eighth", "drops");
    let stalled = ring.throughput(|| {
        // Before the unit gives it up.
        until(|| network.field("eighth", "drops") > before);
        assert!(network.field("eighth", "stalls") > 0);
        assert_eq!(network.field("eighth", "session"), session, "it was attached all the time");
    });
    compare(&usual, &stalled, &network, "stalled");
    ring.others.clear();
    hosts.pop().unwrap().kill();

    // A host that takes frames, and never returns the elements that they use.
    let adapter = Adapter::new().unwrap();
    let client = Client::attach(&adapter, network.address.parse().unwrap(), 0);
    client.advertise(client.pool(0));
    // The unit learns where its address is.
    client.data.say(0, &Message::SendData(&client.frame(client.mac, Mac([0xff; 6]), 60)));
    let first = &network.containers[0];
    first.ip(&format!("neigh replace 10.5.0.66 lladdr {} dev iw0 nud permanent", CLIENTS[0].1));
    let mut flood = start(test, first);
    flood.tell(&format!("flood 10.5.0.66:9 {LAST_RATE}"));
    let hoarded = ring.throughput(|| ());
    compare(&usual, &hoarded, &network, "without elements");
    assert!(network.field("hostile", "drops") > 0);
    assert!(network.field("hostile", "stalls") > 0);
}

/// Prints what was found. Checks in the long form that each flow has at least 90 % of its usual throughput.
fn compare(usual: &[f64], found: &[f64], network: &Network, what: &str) {
    let others = network.field("middle", "drops");
    println!("{what}: {found:.1?} of {usual:.1?} Mbit/s; drops of another host {others}");
    for (found, usual) in found.iter().zip(usual).filter(|_| long_form::is_requested()) {
        assert!(*found >= 0.9 * usual, "{what}: {found} of {usual} Mbit/s");
        assert!(*usual >= 0.8 * RATE as f64, "{usual} Mbit/s, expected {RATE}");
    }
}
