//! The order of the checks of an access. The tests start with an access that fails all checks, and correct one
//! parameter at a time.

use super::super::{Binding, Check, Denied, Limits, Rights, Scope, Spans, Table};
use super::*;
use ironwarp_wire::{Cause, Protection, TaggedBuffer};

const WRITE: Rights = Rights::LOCAL_WRITE;
/// An offset at which an access of 4 bytes exceeds 64 bits.
const WRAPPING: u64 = u64::MAX - 1;
/// The offset just past the memory.
const BEHIND: u64 = ADDR + LEN;

#[test]
fn local_checks_come_in_order() {
    let table = table();
    let tag = register(&table, Rights::LOCAL_READ);
    let window = table.allocate_window(HOME).unwrap();
    let host_region = register(&table, Rights::LOCAL_READ | Rights::BIND);
    let idle = table.allocate(HOME).unwrap();

    for nothing in [Tag(0), Tag(0xff), Tag(u32::MAX), Tag(99 << 8), other_instance(idle), window] {
        assert_eq!(local_denied(&table, AWAY, nothing, WRAPPING, 4, WRITE), Check::Valid, "{nothing}");
    }
    let window = table.bind(STREAM, window, whole(host_region, Rights::empty())).unwrap();
    let stale = other_instance(window);
    assert_eq!(local_denied(&table, AWAY, stale, WRAPPING, 4, WRITE), Check::Kind);
    let stale = other_instance(tag);
    assert_eq!(local_denied(&table, AWAY, stale, WRAPPING, 4, WRITE), Check::Domain);
    assert_eq!(local_denied(&table, HOME, stale, WRAPPING, 4, WRITE), Check::Instance);
    assert_eq!(local_denied(&table, HOME, tag, WRAPPING, 4, WRITE), Check::Wrap);
    assert_eq!(local_denied(&table, HOME, tag, BEHIND, 4, WRITE), Check::Range);
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 4, WRITE), Check::Right);
    assert_eq!(local_spans(&table, tag, ADDR, 4, Rights::LOCAL_READ), [Span::new(ADDR, 4)]);
}

#[test]
fn remote_checks_come_in_order() {
    let table = table();
    let host_region = register(&table, Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::BIND);
    let unbound = table.allocate_window(HOME).unwrap();
    let need = Rights::REMOTE_WRITE;

    assert_eq!(remote_denied(&table, STRANGER, addr(Tag(0), WRAPPING), 4, need), Check::Valid);
    assert_eq!(remote_denied(&table, STRANGER, addr(unbound, WRAPPING), 4, need), Check::Valid);
    let tag = table.bind(STREAM, unbound, whole(host_region, Rights::REMOTE_READ)).unwrap();
    let stale = other_instance(tag);
    assert_eq!(remote_denied(&table, STRANGER, addr(stale, WRAPPING), 4, need), Check::Domain);
    assert_eq!(remote_denied(&table, NEIGHBOUR, addr(stale, WRAPPING), 4, need), Check::Stream);
    assert_eq!(remote_denied(&table, STREAM, addr(stale, WRAPPING), 4, need), Check::Instance);
    assert_eq!(remote_denied(&table, STREAM, addr(tag, WRAPPING), 4, need), Check::Wrap);
    assert_eq!(remote_denied(&table, STREAM, addr(tag, BEHIND), 4, need), Check::Range);
    assert_eq!(remote_denied(&table, STREAM, addr(tag, ADDR), 4, need), Check::Right);
    let spans = remote_spans(&table, STREAM, addr(tag, ADDR), 4, Rights::REMOTE_READ);
    assert_eq!(spans, [Span::new(ADDR, 4)]);
}

#[test]
fn the_range_is_exact_at_both_ends() {
    let table = table();
    let tag = register(&table, Rights::LOCAL_READ);
    let check = |at, len| local_denied(&table, HOME, tag, at, len, Rights::LOCAL_READ);
    assert_eq!(local_spans(&table, tag, ADDR, 0x1000, Rights::LOCAL_READ), [Span::new(ADDR, 0x1000)]);
    assert_eq!(local_spans(&table, tag, BEHIND - 1, 1, Rights::LOCAL_READ), [Span::new(BEHIND - 1, 1)]);
    assert_eq!(check(ADDR, 0x1001), Check::Range);
    assert_eq!(check(ADDR - 1, 1), Check::Range);
    assert_eq!(check(ADDR - 1, 0x1001), Check::Range);
    assert_eq!(check(BEHIND, 1), Check::Range);
    assert_eq!(check(BEHIND - 1, 2), Check::Range);
    // RFC 5041 §7.1: the 64-bit sum must not wrap; a sum of exactly zero is a wrap too.
    assert_eq!(check(u64::MAX - 1, 1), Check::Range);
    assert_eq!(check(u64::MAX, 1), Check::Wrap);
    assert_eq!(check(1, usize::MAX), Check::Wrap);
}

