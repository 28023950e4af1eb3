//! Windows: what can be bound, which streams can use a window, and how a binding ends.

use super::super::{Binding, DeregisterError, RegisterError, Scope, next_tag};
use super::*;

const READ: Rights = Rights::REMOTE_READ;
const BINDABLE: Rights =
    Rights::LOCAL_READ.union(Rights::LOCAL_WRITE).union(Rights::REMOTE_READ).union(Rights::BIND);

/// Describes the binding of a window to part of a region.
fn part(region: Tag) -> Binding {
    Binding {
        region,
        at: ADDR + 0x100,
        len: 0x10,
        rights: READ,
        one_touch: false,
        zero_based: false,
        scope: Scope::Stream,
    }
}

/// Describes the request to unbind a window.
fn unbind(region: Tag) -> Binding {
    Binding { len: 0, ..part(region) }
}

#[test]
fn a_window_opens_its_part_of_the_region_and_no_more() {
    let table = table();
    let region = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let bound = table.bind(STREAM, window, part(region)).unwrap();
    assert_eq!(bound, next_tag(window));
    let at = ADDR + 0x100;
    assert_eq!(remote_spans(&table, STREAM, addr(bound, at), 0x10, READ), [Span::new(at, 0x10)]);
    for (at, len) in [(at - 1, 1), (at, 0x11), (at + 0x10, 1)] {
        assert_eq!(remote_denied(&table, STREAM, addr(bound, at), len, READ), Check::Range);
    }
    assert_eq!(remote_denied(&table, NEIGHBOUR, addr(bound, at), 1, READ), Check::Stream);
    assert_eq!(local_denied(&table, HOME, bound, at, 1, Rights::LOCAL_READ), Check::Kind);

    let zero_based = Binding { zero_based: true, scope: Scope::Domain, ..part(region) };
    let rebound = table.bind(STREAM, bound, zero_based).unwrap();
    assert_eq!(remote_spans(&table, NEIGHBOUR, addr(rebound, 1), 2, READ), [Span::new(at + 1, 2)]);
    assert_eq!(remote_denied(&table, NEIGHBOUR, addr(rebound, at), 1, READ), Check::Range);
    assert_eq!(remote_denied(&table, STRANGER, addr(rebound, 0), 1, READ), Check::Domain);
    assert_eq!(remote_denied(&table, STREAM, addr(bound, 0), 1, READ), Check::Instance);
}

#[test]
fn a_window_of_a_zero_based_region_and_of_a_window_sized_to_it() {
    let table = table();
    let memory = Memory { start: 0, ..memory(BINDABLE) };
    let region = table.register(&ALL, HOME, memory).unwrap();
    let window = table.allocate_window(HOME).unwrap();
    let all = Binding { at: 0, len: LEN, ..part(region) };
    let bound = table.bind(STREAM, window, all).unwrap();
    assert_eq!(remote_spans(&table, STREAM, addr(bound, LEN - 1), 1, READ), [Span::new(ADDR + LEN - 1, 1)]);
}

