//! Runs a few seeds in every test run; `cargo xtask events` runs ten million events.

use ironwarp_sim::notification;

#[test]
fn sleeping_programs_are_woken_despite_resizing_moving_and_moderation() {
    let mut total = notification::Tally::default();
    for seed in 0..80 {
        eprintln!("seed {seed}"); // shown if it fails
        total += &notification::run(seed);
    }
    assert_eq!(total.missing(), [""; 0], "{total}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut kept = None;
        notification::trace(seed, |trace| kept = Some(trace));
        kept.expect("a trace").lines()
    };
    for seed in 0..3 {
        let first = trace(seed);
        assert!(first.len() > 10_000);
        assert_eq!(first, trace(seed));
    }
}
