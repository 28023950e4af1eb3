//! Indices that have had all of their instances (requirement M4): they are retired, and none of their tags is ever
//! valid again.

use super::super::slab::MIN_FREE_INDICES;
use super::super::{Binding, RegisterError, Scope, index_of, next_tag};
use super::*;
use std::collections::HashSet;

const READ: Rights = Rights::LOCAL_READ;

/// Creates a table for this number of entries, with this number of indices, of which each has few instances.
fn small_table(entries: usize, indices: u32, instances: usize) -> Table {
    Table::new(Limits { slots: 0..indices, instances, ..Limits::new(entries) }, cipher())
}

/// Registers memory and deregisters it at once. Returns its tag.
fn use_once(table: &Table) -> Tag {
    let tag = register(table, READ);
    table.deregister(tag).unwrap();
    tag
}

/// Asserts that no access, change or query finds an entry by any of these tags.
fn assert_stale<'a>(table: &Table, tags: impl IntoIterator<Item = &'a Tag>) {
    for &tag in tags {
        let denied = local_denied(table, HOME, tag, ADDR, 1, READ);
        assert!(matches!(denied, Check::Valid | Check::Kind | Check::Instance), "{tag}: {denied:?}");
        let denied = remote_denied(table, STREAM, addr(tag, ADDR), 1, Rights::empty());
        assert!(matches!(denied, Check::Valid | Check::Instance), "{tag}: {denied:?}");
        assert_eq!(table.look_up(tag), None);
        assert!(table.deregister(tag).is_err() && table.invalidate(STREAM, tag).is_err());
        assert!(!table.is_pending(tag));
    }
}

/// Describes a binding of a window to a whole region.
fn whole(region: Tag) -> Binding {
    let rights = Rights::REMOTE_READ;
    let (zero_based, scope) = (true, Scope::Stream);
    Binding { region, at: ADDR, len: LEN, rights, one_touch: false, zero_based, scope }
}

#[test]
fn an_index_is_retired_after_256_instances() {
    let table = table_of(1);
    let tags: Vec<_> = (0..256).map(|_| use_once(&table)).collect();
    assert!(tags.windows(2).all(|pair| pair[1] == next_tag(pair[0])), "in a table of one entry");
    assert_eq!(table.usage().retired, 1);
    let next = register(&table, READ);
    assert_ne!(index_of(next), index_of(tags[0]));
    assert_stale(&table, &tags);
    assert_eq!(local_spans(&table, next, ADDR, 1, READ), [Span::new(ADDR, 1)]);
    assert_eq!((table.len(), table.usage().retired), (1, 1));
}

/// More registrations than the indices in use have instances.
#[test]
fn no_tag_comes_back() {
    let table = table_of(1_000_000);
    let rounds = 3 * MIN_FREE_INDICES * 256;
    let mut seen = HashSet::new();
    for _ in 0..rounds {
        let tag = use_once(&table);
        assert!(seen.insert(tag), "{tag} after {} registrations", seen.len());
    }
    let indices: HashSet<_> = seen.iter().map(|&tag| index_of(tag)).collect();
    let retired = table.usage().retired;
    assert!(retired > MIN_FREE_INDICES, "{retired} retired");
    assert!(indices.len() - retired <= MIN_FREE_INDICES + 1, "{} used, {retired} retired", indices.len());
}

#[test]
fn storage_of_retired_indices_is_used_again() {
    let table = small_table(100, u32::MAX, 2);
    let stays = register(&table, READ);
    use_once(&table);
    let before = table.usage().bytes;
    let tags: Vec<_> = (0..20_000).map(|_| use_once(&table)).collect();
    let usage = table.usage();
    // The entry that stays keeps its chunk. Two more serve the others: one that is used up, and the next.
    let chunk = 1024 * size_of::<super::super::entry::Entry>();
    assert!(usage.retired > 9_000 && usage.bytes <= before + 2 * chunk, "{usage:?}, {before} bytes before");
    // Entries of another domain in the same storage: the old tags must not even be compared with them.
    let others = (0..90).map(|_| table.register(&ALL, AWAY, memory(READ)).unwrap());
    let others: HashSet<_> = others.map(index_of).collect();
    for &tag in &tags {
        let expected = if others.contains(&index_of(tag)) { Check::Domain } else { Check::Valid };
        assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, READ), expected, "{tag}");
        assert!(table.look_up(tag).is_none() && table.deregister(tag).is_err());
    }
    local_spans(&table, stays, ADDR, 1, READ);
}

#[test]
fn an_entry_takes_two_cache_lines() {
    assert_eq!(size_of::<super::super::entry::Entry>(), 128);
}

