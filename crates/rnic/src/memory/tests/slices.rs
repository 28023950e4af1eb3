//! Tables of several functions (requirement X1): each has a slice of the slots, and all use one key.

use super::super::{Binding, Bytes, DeregisterError, RegisterError, Reregistration, Scope};
use super::*;
use crate::quota::{Account, Quotas, Resource};
use std::collections::HashSet;

const READ: Rights = Rights::LOCAL_READ;

/// Splits `count` slots off a table, and creates the table of a function with them.
fn split(table: &Table, count: u32) -> Table {
    let slots = table.split_off_slots(count).expect("unused slots");
    Table::new(Limits { slots, ..Limits::new(usize::MAX) }, Arc::clone(table.cipher()))
}

#[test]
fn tags_of_two_functions_never_collide() {
    let adapter = table_of(usize::MAX);
    let functions = [split(&adapter, 1 << 18), split(&adapter, 5000), adapter];
    let mut seen = HashSet::new();
    for table in &functions {
        for _ in 0..4000 {
            assert!(seen.insert(register(table, READ).0 >> 8), "two functions have one index");
        }
    }
}

/// Whatever the operation: another function's table does not contain the entry.
#[test]
fn a_tag_of_another_function_names_nothing() {
    let adapter = table_of(usize::MAX);
    let function = split(&adapter, 1024);
    let all = Rights::all();
    for (own, other) in [(&adapter, &function), (&function, &adapter)] {
        let tag = register(other, all);
        assert_eq!(local_denied(own, HOME, tag, ADDR, 1, READ), Check::Valid);
        assert_eq!(remote_denied(own, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ), Check::Valid);
        assert_eq!(own.deregister(tag), Err(DeregisterError::Unknown(tag)));
        assert_eq!(own.invalidate(STREAM, tag).unwrap_err().check, Check::Valid);
        assert_eq!(own.invalidate_remotely(STREAM, tag).unwrap_err().check, Check::Valid);
        assert!(own.share(tag, HOME, 0, READ).is_err() && own.reserve_next_tag(tag).is_err());
        assert!(own.reregister(&ALL, tag, Reregistration::default()).is_err());
        assert_eq!((own.look_up(tag), own.current_tag(tag), own.is_pending(tag)), (None, None, false));
        let (window, rights) = (own.allocate_window(HOME).unwrap(), Rights::REMOTE_READ);
        let (zero_based, scope) = (true, Scope::Stream);
        let binding = Binding { region: tag, at: ADDR, len: 1, rights, one_touch: false, zero_based, scope };
        assert_eq!(own.bind(STREAM, window, binding).unwrap_err().check, Check::Valid);
        assert!(other.look_up(tag).is_some_and(|info| info.valid));
    }
}

#[test]
fn a_table_gives_no_slot_away_that_it_has_used() {
    let table = Table::new(Limits { slots: 0..4096, ..Limits::new(usize::MAX) }, cipher());
    let before = table.usage().indices;
    for _ in 0..1500 {
        register(&table, READ);
    }
    assert_eq!(table.split_off_slots(3000), None);
    assert_eq!(table.split_off_slots(2000), Some(2048..4096));
    assert_eq!(table.usage().indices, before - 2048);
    assert_eq!(table.unused_slots().end, 2048);
    let full = (0..2048).find_map(|_| table.register(&ALL, HOME, memory(READ)).err());
    assert!(matches!(full, Some(RegisterError::UsedUp { .. })), "{full:?}");
}

#[test]
fn registered_bytes_are_counted_and_given_back() {
    let account = Account::new(7, Quotas::default().registered_bytes(3 * LEN).tags(4));
    let table = Table::with_account(Limits::new(100), cipher(), &account);
    let used = || account.used(Resource::RegisteredBytes);
    let one = register(&table, READ);
    let shared = table.share(one, HOME, 0, READ).unwrap();
    let filled = table.allocate(HOME).unwrap();
    table.fill(&ALL, STREAM, filled, memory(READ)).unwrap();
    assert_eq!(used(), 3 * LEN);
    let exceeded = RegisterError::Quota(account.exceeded(Resource::RegisteredBytes));
    assert_eq!(table.register(&ALL, HOME, memory(READ)), Err(exceeded));
    assert_eq!(table.register_on_demand(HOME, memory(READ)), Err(exceeded));
    assert_eq!(table.share(one, HOME, 0, READ), Err(exceeded));
    let pending = table.begin_registration(HOME).unwrap();
    assert_eq!(table.finish_registration(HOME, pending, memory(READ), Ok(())), Err(exceeded));
    assert!(!table.is_pending(pending) && table.len() == 4);

    let full = table.allocate_window(HOME).unwrap_err();
    assert_eq!(full, RegisterError::Quota(account.exceeded(Resource::Tags)));
    assert!(full.to_string().starts_with("function 7 has reached its quota of 4 memory regions and windows"));
    table.deregister(pending).unwrap();

    table.invalidate(STREAM, filled).unwrap();
    assert_eq!(used(), 2 * LEN);
    table.deregister(shared).unwrap();
    let half = Memory::direct(ADDR, LEN / 2, READ).unwrap();
    let bytes = Bytes { start: ADDR, len: LEN / 2, translation: half.translation };
    let to = Reregistration { bytes: Some(bytes), ..Reregistration::default() };
    let one = table.reregister(&ALL, one, to).unwrap();
    assert_eq!(used(), LEN / 2);
    table.deregister(one).unwrap();
    table.deregister(filled).unwrap();
    assert_eq!((used(), table.len()), (0, 0));
}
