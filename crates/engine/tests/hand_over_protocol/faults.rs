//! Processes that are killed or stopped after each step. Each case has one possible end.

use super::role;
use super::scene::{Fate, LARGE, SMALL, Scene, assert_err, assert_ok, plan};
use ironwarp_engine::hand_over::{SourceStep, TargetStep};
use ironwarp_testkit::child;

/// The test that the processes of all tests run in.
pub(crate) const HOST: &str = "faults::a_function_moves_without_a_wrong_byte";

/// The steps of the source if nothing goes wrong, and whether the function is offered by then.
pub(crate) const SOURCE: [(SourceStep, bool); 9] = [
    (SourceStep::HelloSent, false),
    (SourceStep::HelloReceived, false),
    (SourceStep::Copying, false),
    (SourceStep::Copied, false),
    (SourceStep::Asked, false),
    (SourceStep::Ready, false),
    (SourceStep::Frozen, false),
    (SourceStep::Offered, true),
    (SourceStep::Taken, true),
];
/// The steps of the target if nothing goes wrong, and whether it owns the function then.
pub(crate) const TARGET: [(TargetStep, bool); 9] = [
    (TargetStep::HelloSent, false),
    (TargetStep::HelloReceived, false),
    (TargetStep::Copying, false),
    (TargetStep::Copied, false),
    (TargetStep::Prepared, false),
    (TargetStep::ReadySent, false),
    (TargetStep::Offered, false),
    (TargetStep::Loaded, false),
    (TargetStep::TakenSent, true),
];

#[test]
fn a_function_moves_without_a_wrong_byte() {
    if let Some(role) = child::role() {
        return role::play(&role);
    }
    for len in [SMALL, LARGE] {
        let plan = super::role::Plan { len, ..plan() };
        let scene = Scene::start(&plan, &plan);
        assert_eq!(scene.source.result(), "ok epoch 7");
        assert_eq!(scene.target.result(), "ok taken");
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_source_that_is_killed_before_its_offer_takes_the_function_along() {
    for (step, _) in SOURCE.iter().filter(|(_, offered)| !offered) {
        let scene = Scene::start(&plan().kills(step), &plan());
        scene.source.killed();
        let result = scene.target.result();
        // Without a hello, the target does not know who the source is.
        assert!(result.starts_with("err Nobody: "), "{step:?}: {result}");
        scene.ends_at(Fate::Lost);
    }
}

#[test]
fn a_source_that_is_killed_after_its_offer_leaves_the_function_to_the_target() {
    for (step, _) in SOURCE.iter().filter(|(_, offered)| *offered) {
        let scene = Scene::start(&plan().kills(step), &plan());
        scene.source.killed();
        assert_ok(&scene.target.result());
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_target_that_is_killed_before_it_has_taken_leaves_the_function_to_the_source() {
    for (step, _) in TARGET.iter().filter(|(_, taken)| !taken) {
        let scene = Scene::start(&plan(), &plan().kills(step));
        scene.target.killed();
        assert_err(&scene.source.result(), "Source");
        scene.ends_at(Fate::Source);
    }
}

#[test]
fn a_target_that_is_killed_after_it_has_taken_takes_the_function_along() {
    let scene = Scene::start(&plan(), &plan().kills(TargetStep::TakenSent));
    scene.target.killed();
    assert_ok(&scene.source.result());
    scene.ends_at(Fate::Lost);
}

#[test]
fn a_source_that_is_stopped_for_a_while_hands_over_in_the_end() {
    for (step, offered) in SOURCE {
        let scene = Scene::start(&plan().stops(step), &plan());
        scene.source.stopped();
        if offered {
            // The target does not wait for the source.
            assert_ok(&scene.target.result());
            assert!(scene.peer.goes_on(&scene.context));
            scene.source.go_on();
        } else {
            scene.source.go_on();
            assert_ok(&scene.target.result());
        }
        assert_ok(&scene.source.result());
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_target_that_is_stopped_for_a_while_takes_over_in_the_end() {
    for (step, _) in TARGET {
        let scene = Scene::start(&plan(), &plan().stops(step));
        scene.target.stopped();
        scene.target.go_on();
        assert_ok(&scene.source.result());
        assert_ok(&scene.target.result());
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_source_whose_target_is_stopped_keeps_running() {
    for (step, _) in TARGET.iter().filter(|(_, taken)| !taken) {
        let scene = Scene::start(&plan().hasty(), &plan().stops(step));
        assert_err(&scene.source.result(), "Source");
        assert!(scene.peer.goes_on(&scene.context));
        // On a busy machine the source may give up before the target is there.
        if let super::scene::News::Result(text) = scene.target.news() {
            assert_err(&text, "Source");
        } else {
            scene.target.go_on();
            assert_err(&scene.target.result(), "Source");
        }
        scene.ends_at(Fate::Source);
    }
}

#[test]
fn a_target_whose_source_is_stopped_gives_up() {
    for (step, _) in SOURCE.iter().filter(|(_, offered)| !offered) {
        let scene = Scene::start(&plan().stops(step), &plan().hasty());
        assert_err(&scene.target.result(), "Source");
        if scene.source.news() == super::scene::News::At {
            scene.source.go_on();
            assert_err(&scene.source.result(), "Source");
        }
        scene.ends_at(Fate::Source);
    }
}
