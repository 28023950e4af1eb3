//! One-touch memory: the decision table, which message the memory serves, and when the memory becomes invalid.

use super::super::{Binding, Guard, Position, RegisterError, Scope, Verdict, decide, next_tag};
use super::*;

const READ: Rights = Rights::LOCAL_READ.union(Rights::REMOTE_READ);
const WRITE: Rights = Rights::LOCAL_WRITE.union(Rights::REMOTE_WRITE);
const BOTH: Rights = READ.union(WRITE);

/// Describes one-touch memory with these rights.
fn one_touch(rights: Rights) -> Memory {
    Memory { one_touch: true, ..memory(rights) }
}

fn register_one_touch(table: &Table) -> Tag {
    table.register(&ALL, HOME, one_touch(BOTH)).unwrap()
}

/// Accesses one byte for a segment of a message, and returns the guard or the check that failed.
fn access<'t>(table: &'t Table, tag: Tag, touch: &mut Touch, last: bool) -> Result<Guard<'t>, Check> {
    touch.start_segment(last);
    table
        .admit_remote(STREAM, addr(tag, ADDR), 1, Rights::REMOTE_WRITE, &mut Spans::new(), touch)
        .map_err(|denied| denied.check)
}

fn is_valid(table: &Table, tag: Tag) -> bool {
    table.look_up(tag).is_some_and(|info| info.valid)
}

/// Describes the binding of a one-touch window to part of a region.
fn part(region: Tag) -> Binding {
    let (rights, scope) = (Rights::REMOTE_WRITE, Scope::Stream);
    Binding { region, at: ADDR, len: 16, rights, one_touch: true, zero_based: false, scope }
}

#[test]
fn one_touch_is_decided_row_by_row() {
    use Position::{InOrder, Outside, Within};
    let positions = [InOrder, Within, Outside];
    let any = [false, true];
    for position in positions {
        for (one_touch, touched) in any.into_iter().flat_map(|a| any.map(|b| (a, b))) {
            // Not the last segment: always placed.
            assert_eq!(decide(false, one_touch, touched, position), Verdict::Place);
        }
        for touched in any {
            // The last segment, and the memory is not one-touch.
            assert_eq!(decide(true, false, touched, position), Verdict::Place);
        }
        // The last segment, and another message has touched the memory.
        assert_eq!(decide(true, true, true, position), Verdict::InvalidateAndTerminate);
    }
    // The last segment of the first message to touch the memory.
    assert_eq!(decide(true, true, false, InOrder), Verdict::PlaceAndInvalidate);
    assert_eq!(decide(true, true, false, Within), Verdict::PlaceAndTouch);
    assert_eq!(decide(true, true, false, Outside), Verdict::Drop);
}

#[test]
fn one_touch_memory_serves_all_segments_of_one_message() {
    let table = table();
    let tag = register_one_touch(&table);
    let mut message = Touch::default();
    for last in [false, false, true] {
        assert!(!message.is_complete());
        drop(access(&table, tag, &mut message, last).unwrap());
        assert!(table.look_up(tag).is_some_and(|info| info.valid && info.touched));
        // Access twice for one segment, as a stream does.
        drop(access(&table, tag, &mut message, last).unwrap());
    }
    assert!(message.is_complete());
    table.end_touch(message);
    assert!(!is_valid(&table, tag));
    for mut message in [message, Touch::default(), Touch::for_request()] {
        assert_eq!(access(&table, tag, &mut message, true).unwrap_err(), Check::Valid);
    }
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, Rights::LOCAL_READ), Check::Valid);
    table.deregister(tag).unwrap();
    assert!(table.is_empty());
}

#[test]
fn other_memory_is_touched_as_often_as_peers_want() {
    let table = table();
    let tag = register(&table, BOTH);
    for _ in 0..3 {
        let mut message = Touch::default();
        drop(access(&table, tag, &mut message, true).unwrap());
        assert!(!message.is_complete());
    }
    assert_eq!(table.look_up(tag).map(|info| info.touched), Some(false));
}

/// The decision table alone would place all but the last segment of a second message.
#[test]
fn a_second_message_has_no_segment_in_one_touch_memory() {
    let table = table();
    let tag = register_one_touch(&table);
    let (mut first, mut second) = (Touch::default(), Touch::default());
    drop(access(&table, tag, &mut first, false).unwrap());
    assert_eq!(access(&table, tag, &mut second, false).unwrap_err(), Check::Touched);
    // The first message is not affected.
    drop(access(&table, tag, &mut first, true).unwrap());
    assert!(!second.is_complete());
    table.end_touch(first);
    assert!(!is_valid(&table, tag));
}

/// The decision table says: invalidate and terminate.
#[test]
fn a_whole_second_message_ends_one_touch_memory() {
    let table = table();
    let tag = register_one_touch(&table);
    let mut first = Touch::default();
    let guard = access(&table, tag, &mut first, false).unwrap();
    // The refusal does not wait for a guard.
    assert_eq!(access(&table, tag, &mut Touch::for_request(), true).unwrap_err(), Check::Touched);
    assert!(!is_valid(&table, tag));
    drop(guard);
    assert_eq!(access(&table, tag, &mut first, true).unwrap_err(), Check::Valid);
    table.deregister(tag).unwrap();
}

