//! Hosts and units that are killed again and again while containers exchange frames, and a unit that hangs.

use crate::agent::{is_agent, ping_from};
use crate::load::{Stream, count, goes_on, is_load, start};
use crate::network::{Container, Network};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::long_form;
use ironwarp_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};

/// Bytes that have arrived before a kill.
const BEFORE: u64 = 1 << 20;
/// Largest growth of a host's memory over all kills, in KiB: a session has 7 MiB, not all of which it uses at first.
const MAX_GROWTH: u64 = 16 << 10;

fn kills() -> usize {
    if long_form::is_requested() { 100 } else { 4 }
}

/// Time for a link to be back. The short form runs beside other tests, on a machine that may be busy.
fn limit() -> Duration {
    Duration::from_secs(if long_form::is_requested() { 3 } else { 10 })
}

#[test]
fn a_host_that_is_killed_many_times_leaves_nothing_behind() {
    let test = "kills::a_host_that_is_killed_many_times_leaves_nothing_behind";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let mut network = Network::start(3);
    let nobody = network.unit_line();
    let mut hosts = attach_all(&network);
    let before = settled(&network);
    let mut agents = agents(&network, test);
    let [left, right, middle] = &network.containers[..] else { unreachable!("three containers") };
    let mut third = start(test, middle);
    third.tell(&format!("beat {}", left.addresses()[0]));
    let mut slowest = Duration::ZERO;
    for _ in 0..kills() {
        let mut stream = Stream::start(test, left, right, 0);
        goes_on(&mut stream.receiver, BEFORE);
        let killed = Instant::now();
        hosts.remove(1).kill();
        hosts.insert(1, network.attach(2, &[]));
        ping_from(&mut agents[0], &right.addresses()[0]);
        slowest = slowest.max(killed.elapsed());
        network.unit.as_mut().unwrap().wait_for("host right left session ");
        goes_on(&mut third, 1);
    }
    third.tell("slowest");
    let gap: u64 = third.wait_for("slowest ").parse().unwrap();
    println!("{} kills: link back after {slowest:?} or less, pings of others {gap} ms or less", kills());
    assert!(slowest < limit(), "{slowest:?}");
    assert!(u128::from(gap) < limit().as_millis(), "a ping of another host took {gap} ms");
    assert!(count(&mut third) >= kills() as u64);
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    assert_eq!(network.field("middle", "session"), 3, "the same session as in the beginning");

    // The others may have been granted further pools under load: without them, nothing is left.
    drop(third);
    hosts.into_iter().for_each(Partner::kill);
    until(|| network.unit_line() == nobody);
    let _hosts = attach_all(&network);
    until(|| network.unit_line() == before);
    agents.into_iter().for_each(Partner::finish);
}

#[test]
fn hosts_survive_a_unit_that_is_killed_many_times() {
    let test = "kills::hosts_survive_a_unit_that_is_killed_many_times";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let mut network = Network::start(3);
    let mut hosts = attach_all(&network);
    let before = settled(&network);
    let mut agents = agents(&network, test);
    let first = kills() / 10 + 1;
    let (mut slowest, mut usages) = (Duration::ZERO, Vec::new());
    for round in 0..kills() {
        let [left, right, _] = &network.containers[..] else { unreachable!("three containers") };
        let mut stream = Stream::start(test, left, right, 0);
        goes_on(&mut stream.receiver, BEFORE);
        let address = right.addresses()[0].clone();
        let killed = Instant::now();
        network.unit.take().unwrap().kill();
        network.start_unit();
        ping_from(&mut agents[0], &address);
        slowest = slowest.max(killed.elapsed());
        drop(stream);
        hosts.iter_mut().for_each(|host| drop(host.wait_for("attached to ")));
        ping_from(&mut agents[2], &address);
        if round + 1 == first || round + 1 == kills() {
            usages.push(hosts.iter().map(Usage::of).collect::<Vec<_>>());
        }
    }
    println!("{} kills: link back after {slowest:?} or less; {usages:?}", kills());
    assert!(slowest < limit(), "{slowest:?}");
    for (early, late) in usages[0].iter().zip(&usages[1]) {
        // Less than one for each kill: the adapter closes some a moment later.
        assert!(late.descriptors < early.descriptors + kills() - first, "{early:?} {late:?}");
        assert_eq!(early.threads, late.threads);
        assert!(late.resident <= early.resident + MAX_GROWTH, "{early:?} {late:?}");
    }
    // A unit that no frames have been sent to yet.
    network.unit.take().unwrap().kill();
    network.start_unit();
    until(|| network.unit_line() == before);
    agents.into_iter().for_each(Partner::finish);
}

#[test]
fn a_unit_that_hangs_is_noticed_by_its_hosts() {
    let test = "kills::a_unit_that_hangs_is_noticed_by_its_hosts";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let network = Network::start(3);
    let mut hosts = attach_all(&network);
    let before = settled(&network);
    let mut agents = agents(&network, test);
    let target = &network.containers[1].addresses()[0];
    ping_from(&mut agents[0], target);
    let unit = process(network.unit.as_ref().unwrap());
    let stopped = Instant::now();
    kill_process(unit, Signal::STOP).unwrap();
    for container in &network.containers {
        until(|| container.ip("link show iw0").contains("NO-CARRIER"));
    }
    let noticed = stopped.elapsed();
    kill_process(unit, Signal::CONT).unwrap();
    println!("noticed after {noticed:?}");
    // A request every 5 s, 5 s for its answer, a timer of 1 s, and a machine that may be busy.
    assert!(noticed < Duration::from_secs(16), "{noticed:?}");
    hosts.iter_mut().for_each(|host| drop(host.wait_for("attached to ")));
    ping_from(&mut agents[0], target);
    until(|| network.unit_line() == before);
    agents.into_iter().for_each(Partner::finish);
}

fn attach_all(network: &Network) -> Vec<Partner> {
    (1..=network.containers.len()).map(|number| network.attach(number, &[])).collect()
}

fn agents(network: &Network, test: &str) -> Vec<Partner> {
    network.containers.iter().map(|container: &Container| container.agent(test)).collect()
}

/// Waits until all hosts have advertised their pools, and returns the line about the unit.
fn settled(network: &Network) -> String {
    let hosts = network.containers.len();
    let expected = format!("unit hosts={hosts} pools={} ", 4 * hosts);
    until(|| network.unit_line().starts_with(&expected));
    network.unit_line()
}

pub(crate) fn process(program: &Partner) -> Pid {
    Pid::from_raw(program.id().try_into().unwrap()).unwrap()
}

/// What a process uses.
#[derive(Debug)]
struct Usage {
    descriptors: usize,
    threads: u64,
    /// KiB of memory.
    resident: u64,
    #[expect(dead_code, reason = "printed")]
    data: u64,
}

impl Usage {
    fn of(program: &Partner) -> Self {
        let directory = format!("/proc/{}", program.id());
        let status = fs::read_to_string(format!("{directory}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
        };
        Self {
            descriptors: fs::read_dir(format!("{directory}/fd")).unwrap().count(),
            threads: field("Threads"),
            resident: field("VmRSS"),
            data: field("VmData"),
        }
    }
}