#[test]
fn binding_is_checked_and_a_refusal_changes_nothing() {
    let table = table();
    let bindable = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let window = table.bind(STREAM, window, part(bindable)).unwrap();
    let check = |stream, window, binding| {
        let denied = table.bind(stream, window, binding).unwrap_err();
        (denied.check, denied.tag)
    };

    // Checks of the window.
    let idle = table.allocate(HOME).unwrap();
    assert_eq!(check(STREAM, Tag(0), part(bindable)), (Check::Valid, Tag(0)));
    assert_eq!(check(STRANGER, idle, part(bindable)), (Check::Kind, idle));
    let stale = other_instance(window);
    assert_eq!(check(STRANGER, stale, part(bindable)), (Check::Domain, stale));
    assert_eq!(check(NEIGHBOUR, stale, part(bindable)), (Check::Stream, stale));
    assert_eq!(check(STREAM, stale, part(bindable)), (Check::Instance, stale));
    assert_eq!(check(STREAM, stale, unbind(bindable)), (Check::Instance, stale));

    // Checks of the region. Each case fails all later checks, too.
    let wrong = Binding { at: u64::MAX, rights: Rights::REMOTE_WRITE, ..part(idle) };
    assert_eq!(check(STREAM, window, wrong), (Check::Valid, idle));
    let other_window = table.allocate_window(HOME).unwrap();
    let other_window = table.bind(STREAM, other_window, part(bindable)).unwrap();
    let wrong = Binding { region: other_window, ..wrong };
    assert_eq!(check(STREAM, window, wrong), (Check::Kind, other_window));
    let away = table.register(&ALL, AWAY, memory(Rights::LOCAL_READ)).unwrap();
    let stale = other_instance(away);
    assert_eq!(check(STREAM, window, Binding { region: stale, ..wrong }), (Check::Domain, stale));
    let region = register(&table, Rights::LOCAL_READ);
    let stale = other_instance(region);
    assert_eq!(check(STREAM, window, Binding { region: stale, ..wrong }), (Check::Instance, stale));
    let wrong = Binding { region, ..wrong };
    assert_eq!(check(STREAM, window, wrong), (Check::Wrap, region));
    let wrong = Binding { at: ADDR + LEN, ..wrong };
    assert_eq!(check(STREAM, window, wrong), (Check::Range, region));
    let wrong = Binding { at: ADDR, ..wrong };
    assert_eq!(check(STREAM, window, wrong), (Check::Right, region));
    let wrong = Binding { rights: READ, ..wrong };
    assert_eq!(check(STREAM, window, wrong), (Check::Bind, region));

    // The window stayed bound throughout, and was counted on no other region.
    remote_spans(&table, STREAM, addr(window, ADDR + 0x100), 1, READ);
    table.deregister(region).unwrap();
    let busy = DeregisterError::Busy { tag: bindable, windows: 2 };
    assert_eq!(table.deregister(bindable), Err(busy));
}

#[test]
fn a_window_needs_the_local_rights_of_its_region() {
    let table = table();
    let cases = [
        (Rights::REMOTE_READ, Rights::LOCAL_READ),
        (Rights::REMOTE_WRITE, Rights::LOCAL_WRITE),
        (Rights::REMOTE_ATOMIC, Rights::LOCAL_READ | Rights::LOCAL_WRITE),
    ];
    for (rights, needed) in cases {
        for has in [Rights::empty(), Rights::LOCAL_READ, Rights::LOCAL_WRITE, needed] {
            let region = register(&table, has | Rights::BIND);
            let window = table.allocate_window(HOME).unwrap();
            let result = table.bind(STREAM, window, Binding { rights, ..part(region) });
            match result {
                Ok(_) => assert!(has.contains(needed), "{rights} on {has}"),
                Err(denied) => {
                    assert!(!has.contains(needed), "{rights} on {has}");
                    assert_eq!((denied.check, denied.tag), (Check::Right, region));
                }
            }
        }
    }
    // A window ignores local rights.
    let region = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let bound = table.bind(STREAM, window, Binding { rights: Rights::all(), ..part(region) }).unwrap();
    assert_eq!(table.look_up(bound).map(|info| info.rights), Some(Rights::REMOTE));
}

#[test]
fn a_region_waits_for_its_windows() {
    let table = table();
    let region = register(&table, BINDABLE);
    let [a, b, c] = [(); 3].map(|()| {
        let window = table.allocate_window(HOME).unwrap();
        table.bind(STREAM, window, part(region)).unwrap()
    });
    let windows = |n| Err(DeregisterError::Busy { tag: region, windows: n });
    assert_eq!(table.deregister(region), windows(3));
    // A window that is bound again to the same region is still counted once.
    let a = table.bind(STREAM, a, part(region)).unwrap();
    assert_eq!(table.deregister(region), windows(3));
    let a = table.bind(STREAM, a, unbind(Tag(0))).unwrap();
    assert_eq!(table.deregister(region), windows(2));
    table.invalidate(STREAM, b).unwrap();
    assert_eq!(table.deregister(region), windows(1));
    table.deregister(c).unwrap();
    table.deregister(region).unwrap();

    for window in [a, b] {
        assert_eq!(remote_denied(&table, STREAM, addr(window, ADDR + 0x100), 1, READ), Check::Valid);
        table.deregister(window).unwrap();
    }
    assert!(table.is_empty());
}

