//! Registration by call and by send-queue request, sharing, invalidation, and reuse of tags.

use super::super::slab::Slab;
use super::super::{DeregisterError, EntryInfo, Kind, RegisterError, Translation, index_of, next_tag};
use super::*;
use std::sync::Arc;

const READ: Rights = Rights::LOCAL_READ;

#[test]
fn what_cannot_be_registered() {
    let table = table();
    let refuse = |host: &Mapped, memory| table.register(host, HOME, memory).unwrap_err();
    let good = memory(READ);
    assert_eq!(refuse(&ALL, Memory { len: 0, ..good.clone() }), RegisterError::Empty);
    assert_eq!(
        refuse(&ALL, Memory { len: LEN + 1, ..good.clone() }),
        RegisterError::TooLong { len: LEN + 1, translated: LEN }
    );
    let start = u64::MAX - LEN + 1;
    assert_eq!(refuse(&ALL, Memory { start, ..good.clone() }), RegisterError::Wrap { start, len: LEN });
    for right in [Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
        assert_eq!(refuse(&ALL, memory(READ | right)), RegisterError::Rights(READ | right));
        table.deregister(register(&table, right | Rights::LOCAL_WRITE)).unwrap();
    }
    let span = Span::new(ADDR, 0x1000);
    assert_eq!(refuse(&Mapped(ADDR..ADDR + LEN - 1), good.clone()), RegisterError::Unmapped(span));
    assert_eq!(table.len(), 0);
    table.register(&Mapped(ADDR..ADDR + LEN), HOME, good.clone()).unwrap();
    table.register(&ALL, HOME, Memory { start: start - 1, ..good }).unwrap();
    assert_eq!(table.len(), 2);
}

#[test]
fn every_part_must_be_mapped_but_only_what_is_registered() {
    let table = table();
    let parts = [Span::new(ADDR, 16), Span::new(ADDR + 0x1000, 16)];
    let translation = Arc::new(Translation::buffers(&parts).unwrap());
    let host = Mapped(ADDR..ADDR + 0x100);
    let memory =
        |len| Memory { start: 0, len, rights: READ, one_touch: false, translation: Arc::clone(&translation) };
    assert_eq!(
        table.register(&host, HOME, memory(17)),
        Err(RegisterError::Unmapped(Span { len: 1, ..parts[1] }))
    );
    table.register(&host, HOME, memory(16)).unwrap();
}

#[test]
fn a_full_table_says_so() {
    let table = table_of(2);
    let first = register(&table, READ);
    let second = table.allocate(HOME).unwrap();
    let full = RegisterError::Full { entries: 2 };
    assert_eq!(table.register(&ALL, HOME, memory(READ)), Err(full));
    assert_eq!(table.allocate(HOME), Err(full));
    assert_eq!(table.allocate_window(HOME), Err(full));
    assert_eq!(table.share(first, HOME, 0, READ), Err(full));
    table.deregister(second).unwrap();
    table.allocate_window(HOME).unwrap();
    assert_eq!(table.allocate(HOME), Err(full));
}

#[test]
fn an_old_tag_is_not_honoured_when_its_index_is_used_again() {
    let table = table_of(1);
    let mut old: Vec<Tag> = Vec::new();
    for _ in 0..1000 {
        let tag = register(&table, READ);
        assert!(!old.contains(&tag), "{tag} came back");
        for &old in &old {
            let denied = local_denied(&table, HOME, old, ADDR, 1, READ);
            let same_index = index_of(old) == index_of(tag);
            assert_eq!(denied, if same_index { Check::Instance } else { Check::Valid });
            assert_eq!(table.look_up(old), None);
            assert_eq!(table.deregister(old), Err(DeregisterError::Unknown(old)));
        }
        local_spans(&table, tag, ADDR, 1, READ);
        table.deregister(tag).unwrap();
        assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, READ), Check::Valid);
        assert_eq!(table.deregister(tag), Err(DeregisterError::Unknown(tag)));
        old.push(tag);
    }
}

#[test]
fn a_million_entries() {
    let table = table_of(1_000_000);
    let translation = Arc::new(Translation::direct(ADDR, LEN).unwrap());
    let tags: Vec<_> = (0..1_000_000)
        .map(|start| {
            let memory = Memory {
                start,
                len: LEN,
                rights: READ,
                one_touch: false,
                translation: Arc::clone(&translation),
            };
            table.register(&ALL, HOME, memory).unwrap()
        })
        .collect();
    assert_eq!(table.len(), 1_000_000);
    assert!(table.register(&ALL, HOME, memory(READ)).is_err());
    for (start, &tag) in tags.iter().enumerate().step_by(997) {
        assert_eq!(local_spans(&table, tag, start as u64, 1, READ), [Span::new(ADDR, 1)]);
    }
    for tag in tags {
        table.deregister(tag).unwrap();
    }
    assert!(table.is_empty());
}