#[test]
fn when_all_tags_are_used_up_registrations_fail_and_what_is_registered_stays() {
    let table = small_table(3, 5, 4);
    let stays = register(&table, READ | Rights::BIND);
    let window = table.allocate_window(HOME).unwrap();
    let bound = table.bind(STREAM, window, whole(stays)).unwrap();
    let mut old = HashSet::new();
    let error = loop {
        match table.register(&ALL, HOME, memory(READ)) {
            Ok(tag) => {
                assert!(old.insert(tag), "{tag} came back");
                table.deregister(tag).unwrap();
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error, RegisterError::UsedUp { indices: 5 });
    assert_eq!(
        error.to_string(),
        "all 5 tag indices are used up: open the adapter again to register more memory"
    );
    assert_eq!(old.len(), 3 * 4, "all instances of the three other indices");
    assert_eq!((table.len(), table.usage().retired), (2, 3));
    assert_eq!(table.allocate(HOME), Err(error));
    assert_eq!(table.allocate_window(HOME), Err(error));
    assert_eq!(table.begin_registration(HOME), Err(error));
    assert_eq!(table.share(stays, HOME, 0, READ), Err(error));
    local_spans(&table, stays, ADDR, 1, READ);
    remote_spans(&table, STREAM, addr(bound, 0), 1, Rights::REMOTE_READ);
    // The window has two more instances.
    let last = table.bind(STREAM, bound, whole(stays)).unwrap();
    let last = table.bind(STREAM, last, whole(stays)).unwrap();
    assert_eq!(table.reserve_next_tag(last), Err(error));
    let denied = table.bind(STREAM, last, whole(stays)).unwrap_err();
    assert_eq!(denied.check, Check::InstancesUsed);
    remote_spans(&table, STREAM, addr(last, 0), 1, Rights::REMOTE_READ);
    table.deregister(last).unwrap();
    table.deregister(stays).unwrap();
    assert_stale(&table, &old);
    assert_stale(&table, &[stays, window, bound, last]);
    // The region had three more instances.
    assert_eq!((0..3).map(|_| index_of(use_once(&table))).collect::<HashSet<_>>(), [index_of(stays)].into());
    assert_eq!(table.register(&ALL, HOME, memory(READ)), Err(error));
    assert_eq!(table.usage().retired, 5);
}

#[test]
fn a_window_goes_on_with_another_index() {
    let table = table_of(2);
    let region = register(&table, READ | Rights::BIND);
    let mut window = table.allocate_window(HOME).unwrap();
    let mut old = HashSet::new();
    for round in 0..1000 {
        assert!(old.insert(window), "{window} came back after {round} bindings");
        let binding = if round % 7 == 3 { Binding { len: 0, ..whole(region) } } else { whole(region) };
        let next = table.reserve_next_tag(window).unwrap();
        if round % 3 == 0 {
            assert_eq!(table.current_tag(next), Some(window), "not bound yet");
        }
        assert_eq!(table.bind(STREAM, window, binding).unwrap(), next);
        assert_eq!(table.current_tag(next), Some(next));
        assert_eq!(table.look_up(next).map(|info| info.valid), Some(binding.len > 0));
        window = next;
    }
    assert_eq!((table.len(), table.usage().retired), (2, 3));
    assert_stale(&table, &old);
    assert!(table.deregister(region).is_err(), "the window is bound to the region");
    table.deregister(window).unwrap();
    table.deregister(region).unwrap();
    assert!(table.is_empty());
}

/// A refused binding leaves the window as it was, also if the binding would have moved it.
#[test]
fn a_refused_binding_does_not_move_the_window() {
    let table = small_table(10, 10, 2);
    let region = register(&table, READ | Rights::BIND);
    let window = table.bind(STREAM, table.allocate_window(HOME).unwrap(), whole(region)).unwrap();
    let next = table.reserve_next_tag(window).unwrap();
    assert_ne!(index_of(next), index_of(window));
    let too_long = Binding { len: LEN + 1, ..whole(region) };
    assert_eq!(table.bind(STREAM, window, too_long).unwrap_err().check, Check::Range);
    remote_spans(&table, STREAM, addr(window, 0), 1, Rights::REMOTE_READ);
    assert_eq!(table.reserve_next_tag(window), Ok(next));
    assert_eq!(table.bind(STREAM, window, whole(region)), Ok(next));
    assert_stale(&table, &[window]);
}

#[test]
fn a_region_for_send_queue_registrations_goes_on_with_another_index() {
    let table = table_of(1);
    let mut tag = table.allocate(HOME).unwrap();
    let mut old = HashSet::new();
    let fill = |tag| table.fill(&ALL, STREAM, tag, memory(READ));
    let check = |result: Result<(), RegisterError>| match result.unwrap_err() {
        RegisterError::Denied(denied) => denied.check,
        error => panic!("{error}"),
    };
    for round in 0..1000 {
        fill(tag).unwrap();
        local_spans(&table, tag, ADDR, 1, READ);
        assert!(old.insert(tag), "{tag} came back after {round} registrations");
        let next = table.reserve_next_tag(tag).unwrap();
        assert_eq!(check(fill(next)), Check::Idle);
        table.invalidate(STREAM, tag).unwrap();
        assert_eq!(table.fill(&ALL, STRANGER, next, memory(READ)).map_err(|_| ()), Err(()));
        if next != next_tag(tag) {
            assert_eq!(
                check(fill(next_tag(tag))),
                Check::Instance,
                "the first tag of the index must not come back"
            );
        }
        tag = next;
    }
    fill(tag).unwrap();
    assert_stale(&table, &old);
    assert_eq!((table.len(), table.usage().retired), (1, 3));
}

/// Programs compute tags ahead, for requests that are executed later, or never.
#[test]
fn tags_are_reserved_ahead_and_freed_with_the_entry() {
    let table = small_table(10, 100, 4);
    let region = register(&table, READ | Rights::BIND);
    let window = table.allocate_window(HOME).unwrap();
    let mut ahead = vec![window];
    for _ in 0..10 {
        ahead.push(table.reserve_next_tag(*ahead.last().unwrap()).unwrap());
    }
    assert_eq!(ahead.iter().collect::<HashSet<_>>().len(), 11);
    assert_eq!(ahead.iter().map(|&tag| index_of(tag)).collect::<HashSet<_>>().len(), 3);
    assert_eq!(table.len(), 4, "the region, the window and two reserved indices");
    for pair in ahead[..6].windows(2) {
        assert_eq!(table.bind(STREAM, pair[0], whole(region)), Ok(pair[1]));
    }
    assert_eq!(table.current_tag(ahead[10]), Some(ahead[5]), "of the reserved index");
    table.deregister(ahead[5]).unwrap();
    assert_eq!(table.len(), 1);
    assert_stale(&table, &ahead);
    // The indices that were reserved are used again, but not with the tags that the program may have given to peers.
    let again: HashSet<_> = (0..12).map(|_| use_once(&table)).collect();
    assert!(ahead.iter().all(|tag| !again.contains(tag)), "{again:?}");
}

/// A window of type 2 keeps its index, and the program may choose an instance again. The next owner of the index does
/// not get an instance that the window may have had.
#[test]
fn instances_that_a_program_chooses_are_used_up() {
    let table = table_of(2);
    let region = register(&table, READ | Rights::BIND);
    let with_instance = |tag: Tag, instance: u8| Tag(tag.0 & !0xff | u32::from(instance));
    let bind = |tag| table.bind_as(STREAM, tag, whole(region)).unwrap();
    let first = table.allocate_window(HOME).unwrap();
    let [.., start] = first.0.to_be_bytes();
    // 1 and 5 instances later: those in between count as used.
    for step in [1, 5, 5] {
        let tag = with_instance(first, start.wrapping_add(step));
        bind(tag);
        remote_spans(&table, STREAM, addr(tag, 0), 1, Rights::REMOTE_READ);
    }
    table.deregister(with_instance(first, start.wrapping_add(5))).unwrap();
    let window = table.allocate_window(HOME).unwrap();
    assert_eq!(window, with_instance(first, start.wrapping_add(6)));
    // Back by one: the window has gone all the way round.
    bind(with_instance(first, start.wrapping_add(5)));
    for instance in 0..=u8::MAX {
        bind(with_instance(first, instance));
    }
    table.deregister(with_instance(first, u8::MAX)).unwrap();
    assert_eq!(table.usage().retired, 1);
    assert_ne!(index_of(table.allocate_window(HOME).unwrap()), index_of(first));
}

/// Threads try old tags while the storage of their indices is given to others. `ADDR` is registered by the first tags
/// only.
#[test]
fn old_tags_are_refused_while_their_storage_changes_hands() {
    let table = small_table(3000, u32::MAX, 1);
    let old: Vec<_> = (0..2048).map(|_| use_once(&table)).collect();
    let other = || Memory::direct(2 * ADDR, LEN, READ).unwrap();
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_stale(&table, &old);
                }
            })
        });
        while threads.iter().any(|thread| !thread.is_finished()) {
            let tags: Vec<_> = (0..1500).map(|_| table.register(&ALL, HOME, other()).unwrap()).collect();
            tags.into_iter().for_each(|tag| table.deregister(tag).unwrap());
        }
    });
    assert!(table.usage().retired > 2048);
}
