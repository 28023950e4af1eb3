//! Tests of moving an adapter that need its inside. The others are in `tests/hostile_state.rs`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use super::*;

#[test]
fn an_adapter_that_has_few_numbers_left_cannot_move() {
    let engine = Engine::new(Config::default().lanes(1)).unwrap();
    engine.shared.set_created([MAX_CREATED; 2]);
    assert_eq!(engine.check_movable(), Ok(()));
    for (created, kind) in
        [([MAX_CREATED + 1, 0], "completion queues"), ([0, MAX_CREATED + 1], "shared receive queues")]
    {
        engine.shared.set_created(created);
        assert_eq!(engine.check_movable(), Err(FreezeError::Created(MAX_CREATED + 1, kind)));
    }
}