#[test]
fn more_entries_than_a_tag_can_name_are_not_promised() {
    for entries in [(1 << 24) - 2, 1 << 24, usize::MAX] {
        assert_eq!(Slab::new(Limits::new(entries), cipher(), Arc::default()).max_entries, (1 << 24) - 2);
    }
    let table = table_of(usize::MAX);
    local_spans(&table, register(&table, READ), ADDR, 1, READ);
    assert_eq!(local_denied(&table, HOME, Tag(u32::MAX), 0, 1, READ), Check::Valid);
}

#[test]
fn regions_share_a_translation_and_nothing_else() {
    let table = table();
    let tag = register(&table, READ | Rights::LOCAL_WRITE);
    let shared = table.share(tag, AWAY, 0, READ).unwrap();
    let info = EntryInfo {
        tag: shared,
        kind: Kind::Region,
        valid: true,
        domain: AWAY,
        qp: None,
        start: 0,
        len: LEN,
        rights: READ,
        one_touch: false,
        touched: false,
    };
    assert_eq!(table.look_up(shared), Some(info));
    assert_eq!(local_denied(&table, HOME, shared, 0, 1, READ), Check::Domain);
    assert_eq!(local_denied(&table, AWAY, shared, 0, 1, Rights::LOCAL_WRITE), Check::Right);
    table.deregister(tag).unwrap();
    let mut spans = Spans::new();
    drop(table.admit_local(AWAY, shared, 4, 8, READ, &mut spans).unwrap());
    assert_eq!(*spans, [Span::new(ADDR + 4, 8)]);

    let refused = |tag, start, rights| match table.share(tag, AWAY, start, rights).unwrap_err() {
        RegisterError::Denied(denied) => Ok(denied.check),
        error => Err(error),
    };
    assert_eq!(refused(tag, 0, READ), Ok(Check::Valid));
    assert_eq!(refused(other_instance(shared), 0, READ), Ok(Check::Instance));
    let start = u64::MAX;
    assert_eq!(refused(shared, start, READ), Err(RegisterError::Wrap { start, len: LEN }));
    let rights = Rights::REMOTE_WRITE;
    assert_eq!(refused(shared, 0, rights), Err(RegisterError::Rights(rights)));
}

#[test]
fn a_translation_lives_as_long_as_an_entry_needs_it() {
    let table = table();
    let memory = memory(READ);
    let translation = Arc::downgrade(&memory.translation);
    let tag = table.register(&ALL, HOME, memory).unwrap();
    let shared = table.share(tag, HOME, 0, READ).unwrap();
    table.deregister(tag).unwrap();
    assert!(translation.upgrade().is_some());
    table.deregister(shared).unwrap();
    assert!(translation.upgrade().is_none());
}

/// Executes a registration by send-queue request, and returns the check that failed, if any.
fn fill(table: &Table, stream: Stream, tag: Tag) -> Result<(), Check> {
    table.fill(&ALL, stream, tag, memory(READ)).map_err(|error| match error {
        RegisterError::Denied(denied) => denied.check,
        error => panic!("{error}"),
    })
}

#[test]
fn registration_by_send_queue_request() {
    let table = table();
    let tag = table.allocate(HOME).unwrap();
    assert_eq!(table.look_up(tag).map(|info| info.valid), Some(false));
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, READ), Check::Valid);

    assert_eq!(fill(&table, STREAM, Tag(0)), Err(Check::Valid));
    assert_eq!(fill(&table, STREAM, Tag(99 << 8)), Err(Check::Valid));
    assert_eq!(fill(&table, STRANGER, tag), Err(Check::Domain));
    assert_eq!(fill(&table, STREAM, next_tag(tag)), Err(Check::Instance));
    assert_eq!(fill(&table, STREAM, table.allocate_window(HOME).unwrap()), Err(Check::Kind));
    let unmapped = table.fill(&Mapped(0..1), STREAM, tag, memory(READ)).unwrap_err();
    assert!(matches!(unmapped, RegisterError::Unmapped(_)));

    assert_eq!(fill(&table, STREAM, tag), Ok(()));
    assert_eq!(local_spans(&table, tag, ADDR, 1, READ), [Span::new(ADDR, 1)]);
    assert_eq!(fill(&table, STREAM, tag), Err(Check::Idle));
    assert_eq!(fill(&table, STREAM, next_tag(tag)), Err(Check::Idle));
    assert_eq!(fill(&table, STREAM, register(&table, READ)), Err(Check::Idle));
}

