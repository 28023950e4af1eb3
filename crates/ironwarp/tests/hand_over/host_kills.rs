//! Processes that are killed or stopped, and moves that are refused, while an adapter moves to another host under full load. There
//! is never a second owner, and nothing is lost unless the only owner was killed.

use super::hosts::{begin_move, move_to, start};
use super::scene::{Disturbed, Peer, Process, disturb};
use ironwarp::prelude::*;
use ironwarp_testkit::control::Random;
use ironwarp_testkit::hosts::{Host, INTERFACE, MOVING, PEER, two_hosts};
use ironwarp_testkit::net::ip;
use ironwarp_testkit::{child, long_form};

/// Steps of the source before it gives the adapter away, and whether it has the address then.
const SOURCE: [(&str, bool); 7] = [
    ("HelloReceived", true),
    ("Copied", true),
    ("Ready", true),
    ("Frozen", true),
    ("Fenced", false),
    ("Offered", false),
    ("Loaded", false),
];
/// Steps of the target before it has told the source that it has loaded everything.
const TARGET: [&str; 4] = ["HelloReceived", "ReadySent", "Offered", "Loaded"];
/// Timeouts of a source that gives up soon, in milliseconds.
const HASTY: &str = "300 300";
/// Timeouts of a source that does not give up.
const PATIENT: &str = "60000 60000";

/// A move from the first host to the second.
struct Scene<'a> {
    hosts: &'a [Host; 2],
    peer: Peer,
    source: Process,
    target: Process,
    context: String,
}

/// Connects an adapter on the first host to one that stays.
fn connected(host: &Host) -> (Peer, Process) {
    let source = start(host);
    let (at, from) = (format!("{PEER}:0"), format!("{MOVING}:0"));
    let peer = Peer::connected_to(&source, Adapter::new().unwrap(), &at, &from);
    peer.goes_on("before the move");
    (peer, source)
}

impl<'a> Scene<'a> {
    /// Starts a move under load. The processes stop or kill themselves at the steps given.
    fn start(hosts: &'a [Host; 2], timeouts: &str, acts: [&str; 2]) -> Self {
        hosts[0].ip(&format!("addr replace {MOVING}/24 dev {INTERFACE}"));
        ip("neigh flush dev br0"); // the last scene may have left the address at the other host
        let context = format!("source {:?}, target {:?}", acts[0], acts[1]);
        let (peer, source) = connected(&hosts[0]);
        let target = begin_move(&source, &hosts[1], timeouts, acts);
        Self { hosts, peer, source, target, context }
    }

    /// Checks who has the address, and whether the connections go on there.
    fn ends_at(self, owner: Option<usize>) {
        let addresses = [0, 1].map(|host: usize| self.hosts[host].has_address(MOVING));
        assert_eq!(addresses, [0, 1].map(|host| owner == Some(host)), "{}", self.context);
        let owner = match owner {
            Some(0) => &self.source,
            Some(_) => &self.target,
            None => return, // the peer finds out when TCP gives up, half a minute later
        };
        self.peer.goes_on(&self.context);
        self.peer.finish(owner);
        if addresses[1] {
            self.hosts[1].ip(&format!("addr del {MOVING}/24 dev {INTERFACE}"));
        }
    }

    /// Checks that the source has given the adapter away, and lets the target post what the source could not.
    fn given(&self) {
        let given = self.source.says();
        let flooded = given.strip_prefix("ok ").unwrap_or_else(|| panic!("{}: {given}", self.context));
        self.target.tell(&format!("flood {flooded}"), None);
    }

    fn taken(&self) {
        assert_eq!(self.target.says(), "ok taken", "{}", self.context);
    }

    fn fails(&self, process: &Process, owner: &str) -> String {
        let said = process.says();
        assert!(said.starts_with(&format!("err {owner}: ")), "{}: {said}", self.context);
        said
    }

    /// Waits until a process has stopped or killed itself.
    fn acts(&self, process: &Process, is_stopped: bool) {
        assert_eq!(process.says(), "at", "{}", self.context);
        assert_eq!(process.is_stopped(), is_stopped, "{}", self.context);
    }
}

#[test]
fn a_target_never_acts_for_a_source_that_is_killed_before_it_commits() {
    if !child::in_network("host_kills::a_target_never_acts_for_a_source_that_is_killed_before_it_commits") {
        return;
    }
    let hosts = two_hosts();
    for (step, has_address) in SOURCE {
        let scene = Scene::start(&hosts, PATIENT, [&format!("{step}=kill"), ""]);
        scene.acts(&scene.source, false);
        scene.fails(&scene.target, "Source");
        if has_address {
            // The kernel of the first host ends the connections.
            scene.peer.ends(&scene.context);
            assert!(
                scene.hosts[0].has_address(MOVING) && !scene.hosts[1].has_address(MOVING),
                "{}",
                scene.context
            );
        } else {
            scene.ends_at(None);
        }
    }
}

#[test]
fn a_source_that_is_killed_or_stopped_after_it_has_committed_is_not_needed() {
    if !child::in_network(
        "host_kills::a_source_that_is_killed_or_stopped_after_it_has_committed_is_not_needed",
    ) {
        return;
    }
    let hosts = two_hosts();
    for act in ["kill", "stop"] {
        let scene = Scene::start(&hosts, PATIENT, [&format!("Committed={act}"), ""]);
        scene.acts(&scene.source, act == "stop");
        scene.taken();
        scene.peer.goes_on(&scene.context);
        if act == "stop" {
            scene.source.go_on();
            scene.given();
        }
        scene.ends_at(Some(1));
    }
}

