//! Runs a few seeds of queue pairs in iSCSI mode in every test run; `cargo xtask sim` runs many.

use ironwarp_sim::iscsi;

#[test]
fn commands_move_their_data_and_end_once_whatever_the_target_does() {
    let mut total = iscsi::Tally::default();
    for seed in 0..200 {
        eprintln!("seed {seed}"); // shown if it fails
        total += &iscsi::run(seed);
    }
    assert_eq!(total.missing(), [""; 0], "{total}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut kept = None;
        iscsi::trace(seed, |trace| kept = Some(trace));
        kept.expect("a trace").lines()
    };
    for seed in 0..10 {
        let first = trace(seed);
        assert!(first.len() > 20, "{first:?}");
        assert_eq!(first, trace(seed));
    }
}
