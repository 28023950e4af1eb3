//! Entries of iSCSI commands (requirement M13): their tags, and who can use them.

use super::*;
use crate::memory::{Binding, Direction, RegisterError, Scope, Transfer, index_of, next_tag};
use std::collections::HashSet;

/// The tag that names no task (RFC 7143 §11.2.1.8).
const NO_TASK: Tag = Tag(u32::MAX);

/// Returns a table whose first index is the one of the tag that names no task.
fn table_with_last_index() -> Table {
    let slot = cipher().slot(index_of(NO_TASK));
    Table::new(Limits { slots: slot..slot + 2, ..Limits::new(2) }, cipher())
}

/// Returns a transfer of the whole memory.
fn transfer(task: Tag, direction: Direction) -> Transfer {
    Transfer { task, offset: 0, len: usize::try_from(LEN).unwrap(), direction }
}

/// Returns the check that a transfer fails.
fn transfer_denied(table: &Table, stream: Stream, transfer: &Transfer) -> Check {
    failed_check(|spans| table.admit_transfer(stream, transfer, spans).map(drop))
}

#[test]
fn completing_commands_skips_the_tag_that_names_no_task() {
    let table = table_with_last_index();
    let mut task = table.allocate_command(STREAM).unwrap();
    assert_eq!(index_of(task), index_of(NO_TASK));
    let mut tags = HashSet::new();
    for _ in 0..600 {
        tags.insert(task);
        table.fill_command(STREAM, (task, 1), Direction::In, []).unwrap();
        task = table.complete_command(STREAM, task).unwrap().1;
    }
    assert_eq!(tags.len(), 255);
    assert!(!tags.contains(&NO_TASK));
}

#[test]
fn allocating_commands_skips_the_tag_that_names_no_task() {
    let table = table_with_last_index();
    let mut tags = HashSet::new();
    let error = loop {
        match table.allocate_command(STREAM) {
            Ok(task) => assert!(tags.insert(task)),
            Err(error) => break error,
        }
        let last = *tags.iter().find(|tag| table.look_up(**tag).is_some()).unwrap();
        table.free_command(STREAM, last).unwrap();
    };
    assert!(matches!(error, RegisterError::UsedUp { .. }), "{error}");
    assert_eq!(tags.len(), 2 * 256 - 1);
    assert!(!tags.contains(&NO_TASK));
}

#[test]
fn the_tag_of_an_aborted_command_is_never_valid_again() {
    let table = Table::new(Limits { slots: 0..8, ..Limits::new(2) }, cipher());
    let region = register(&table, Rights::all());
    let buffers = [(addr(region, ADDR), u32::try_from(LEN).unwrap())];
    let aborted = table.allocate_command(STREAM).unwrap();
    table.fill_command(STREAM, (aborted, 1), Direction::In, buffers).unwrap();
    table.abort_command(STREAM, aborted).unwrap();

    // Far more commands than an index has instances.
    let mut task = table.allocate_command(STREAM).unwrap();
    for _ in 0..1000 {
        table.fill_command(STREAM, (task, 2), Direction::In, buffers).unwrap();
        assert_ne!(task, aborted);
        transfer_denied(&table, STREAM, &transfer(aborted, Direction::In));
        task = table.complete_command(STREAM, task).unwrap().1;
    }
}

#[test]
fn an_entry_is_freed_by_its_queue_pair_only() {
    let table = table();
    let task = table.allocate_command(STREAM).unwrap();
    table.fill_command(STREAM, (task, 1), Direction::In, []).unwrap();
    for other in [NEIGHBOUR, STRANGER] {
        table.complete_command(other, task).unwrap_err();
        table.free_command(other, task).unwrap_err();
        table.abort_command(other, task).unwrap_err();
    }
    let (command, next) = table.complete_command(STREAM, task).unwrap();
    assert_eq!((command, next), (1, next_tag(task)));
    table.complete_command(STREAM, task).unwrap_err();
    table.complete_command(STREAM, next).unwrap_err();
    table.free_command(STREAM, next).unwrap();
    assert!(table.is_empty());
}

#[test]
fn the_memory_of_a_command_is_for_its_target_only() {
    let table = table();
    let region = register(&table, Rights::all());
    let task = table.allocate_command(STREAM).unwrap();
    let buffers = [(addr(region, ADDR), u32::try_from(LEN).unwrap())];
    table.fill_command(STREAM, (task, 1), Direction::In, buffers).unwrap();
    drop(table.admit_transfer(STREAM, &transfer(task, Direction::In), &mut Spans::new()).unwrap());
    assert_eq!(transfer_denied(&table, NEIGHBOUR, &transfer(task, Direction::In)), Check::Stream);
    assert_eq!(transfer_denied(&table, STRANGER, &transfer(task, Direction::In)), Check::Domain);
    // Neither a work request nor a message of RDMA can name it, and no window can be bound to it.
    for need in [Rights::LOCAL_READ, Rights::LOCAL_WRITE] {
        assert_eq!(local_denied(&table, HOME, task, 0, 8, need), Check::Kind);
    }
    assert_eq!(remote_denied(&table, STREAM, addr(task, 0), 8, Rights::REMOTE_WRITE), Check::Kind);
    let window = table.allocate_window(HOME).unwrap();
    let binding = Binding {
        region: task,
        at: 0,
        len: 8,
        rights: Rights::REMOTE_WRITE,
        one_touch: false,
        zero_based: true,
        scope: Scope::Domain,
    };
    table.bind(STREAM, window, binding).unwrap_err();
}

#[test]
fn the_memory_of_a_command_needs_the_local_right_of_its_direction() {
    let table = table();
    for (rights, direction, is_allowed) in [
        (Rights::LOCAL_READ, Direction::In, false),
        (Rights::LOCAL_READ, Direction::Out, true),
        (Rights::LOCAL_READ | Rights::LOCAL_WRITE, Direction::In, true),
    ] {
        let region = register(&table, rights);
        let task = table.allocate_command(STREAM).unwrap();
        let filled = table.fill_command(STREAM, (task, 1), direction, [(addr(region, ADDR), 8)]);
        assert_eq!(filled.is_ok(), is_allowed, "{filled:?}");
    }
}