#[test]
fn a_source_keeps_its_connections_if_the_target_is_killed_or_stopped() {
    if !child::in_network("host_kills::a_source_keeps_its_connections_if_the_target_is_killed_or_stopped") {
        return;
    }
    let hosts = two_hosts();
    for step in TARGET {
        let scene = Scene::start(&hosts, PATIENT, ["", &format!("{step}=kill")]);
        scene.acts(&scene.target, false);
        scene.fails(&scene.source, "Source");
        scene.ends_at(Some(0));
        let scene = Scene::start(&hosts, HASTY, ["", &format!("{step}=stop")]);
        // The source kills the command when it gives up.
        scene.fails(&scene.source, "Source");
        scene.ends_at(Some(0));
    }
}

#[test]
fn a_source_that_is_stopped_for_a_while_moves_its_connections() {
    if !child::in_network("host_kills::a_source_that_is_stopped_for_a_while_moves_its_connections") {
        return;
    }
    let hosts = two_hosts();
    for (step, _) in SOURCE {
        let scene = Scene::start(&hosts, PATIENT, [&format!("{step}=stop"), ""]);
        scene.acts(&scene.source, true);
        scene.source.go_on();
        scene.taken();
        scene.given();
        scene.ends_at(Some(1));
    }
}

#[test]
fn a_target_that_answers_late_owns_what_the_source_has_given_away() {
    if !child::in_network("host_kills::a_target_that_answers_late_owns_what_the_source_has_given_away") {
        return;
    }
    let hosts = two_hosts();
    let scene = Scene::start(&hosts, "400 60000", ["", "LoadedSent=stop"]);
    scene.acts(&scene.target, true);
    let said = scene.fails(&scene.source, "Target");
    assert!(said.contains("has not confirmed"), "{said}");
    scene.target.go_on();
    scene.taken();
    scene.ends_at(Some(1));
}

#[test]
fn what_cannot_be_fenced_or_taken_stays_where_it_is() {
    if !child::in_network("host_kills::what_cannot_be_fenced_or_taken_stays_where_it_is") {
        return;
    }
    let hosts = two_hosts();
    let (peer, source) = connected(&hosts[0]);
    let refused = |why: &str| {
        let target = begin_move(&source, &hosts[1], PATIENT, ["", ""]);
        let (given, taken) = (source.says(), target.says());
        assert!(given.starts_with("err Source: ") && given.contains(why), "{given}");
        assert!(taken.starts_with("err Source: ") && taken.contains(why), "{taken}");
        peer.goes_on(why);
    };
    hosts[1].ip(&format!("addr add {MOVING}/24 dev {INTERFACE}"));
    refused("is still an address of this host");
    hosts[1].ip(&format!("addr del {MOVING}/24 dev {INTERFACE}"));
    hosts[1].ip(&format!("link set {INTERFACE} down"));
    refused("is down");
    hosts[1].ip(&format!("link set {INTERFACE} up"));
    hosts[0].ip(&format!("addr add {MOVING}/32 dev lo"));
    refused("is assigned to several interfaces");
    hosts[0].ip(&format!("addr del {MOVING}/32 dev lo"));
    // A route that keeps the address local, whatever the interfaces have.
    hosts[0].ip(&format!("route add local {MOVING}/32 dev lo table 99"));
    hosts[0].ip(&format!("rule add to {MOVING} lookup 99 pref 1"));
    refused("is still an address of this host");
    hosts[0].ip("rule del pref 1");
    let target = move_to(&source, &hosts[1]);
    peer.goes_on("after the move");
    peer.finish(&target);
}

#[test]
fn processes_that_are_killed_or_stopped_at_random_instants_leave_one_owner() {
    if !child::in_network(
        "host_kills::processes_that_are_killed_or_stopped_at_random_instants_leave_one_owner",
    ) {
        return;
    }
    let hosts = two_hosts();
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let cases = if long_form::is_requested() { 200 } else { 6 };
    for case in 0..cases {
        let mut scene = Scene::start(&hosts, "60000 600", ["", ""]);
        let Disturbed { is_source, is_kill, given, taken, how } =
            disturb(&mut random, [&scene.source, &scene.target], [80_000, 900_000]);
        let context = format!("seed {seed}, case {case}: {how}");
        scene.context.clone_from(&context);
        let is_given = given.starts_with("ok ") || given.starts_with("err Target");
        let is_taken = taken == "ok taken";
        let owner = match (is_source, is_kill) {
            _ if is_given && !is_taken && !is_kill => panic!("{context}"),
            (_, false) if is_given => Some(1),
            (_, false) => Some(0),
            // What is killed may have said how it ended before, or may have committed and not said so.
            (true, true) => is_taken.then_some(1),
            (false, true) => (!is_given).then_some(0),
        };
        if owner.is_none() {
            // The only owner was killed. Both never have the address.
            assert!(!scene.hosts.iter().all(|host| host.has_address(MOVING)), "{context}");
            hosts[1].ip(&format!("addr flush dev {INTERFACE} to {MOVING}"));
            continue;
        }
        if owner == Some(1)
            && let Some(flooded) = given.strip_prefix("ok ")
        {
            scene.target.tell(&format!("flood {flooded}"), None);
        }
        scene.ends_at(owner);
    }
}