#[test]
fn a_window_that_moves_lets_its_old_region_go() {
    let table = table();
    let [old, new] = [(); 2].map(|()| register(&table, BINDABLE));
    let window = table.allocate_window(HOME).unwrap();
    let window = table.bind(STREAM, window, part(old)).unwrap();
    let window = table.bind(STREAM, window, part(new)).unwrap();
    table.deregister(old).unwrap();
    assert_eq!(table.deregister(new), Err(DeregisterError::Busy { tag: new, windows: 1 }));
    remote_spans(&table, STREAM, addr(window, ADDR + 0x100), 1, READ);
}

#[test]
fn only_the_peer_of_its_stream_invalidates_a_window() {
    let table = table();
    let region = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let check = |stream, tag| table.invalidate_remotely(stream, tag).unwrap_err().check;
    assert_eq!(check(STREAM, window), Check::Valid);
    let window = table.bind(STREAM, window, part(region)).unwrap();
    assert_eq!(check(STRANGER, window), Check::Domain);
    assert_eq!(check(NEIGHBOUR, window), Check::Stream);
    assert_eq!(check(STREAM, next_tag(window)), Check::Instance);
    table.invalidate_remotely(STREAM, window).unwrap();
    assert_eq!(check(STREAM, window), Check::Valid);

    // No peer may invalidate a window for the whole domain, but the program may.
    let for_all = Binding { scope: Scope::Domain, ..part(region) };
    let window = table.bind(NEIGHBOUR, window, for_all).unwrap();
    assert_eq!(check(NEIGHBOUR, window), Check::Invalidate);
    table.invalidate(STREAM, window).unwrap();
    table.deregister(region).unwrap();
}

#[test]
fn a_region_with_windows_is_not_invalidated() {
    let table = table();
    let region = table.allocate(HOME).unwrap();
    table.fill(&ALL, STREAM, region, memory(BINDABLE)).unwrap();
    let window = table.allocate_window(HOME).unwrap();
    let window = table.bind(STREAM, window, part(region)).unwrap();
    assert_eq!(table.invalidate(STREAM, region).unwrap_err().check, Check::Windows);
    assert_eq!(table.invalidate_remotely(STREAM, region).unwrap_err().check, Check::Windows);
    remote_spans(&table, STREAM, addr(window, ADDR + 0x100), 1, READ);
    table.invalidate(STREAM, window).unwrap();
    table.invalidate_remotely(STREAM, region).unwrap();
    let error = table.share(region, HOME, 0, READ).unwrap_err();
    assert!(matches!(error, RegisterError::Denied(denied) if denied.check == Check::Valid));
}

#[test]
fn a_window_cannot_be_shared() {
    let table = table();
    let region = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let window = table.bind(STREAM, window, part(region)).unwrap();
    let error = table.share(window, HOME, 0, READ).unwrap_err();
    assert!(matches!(error, RegisterError::Denied(denied) if denied.check == Check::Kind));
}

/// Windows of type 2 (verbs): the program chooses the instance, and need not know the previous one.
#[test]
fn a_window_gets_the_instance_that_its_consumer_chose() {
    let table = table();
    let region = register(&table, BINDABLE);
    let window = table.allocate_window(HOME).unwrap();
    let at = ADDR + 0x100;
    let mut before = window;
    for chosen in [Tag(window.0 ^ 0x5a), Tag(window.0 ^ 0x3c)] {
        table.bind_as(STREAM, chosen, part(region)).unwrap();
        assert_eq!(remote_spans(&table, STREAM, addr(chosen, at), 1, READ), [Span::new(at, 1)]);
        assert_eq!(remote_denied(&table, STREAM, addr(before, at), 1, READ), Check::Instance);
        before = chosen;
    }
    // A region is not a window, whatever the instance.
    assert_eq!(table.bind_as(STREAM, region, part(region)).unwrap_err().check, Check::Kind);
}
