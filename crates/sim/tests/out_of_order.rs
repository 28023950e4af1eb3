//! One-touch memory with out-of-order segments (requirement M10).

use ironwarp_sim::out_of_order::{all_rows, run};
use std::collections::BTreeMap;

/// Every row of the decision table is covered by regions and windows, and each segment has the result that the model
/// predicts.
#[test]
fn every_row_of_one_touch_holds_in_any_order() {
    let mut rows = BTreeMap::new();
    for seed in 0..3000 {
        run(seed, &mut rows);
    }
    let missing: Vec<_> = all_rows().into_iter().filter(|row| !rows.contains_key(row)).collect();
    assert_eq!(missing, [], "{rows:?}");
}