#[test]
fn only_what_a_peer_may_do_touches() {
    let table = table();
    let tag = table.register(&ALL, HOME, one_touch(READ | Rights::LOCAL_WRITE)).unwrap();
    let mut message = Touch::for_request();
    assert_eq!(access(&table, tag, &mut message, true).unwrap_err(), Check::Right);
    let far = addr(tag, ADDR + LEN);
    assert_eq!(remote_denied(&table, STREAM, far, 1, Rights::REMOTE_READ), Check::Range);
    assert_eq!(remote_denied(&table, STRANGER, addr(tag, ADDR), 1, Rights::REMOTE_READ), Check::Domain);
    local_spans(&table, tag, ADDR, 8, Rights::LOCAL_READ);
    local_spans(&table, tag, ADDR, 8, Rights::LOCAL_WRITE);
    assert!(!message.is_complete());
    assert_eq!(table.look_up(tag).map(|info| (info.valid, info.touched)), Some((true, false)));
    remote_spans(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ);
    assert_eq!(table.look_up(tag).map(|info| info.touched), Some(true));
}

#[test]
fn a_region_of_a_send_queue_request_serves_once_and_is_filled_again() {
    let table = table();
    let mut tag = table.allocate(HOME).unwrap();
    for _ in 0..3 {
        table.fill(&ALL, STREAM, tag, one_touch(BOTH)).unwrap();
        let mut message = Touch::default();
        drop(access(&table, tag, &mut message, true).unwrap());
        table.end_touch(message);
        assert_eq!(table.invalidate_remotely(STREAM, tag).unwrap_err().check, Check::Valid);
        tag = next_tag(tag);
    }
}

/// A second message invalidates the memory while bytes of the first are in flight.
#[test]
fn what_a_second_message_ended_is_filled_again_when_nobody_uses_it() {
    let table = table();
    let tag = table.allocate(HOME).unwrap();
    table.fill(&ALL, STREAM, tag, one_touch(BOTH)).unwrap();
    let guard = access(&table, tag, &mut Touch::default(), false).unwrap();
    assert_eq!(access(&table, tag, &mut Touch::for_request(), true).unwrap_err(), Check::Touched);
    std::thread::scope(|scope| {
        let filler = scope.spawn(|| table.fill(&ALL, STREAM, next_tag(tag), memory(BOTH)));
        drop(guard);
        filler.join().unwrap().unwrap();
    });
    drop(access(&table, next_tag(tag), &mut Touch::default(), true).unwrap());
}

#[test]
fn a_window_serves_once_and_its_region_is_free() {
    let table = table();
    let region = register(&table, BOTH | Rights::BIND);
    let window = table.allocate_window(HOME).unwrap();
    let bound = table.bind(STREAM, window, part(region)).unwrap();
    let mut message = Touch::default();
    drop(access(&table, bound, &mut message, true).unwrap());
    table.end_touch(message);
    assert!(!is_valid(&table, bound));
    // The window can be bound and serve again. When it has served, its region can be deregistered.
    let bound = table.bind(STREAM, bound, part(region)).unwrap();
    let mut message = Touch::default();
    drop(access(&table, bound, &mut message, true).unwrap());
    table.end_touch(message);
    table.deregister(region).unwrap();
    table.deregister(bound).unwrap();
}

#[test]
fn one_touch_memory_has_no_windows() {
    let table = table();
    let bindable = || one_touch(BOTH | Rights::BIND);
    assert_eq!(table.register(&ALL, HOME, bindable()), Err(RegisterError::OneTouch));
    let tag = table.allocate(HOME).unwrap();
    assert_eq!(table.fill(&ALL, STREAM, tag, bindable()), Err(RegisterError::OneTouch));
    table.fill(&ALL, STREAM, tag, one_touch(BOTH)).unwrap();
    // A region that shares the memory has its own entry, which is not one-touch.
    let shared = table.share(tag, HOME, ADDR, BOTH | Rights::BIND).unwrap();
    for _ in 0..2 {
        drop(access(&table, shared, &mut Touch::for_request(), true).unwrap());
    }
}

#[test]
fn the_end_of_a_message_ends_only_what_it_touched() {
    let table = table_of(1);
    let tag = register_one_touch(&table);
    let mut message = Touch::default();
    drop(access(&table, tag, &mut message, true).unwrap());
    table.deregister(tag).unwrap();
    table.end_touch(message);
    let next = register_one_touch(&table);
    assert_eq!(next, next_tag(tag), "the test relies on the same index");
    table.end_touch(message);
    let mut other = Touch::default();
    drop(access(&table, next, &mut other, true).unwrap());
    table.end_touch(message);
    assert!(is_valid(&table, next));
    table.end_touch(other);
    assert!(!is_valid(&table, next));
}
