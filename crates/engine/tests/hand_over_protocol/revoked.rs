//! A source that takes its offer back while the target takes it. The target stops before it sends TAKEN, so that the source
//! times out; then both are stopped, continued and killed in every order that matters.

use super::role::Plan;
use super::scene::{Fate, Scene, assert_err, assert_ok, plan};
use ironwarp_engine::hand_over::{SourceStep, TargetStep};

/// Starts a hand-over whose target stops before it sends TAKEN, and whose source then gives up.
fn start(source: Plan, target: Plan) -> Scene {
    let source = Plan { pause: super::scene::SHORT, ..source };
    let scene = Scene::start(&source, &target.stops(TargetStep::Loaded));
    scene.target.stopped();
    scene
}

#[test]
fn a_target_that_takes_while_the_source_gives_up_is_the_owner() {
    let scene = start(plan().stops(SourceStep::GivingUp), plan());
    scene.source.stopped();
    scene.target.go_on();
    assert_eq!(scene.target.result(), "ok taken");
    assert!(scene.peer.goes_on(&scene.context));
    scene.source.go_on();
    assert_ok(&scene.source.result());
    scene.ends_at(Fate::Target);
}

#[test]
fn a_target_that_takes_too_late_is_told() {
    // The source runs again, or has only told the target so far, or not even that.
    for step in [None, Some(SourceStep::Refused), Some(SourceStep::Decided)] {
        let source = step.into_iter().fold(plan(), Plan::stops);
        let is_told = step != Some(SourceStep::Decided);
        let scene = start(source, plan().stops(TargetStep::TakenFailed));
        match step {
            None => assert_err(&scene.source.result(), "Source"),
            Some(_) => scene.source.stopped(),
        }
        scene.target.go_on();
        scene.target.stopped();
        if is_told {
            scene.target.go_on();
            let result = scene.target.result();
            assert_err(&result, "Source");
            assert!(result.contains("took its offer back: timed out"), "{result}");
        }
        if step.is_some() {
            scene.source.go_on();
            assert_err(&scene.source.result(), "Source");
        }
        if !is_told {
            scene.target.go_on();
            assert_err(&scene.target.result(), "Source");
        }
        scene.ends_at(Fate::Source);
    }
}

#[test]
fn a_target_waits_for_a_source_that_is_stopped_while_it_decides() {
    let scene = start(plan().stops(SourceStep::Decided), plan().stops(TargetStep::Waiting));
    scene.source.stopped();
    scene.target.go_on();
    scene.target.stopped();
    scene.target.go_on();
    scene.source.go_on();
    assert_err(&scene.source.result(), "Source");
    let result = scene.target.result();
    assert_err(&result, "Source");
    assert!(result.contains("took its offer back: timed out"), "{result}");
    scene.ends_at(Fate::Source);
}

#[test]
fn a_source_that_dies_frozen_leaves_the_function_to_the_target() {
    for step in [SourceStep::GivingUp, SourceStep::Decided] {
        let scene = start(plan().kills(step), plan());
        scene.source.killed();
        scene.target.go_on();
        assert_eq!(scene.target.result(), "ok adopted", "{step:?}");
        scene.ends_at(Fate::Target);
    }
}

#[test]
fn a_source_that_dies_while_the_target_waits_for_it_leaves_the_function_to_the_target() {
    for step in [TargetStep::TakenFailed, TargetStep::Waiting] {
        let scene = start(plan().stops(SourceStep::Decided), plan().stops(step));
        scene.source.stopped();
        scene.target.go_on();
        scene.target.stopped();
        scene.source.kill();
        scene.target.go_on();
        assert_eq!(scene.target.result(), "ok adopted", "{step:?}");
        scene.ends_at(Fate::Target);
    }
}

/// The snapshot is out of date once the source runs again. If the source dies afterwards, the function is lost: to adopt
/// it would send bytes again that the peer has already.
#[test]
fn an_offer_that_was_taken_back_is_never_adopted() {
    for runs in [true, false] {
        let source = if runs { plan() } else { plan().kills(SourceStep::Refused) };
        let scene = start(source, plan());
        if runs {
            assert_err(&scene.source.result(), "Source");
            assert!(scene.peer.goes_on(&scene.context));
            scene.source.kill();
        } else {
            scene.source.killed();
        }
        scene.target.go_on();
        let result = scene.target.result();
        assert_err(&result, "Nobody");
        assert!(result.contains("took its offer back"), "{result}");
        scene.ends_at(Fate::Lost);
    }
}

#[test]
fn a_target_that_dies_while_the_source_decides_leaves_the_function_to_the_source() {
    for step in [SourceStep::GivingUp, SourceStep::Decided] {
        let scene = start(plan().stops(step), plan());
        scene.source.stopped();
        scene.target.kill();
        scene.source.go_on();
        assert_err(&scene.source.result(), "Source");
        scene.ends_at(Fate::Source);
    }
    // Also if it has tried to take the function.
    let scene = start(plan().stops(SourceStep::Decided), plan().kills(TargetStep::TakenFailed));
    scene.source.stopped();
    scene.target.go_on();
    scene.target.killed();
    scene.source.go_on();
    assert_err(&scene.source.result(), "Source");
    scene.ends_at(Fate::Source);
}

#[test]
fn both_may_die_one_after_the_other() {
    // The source after TAKEN: the target goes on.
    let scene = Scene::start(&plan().stops(SourceStep::Taken), &plan().stops(TargetStep::TakenSent));
    scene.target.stopped();
    scene.source.stopped();
    scene.source.kill();
    scene.target.go_on();
    assert_ok(&scene.target.result());
    scene.ends_at(Fate::Target);
    // The target while it adopts.
    let scene = start(plan().kills(SourceStep::Decided), plan().kills(TargetStep::TakenFailed));
    scene.source.killed();
    scene.target.go_on();
    scene.target.killed();
    scene.ends_at(Fate::Lost);
}