#[test]
fn after_an_invalidation_the_next_tag_is_filled() {
    let table = table();
    let mut tag = table.allocate(HOME).unwrap();
    for _ in 0..300 {
        // An entry need not be valid to be invalidated.
        table.invalidate(STREAM, tag).unwrap();
        fill(&table, STREAM, tag).unwrap();
        table.invalidate(NEIGHBOUR, tag).unwrap();
        table.invalidate(STREAM, tag).unwrap();
        assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, READ), Check::Valid);
        assert_eq!(fill(&table, STREAM, tag), Err(Check::Instance));
        let old = tag;
        tag = next_tag(tag);
        fill(&table, STREAM, tag).unwrap();
        local_spans(&table, tag, ADDR, 1, READ);
        assert_eq!(local_denied(&table, HOME, old, ADDR, 1, READ), Check::Instance);
        table.invalidate(STREAM, tag).unwrap();
        tag = next_tag(tag);
        assert_eq!(table.look_up(tag), None, "the entry gets this tag only when it is filled");
        fill(&table, STREAM, tag).unwrap();
        table.invalidate(STREAM, tag).unwrap();
        table.deregister(tag).unwrap();
        tag = table.allocate(HOME).unwrap();
    }
    assert_eq!(table.len(), 1);
}

#[test]
fn local_invalidation_is_checked() {
    let table = table();
    let check = |stream, tag| table.invalidate(stream, tag).unwrap_err().check;
    let tag = table.allocate(HOME).unwrap();
    fill(&table, STREAM, tag).unwrap();
    assert_eq!(check(STREAM, Tag(0)), Check::Valid);
    assert_eq!(check(STRANGER, other_instance(tag)), Check::Domain);
    assert_eq!(check(STREAM, other_instance(tag)), Check::Instance);
    assert_eq!(check(STREAM, register(&table, READ)), Check::Invalidate);
    local_spans(&table, tag, ADDR, 1, READ);
}

#[test]
fn remote_invalidation_is_checked() {
    let table = table();
    let check = |stream, tag| table.invalidate_remotely(stream, tag).unwrap_err().check;
    let tag = table.allocate(HOME).unwrap();
    assert_eq!(check(STREAM, Tag(0)), Check::Valid);
    assert_eq!(check(STREAM, tag), Check::Valid);
    fill(&table, STREAM, tag).unwrap();
    assert_eq!(check(STRANGER, other_instance(tag)), Check::Domain);
    assert_eq!(check(STREAM, other_instance(tag)), Check::Instance);
    assert_eq!(check(NEIGHBOUR, tag), Check::Stream);
    assert_eq!(check(STREAM, register(&table, READ)), Check::Invalidate);
    local_spans(&table, tag, ADDR, 1, READ);

    table.invalidate_remotely(STREAM, tag).unwrap();
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, READ), Check::Valid);
    assert_eq!(check(STREAM, tag), Check::Valid);
    // The next registration belongs to the stream that makes it.
    fill(&table, NEIGHBOUR, next_tag(tag)).unwrap();
    assert_eq!(check(STREAM, next_tag(tag)), Check::Stream);
    table.invalidate_remotely(NEIGHBOUR, next_tag(tag)).unwrap();
}

#[test]
fn strict_mode_keeps_regions_from_remote_invalidation() {
    let table = Table::new(Limits { strict: true, ..Limits::new(1) }, cipher());
    let tag = table.allocate(HOME).unwrap();
    fill(&table, STREAM, tag).unwrap();
    assert_eq!(table.invalidate_remotely(STREAM, tag).unwrap_err().check, Check::Kind);
    table.invalidate(STREAM, tag).unwrap();
}

/// On-demand paging: nothing needs to be mapped, and one region may cover all addresses.
#[test]
fn on_demand_all_memory_is_one_region() {
    let table = table();
    let everything = Memory::direct(0, u64::MAX, Rights::LOCAL_READ).unwrap();
    assert!(table.register(&Mapped(0..1), HOME, everything.clone()).is_err());
    let tag = table.register_on_demand(HOME, everything).unwrap();
    let mut spans = Spans::new();
    for addr in [0, ADDR, u64::MAX - 1] {
        spans.clear();
        table.admit_local(HOME, tag, addr, 1, Rights::LOCAL_READ, &mut spans).unwrap();
        assert_eq!(spans[..], [Span::new(addr, 1)]);
    }
}
