//! Runs a few seeds of acknowledged datagrams in every test run; `cargo xtask sim` runs many.

use ironwarp_sim::datagrams;

#[test]
fn acknowledged_datagrams_are_delivered_once_over_a_bad_network() {
    let mut total = datagrams::Tally::default();
    for seed in 0..200 {
        eprintln!("seed {seed}"); // shown if it fails
        total += &datagrams::run(seed);
    }
    assert_eq!(total.missing(), [""; 0], "{total}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut kept = None;
        datagrams::trace(seed, |trace| kept = Some(trace));
        kept.expect("a trace").lines()
    };
    for seed in 0..10 {
        let first = trace(seed);
        assert!(first.len() > 20, "{first:?}");
        assert_eq!(first, trace(seed));
    }
}