#[test]
fn every_right_is_its_own() {
    let table = table();
    let all = Rights::all();
    for given in all.iter() {
        // Some rights can only be registered together with the local write right.
        let with = given | Rights::LOCAL_WRITE;
        let tag = register(&table, with);
        for need in all.iter() {
            let result = table.admit_local(HOME, tag, ADDR, 1, need, &mut Spans::new()).map(drop);
            match result {
                Ok(()) => assert!(with.contains(need)),
                Err(denied) if need == Rights::BIND => assert_eq!(denied.check, Check::Bind),
                Err(denied) => assert_eq!(denied.check, Check::Right),
            }
        }
        table.deregister(tag).unwrap();
    }
    let tag = register(&table, Rights::LOCAL_READ);
    let both = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 1, both), Check::Right);
}

#[test]
fn strict_mode_opens_only_windows_to_peers() {
    let rights = Rights::LOCAL_READ | Rights::REMOTE_READ | Rights::BIND;
    for strict in [false, true] {
        let table = Table::new(Limits { strict, ..Limits::new(10) }, cipher());
        let tag = register(&table, rights);
        let window = table.allocate_window(HOME).unwrap();
        let window = table.bind(STREAM, window, whole(tag, Rights::REMOTE_READ)).unwrap();
        let spans = remote_spans(&table, STREAM, addr(window, ADDR), 4, Rights::REMOTE_READ);
        assert_eq!(spans, [Span::new(ADDR, 4)]);
        if strict {
            let check = remote_denied(&table, STRANGER, addr(tag, WRAPPING), 4, Rights::REMOTE_READ);
            assert_eq!(check, Check::Kind);
        } else {
            remote_spans(&table, NEIGHBOUR, addr(tag, ADDR), 4, Rights::REMOTE_READ);
        }
        local_spans(&table, tag, ADDR, 4, Rights::LOCAL_READ);
    }
}

#[test]
fn a_zero_based_region_is_reached_by_offsets() {
    let table = table();
    let memory = Memory { start: 0, ..memory(Rights::LOCAL_READ) };
    let tag = table.register(&ALL, HOME, memory).unwrap();
    assert_eq!(local_spans(&table, tag, 0x10, 4, Rights::LOCAL_READ), [Span::new(ADDR + 0x10, 4)]);
    assert_eq!(local_denied(&table, HOME, tag, ADDR, 4, Rights::LOCAL_READ), Check::Range);
}

#[test]
fn spans_of_several_accesses_gather_in_one_list() {
    let table = table();
    let tag = register(&table, Rights::LOCAL_READ);
    let mut spans = Spans::new();
    let guards: Vec<_> = [(0, 8), (8, 8), (64, 8)]
        .map(|(at, len)| {
            table.admit_local(HOME, tag, ADDR + at, len, Rights::LOCAL_READ, &mut spans).unwrap()
        })
        .into();
    assert_eq!(*spans, [Span::new(ADDR, 16), Span::new(ADDR + 64, 8)]);
    assert_eq!(spans.bytes(), 24);
    drop(guards);
    spans.clear();
    assert!(spans.is_empty());
}

#[test]
fn a_denial_knows_what_answers_it_and_says_why() {
    let table = table();
    let tag = register(&table, Rights::LOCAL_READ);
    let deny = |tag, at, need| table.admit_local(HOME, tag, at, 4, need, &mut Spans::new()).unwrap_err();
    let denial = deny(tag, ADDR, WRITE);
    assert_eq!(
        denial.to_string(),
        format!("{tag}+0x100000, 4 bytes: requires LOCAL_WRITE, the region has LOCAL_READ")
    );
    assert_eq!(denial.write_cause(), Cause::Protection(Protection::Access));
    assert_eq!(
        deny(tag, BEHIND, WRITE).to_string(),
        format!("{tag}+0x101000, 4 bytes: out of range: the region has 4096 bytes at 0x100000")
    );
    let other = other_instance(tag);
    assert_eq!(
        deny(other, ADDR, WRITE).to_string(),
        format!("{other}+0x100000, 4 bytes: stale tag: the region now has {tag}")
    );
    assert_eq!(
        deny(Tag(0), 0, WRITE).to_string(),
        "0x00000000+0x0, 4 bytes: invalid tag: wrong, or already deregistered"
    );

    let causes = [
        (Check::Valid, TaggedBuffer::Tag, Protection::Tag),
        (Check::Kind, TaggedBuffer::Tag, Protection::Tag),
        (Check::Domain, TaggedBuffer::Stream, Protection::Stream),
        (Check::Stream, TaggedBuffer::Stream, Protection::Stream),
        (Check::Instance, TaggedBuffer::Tag, Protection::Tag),
        (Check::Wrap, TaggedBuffer::Wrap, Protection::Wrap),
        (Check::Range, TaggedBuffer::Bounds, Protection::Bounds),
    ];
    for (check, write, read) in causes {
        let denial = Denied { check, ..denial };
        assert_eq!(denial.write_cause(), Cause::TaggedBuffer(write));
        assert_eq!(denial.read_cause(), Cause::Protection(read));
    }
    assert_eq!(denial.read_cause(), Cause::Protection(Protection::Access));
    assert_eq!(Denied::invalidate_cause(), Cause::Protection(Protection::Invalidate));
}

/// Describes the binding of a window to a whole region.
fn whole(region: Tag, rights: Rights) -> Binding {
    Binding { region, at: ADDR, len: LEN, rights, one_touch: false, zero_based: false, scope: Scope::Stream }
}
