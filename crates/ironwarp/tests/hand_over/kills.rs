//! Processes that are killed or stopped while the end that moves is handed over under full load. There is exactly one owner
//! afterwards, or the peer sees the connections end if the only owner was killed.

use super::scene::{Disturbed, Peer, Process, disturb};
use ironwarp_testkit::control::{Random, pair};
use ironwarp_testkit::long_form;

/// Steps of the source, and whether the adapter is offered by then.
const SOURCE: [(&str, bool); 6] = [
    ("HelloReceived", false),
    ("Copied", false),
    ("Ready", false),
    ("Frozen", false),
    ("Offered", true),
    ("Taken", true),
];
/// Steps of the target, and whether it owns the adapter then.
const TARGET: [(&str, bool); 5] = [
    ("HelloReceived", false),
    ("ReadySent", false),
    ("Offered", false),
    ("Loaded", false),
    ("TakenSent", true),
];
/// Timeouts of a source that gives up soon, in milliseconds.
const HASTY: &str = "150 150";
/// Timeouts of a source that does not give up.
const PATIENT: &str = "60000 60000";

/// A hand-over.
struct Scene {
    peer: Peer,
    source: Process,
    target: Process,
    context: String,
}

/// Who owns the end that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Source,
    Target,
    Lost,
}

impl Scene {
    /// Starts a hand-over under load. The processes stop or kill themselves at the steps given.
    fn start(timeouts: &str, source_acts: &str, target_acts: &str) -> Self {
        let (peer, source) = Peer::start();
        let target = Process::start();
        let context = format!("source {source_acts:?}, target {target_acts:?}");
        peer.goes_on(&context);
        let (here, there) = pair();
        target.tell(format!("take 60000 {target_acts}").trim_end(), Some(there));
        source.tell(format!("give {timeouts} {source_acts}").trim_end(), Some(here));
        Self { peer, source, target, context }
    }

    /// Checks that the source has handed over, and lets the target post what the source could not.
    fn given(&self) {
        let given = self.source.says();
        let flooded = given.strip_prefix("ok ").unwrap_or_else(|| panic!("{}: {given}", self.context));
        self.target.tell(&format!("flood {flooded}"), None);
    }

    fn taken(&self) {
        let taken = self.target.says();
        assert!(taken.starts_with("ok "), "{}: {taken}", self.context);
    }

    fn fails(&self, process: &Process, owner: &str) {
        let said = process.says();
        assert!(said.starts_with(&format!("err {owner}: ")), "{}: {said}", self.context);
    }

    /// Waits until a process has stopped or killed itself.
    fn acts(&self, process: &Process, is_stopped: bool) {
        assert_eq!(process.says(), "at", "{}", self.context);
        assert_eq!(process.is_stopped(), is_stopped, "{}", self.context);
    }

    /// Checks who owns the end that moves, and that everything has arrived there exactly once.
    fn ends_at(self, fate: Fate) {
        let Self { peer, source, target, context } = self;
        let owner = match fate {
            Fate::Source => source,
            Fate::Target => target,
            Fate::Lost => {
                peer.ends(&context);
                assert!(peer.stop().1.is_err(), "{context}");
                return;
            }
        };
        peer.goes_on(&context);
        peer.finish(&owner);
    }
}

#[test]
fn a_source_that_is_killed_before_its_offer_ends_the_connections() {
    for (step, _) in SOURCE.iter().filter(|(_, offered)| !offered) {
        let scene = Scene::start(PATIENT, &format!("{step}=kill"), "");
        scene.acts(&scene.source, false);
        scene.fails(&scene.target, "Nobody");
        scene.ends_at(Fate::Lost);
    }
}

#[test]
fn a_source_that_is_killed_after_its_offer_leaves_the_connections_to_the_target() {
    for (step, _) in SOURCE.iter().filter(|(_, offered)| *offered) {
        let scene = Scene::start(PATIENT, &format!("{step}=kill"), "");
        scene.acts(&scene.source, false);
        scene.taken();
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_target_that_is_killed_before_it_has_taken_leaves_the_connections_to_the_source() {
    for (step, _) in TARGET.iter().filter(|(_, taken)| !taken) {
        let scene = Scene::start(PATIENT, "", &format!("{step}=kill"));
        scene.acts(&scene.target, false);
        scene.fails(&scene.source, "Source");
        scene.ends_at(Fate::Source);
    }
}

#[test]
fn a_target_that_is_killed_after_it_has_taken_ends_the_connections() {
    let scene = Scene::start(PATIENT, "", "TakenSent=kill");
    scene.acts(&scene.target, false);
    assert!(scene.source.says().starts_with("ok "));
    scene.ends_at(Fate::Lost);
}

#[test]
fn a_source_that_is_stopped_for_a_while_hands_its_connections_over() {
    for (step, offered) in SOURCE {
        let scene = Scene::start(PATIENT, &format!("{step}=stop"), "");
        scene.acts(&scene.source, true);
        if offered {
            // The target does not wait for the source.
            scene.taken();
            scene.peer.goes_on(&scene.context);
            scene.source.go_on();
        } else {
            scene.source.go_on();
            scene.taken();
        }
        scene.given();
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_source_whose_target_is_stopped_keeps_its_connections() {
    for (step, _) in TARGET.iter().filter(|(_, taken)| !taken) {
        let scene = Scene::start(HASTY, "", &format!("{step}=stop"));
        scene.fails(&scene.source, "Source");
        scene.peer.goes_on(&scene.context);
        // On a busy machine the source may give up before the target is there.
        let said = scene.target.says();
        if said == "at" {
            assert!(scene.target.is_stopped());
            scene.target.go_on();
            scene.fails(&scene.target, "Source");
        } else {
            assert!(said.starts_with("err Source: "), "{}: {said}", scene.context);
        }
        scene.ends_at(Fate::Source);
    }
}

#[test]
fn a_source_keeps_its_connections_after_many_targets_have_failed() {
    let (peer, source) = Peer::start();
    for (step, _) in TARGET.iter().filter(|(_, taken)| !taken) {
        let target = Process::start();
        let (here, there) = pair();
        target.tell(&format!("take 60000 {step}=kill"), Some(there));
        source.tell(&format!("give {PATIENT}"), Some(here));
        assert!(source.says().starts_with("err Source: "), "{step}");
        peer.goes_on(step);
    }
    let target = Process::start();
    super::scene::hand_over(&source, &target);
    peer.goes_on("after the move");
    peer.finish(&target);
}

#[test]
fn processes_that_are_killed_or_stopped_at_random_instants_leave_one_owner() {
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let cases = if long_form::is_requested() { 400 } else { 12 };
    for case in 0..cases {
        let mut scene = Scene::start("60000 400", "", "");
        let Disturbed { is_source, is_kill, given, taken, how } =
            disturb(&mut random, [&scene.source, &scene.target], [30_000, 800_000]);
        let context = format!("seed {seed}, case {case}: {how}");
        let fate = match (given.starts_with("ok "), taken.starts_with("ok ")) {
            (true, true) if !is_kill => Fate::Target,
            (false, false) if !is_kill => Fate::Source,
            // What is killed may have said how it ended before.
            (_, true) if is_kill && is_source => Fate::Target,
            (false, false) if is_kill && is_source => Fate::Lost,
            (true, _) if is_kill => Fate::Lost,
            (false, false) if is_kill => Fate::Source,
            _ => panic!("{context}"),
        };
        if fate == Fate::Target
            && let Some(flooded) = given.strip_prefix("ok ")
        {
            scene.target.tell(&format!("flood {flooded}"), None);
        }
        scene.context = context;
        scene.ends_at(fate);
    }
}
