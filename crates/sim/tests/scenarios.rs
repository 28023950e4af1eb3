//! Runs a few scenarios in every test run; `cargo xtask sim` runs many.

use ironwarp_sim::scenario;

#[test]
fn a_hundred_seeds() {
    for seed in 0..100 {
        eprintln!("seed {seed}"); // shown if it fails
        scenario::run(seed);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut kept = None;
        scenario::trace(seed, |trace| kept = Some(trace));
        kept.expect("a trace").lines()
    };
    for seed in 100..110 {
        let first = trace(seed);
        assert!(first.len() > 20, "{first:?}");
        assert_eq!(first, trace(seed));
    }
}
