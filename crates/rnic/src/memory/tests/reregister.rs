//! Re-registration: what changes, what stays, what is refused.

use super::super::{
    Binding, Bytes, EntryInfo, Kind, RegisterError, ReregisterError, Reregistration, Scope, Translation,
};
use super::*;
use crate::config::DeviceConfig;
use crate::device::Device;
use std::collections::HashSet;
use std::sync::Arc;

const READ: Rights = Rights::LOCAL_READ.union(Rights::REMOTE_READ);
const MORE: Rights = READ.union(Rights::LOCAL_WRITE).union(Rights::REMOTE_WRITE);
const ELSEWHERE: u64 = 0x20_0000;

fn bytes(start: u64, len: u64) -> Bytes {
    Bytes { start, len, translation: Arc::new(Translation::direct(ELSEWHERE, 0x800).unwrap()) }
}

/// Describes a re-registration that changes the rights only.
fn change_rights(rights: Rights) -> Reregistration {
    Reregistration { rights: Some(rights), ..Reregistration::default() }
}

/// Describes a re-registration that changes the memory only.
fn change_bytes(bytes: Bytes) -> Reregistration {
    Reregistration { bytes: Some(bytes), ..Reregistration::default() }
}

#[test]
fn reregistration_changes_what_it_names_and_nothing_else() {
    for case in 0..8 {
        let (domain, rights, memory) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        let table = table();
        let old = register(&table, READ);
        let to = Reregistration {
            domain: domain.then_some(AWAY),
            rights: rights.then_some(MORE),
            bytes: memory.then(|| bytes(0, 0x700)),
            keep_tag: false,
        };
        let new = table.reregister(&ALL, old, to).unwrap();
        let (start, len) = if memory { (0, 0x700) } else { (ADDR, LEN) };
        let domain = if domain { AWAY } else { HOME };
        let rights = if rights { MORE } else { READ };
        let kind = Kind::Region;
        let info = EntryInfo {
            tag: new,
            kind,
            valid: true,
            domain,
            qp: None,
            start,
            len,
            rights,
            one_touch: false,
            touched: false,
        };
        assert_eq!(table.look_up(new), Some(info));
        assert_eq!(table.look_up(old), None);
        assert_eq!(remote_denied(&table, STREAM, addr(old, ADDR), 1, Rights::REMOTE_READ), Check::Valid);
        assert_eq!(table.len(), 1);
        let at = if memory { ELSEWHERE } else { ADDR };
        let spans = remote_spans(&table, Stream { domain, qp: 7 }, addr(new, start), 8, Rights::REMOTE_READ);
        assert_eq!(spans, [Span::new(at, 8)]);
        table.deregister(new).unwrap();
    }
}

#[test]
fn a_reregistration_that_is_refused_leaves_the_region_as_it_was() {
    let table = table_of(2);
    let tag = register(&table, READ);
    let before = table.look_up(tag);
    let refused = |host: &Mapped, to| match table.reregister(host, tag, to).unwrap_err() {
        ReregisterError::Register(error) => {
            assert_eq!(table.look_up(tag), before, "{error}");
            remote_spans(&table, STREAM, addr(tag, ADDR), 8, Rights::REMOTE_READ);
            error
        }
        error => panic!("{error}"),
    };
    assert_eq!(refused(&ALL, change_bytes(bytes(0, 0))), RegisterError::Empty);
    let too_long = RegisterError::TooLong { len: 0x801, translated: 0x800 };
    assert_eq!(refused(&ALL, change_bytes(bytes(0, 0x801))), too_long);
    let start = u64::MAX - 0x7ff;
    assert_eq!(refused(&ALL, change_bytes(bytes(start, 0x800))), RegisterError::Wrap { start, len: 0x800 });
    let rights = Rights::REMOTE_WRITE;
    assert_eq!(refused(&ALL, change_rights(rights)), RegisterError::Rights(rights));
    let old_only = Mapped(ADDR..ADDR + LEN);
    let unmapped = Span::new(ELSEWHERE, 0x800);
    assert_eq!(refused(&old_only, change_bytes(bytes(0, 0x800))), RegisterError::Unmapped(unmapped));
    // A re-registration needs a second entry, because it frees the old one last.
    let other = register(&table, READ);
    assert_eq!(refused(&ALL, change_rights(MORE)), RegisterError::Full { entries: 2 });
    table.deregister(other).unwrap();
    table.reregister(&old_only, tag, change_rights(MORE)).unwrap();
    assert_eq!(table.len(), 1);
}

#[test]
fn what_cannot_be_registered_anew() {
    let table = table();
    let refused = |tag| match table.reregister(&ALL, tag, change_rights(MORE)).unwrap_err() {
        ReregisterError::Denied(denied) => (denied.check, denied.tag),
        error => panic!("{error}"),
    };
    assert_eq!(refused(Tag(0)), (Check::Valid, Tag(0)));
    let tag = register(&table, MORE | Rights::BIND);
    assert_eq!(refused(other_instance(tag)), (Check::Instance, other_instance(tag)));
    let idle = table.allocate(HOME).unwrap();
    assert_eq!(refused(idle), (Check::Valid, idle));
    table.fill(&ALL, STREAM, idle, memory(READ)).unwrap();
    assert_eq!(refused(idle), (Check::Kind, idle), "requests rely on its next tag");

    let window = table.allocate_window(HOME).unwrap();
    let binding = Binding {
        region: tag,
        at: ADDR,
        len: 8,
        rights: Rights::REMOTE_READ,
        one_touch: false,
        zero_based: false,
        scope: Scope::Stream,
    };
    let window = table.bind(STREAM, window, binding).unwrap();
    assert_eq!(refused(window), (Check::Kind, window));
    let busy = ReregisterError::Busy { tag, windows: 1 };
    assert_eq!(table.reregister(&ALL, tag, change_rights(READ)), Err(busy));
    remote_spans(&table, STREAM, addr(window, ADDR), 8, Rights::REMOTE_READ);
    table.deregister(window).unwrap();
    let gone = table.reregister(&ALL, tag, change_rights(READ)).unwrap();
    table.deregister(gone).unwrap();
    assert_eq!(refused(gone), (Check::Valid, gone));
}

/// An entry has 256 instances: a region that stayed in its entry would have its first tag again after 256 changes.
#[test]
fn a_region_that_goes_back_and_forth_does_not_come_back_to_an_old_tag() {
    let table = table_of(4096);
    let mut tag = register(&table, READ);
    let mut tags = HashSet::from([tag]);
    for round in 0..10_000 {
        let rights = if round % 2 == 0 { MORE } else { READ };
        tag = table.reregister(&ALL, tag, change_rights(rights)).unwrap();
        assert!(tags.insert(tag), "round {round}");
    }
    assert_eq!(table.len(), 1);
}

#[test]
fn a_shared_registration_stays_when_the_other_changes() {
    let table = table();
    let tag = register(&table, READ);
    let shared = table.share(tag, HOME, 0, READ).unwrap();
    table.reregister(&ALL, tag, change_bytes(bytes(0, 16))).unwrap();
    assert_eq!(
        remote_spans(&table, STREAM, addr(shared, 4), 8, Rights::REMOTE_READ),
        [Span::new(ADDR + 4, 8)]
    );
}

#[test]
fn one_touch_memory_that_is_registered_anew_serves_again() {
    let table = table();
    let once = Memory { one_touch: true, ..memory(READ) };
    let tag = table.register(&ALL, HOME, once).unwrap();
    let bindable = table.reregister(&ALL, tag, change_rights(READ | Rights::BIND));
    assert_eq!(bindable, Err(RegisterError::OneTouch.into()));
    remote_spans(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ);
    let tag = table.reregister(&ALL, tag, Reregistration::default()).unwrap();
    remote_spans(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ);
    assert_eq!(remote_denied(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ), Check::Touched);
}

#[test]
fn an_injected_fault_leaves_the_region_as_it_was() {
    let faults = "no-register@1".parse().unwrap();
    let device = Device::new(DeviceConfig { faults, ..DeviceConfig::default() }, Arc::new(ALL), cipher());
    let tag = register(device.table(), READ);
    let error = device.reregister(tag, change_rights(MORE)).unwrap_err();
    assert!(matches!(error, ReregisterError::Register(RegisterError::Injected)), "{error}");
    remote_spans(device.table(), STREAM, addr(tag, ADDR), 8, Rights::REMOTE_READ);
}

/// Verbs programs for RoCE adapters rely on unchanged keys.
#[test]
fn the_tag_stays_if_that_is_asked_for() {
    let table = table();
    let tag = register(&table, Rights::LOCAL_READ);
    let rights = Rights::LOCAL_READ | Rights::REMOTE_READ;
    assert_eq!(remote_denied(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ), Check::Right);
    let to = Reregistration { rights: Some(rights), keep_tag: true, ..Reregistration::default() };
    assert_eq!(table.reregister(&ALL, tag, to).unwrap(), tag);
    remote_spans(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ);
    let to = Reregistration { domain: Some(AWAY), keep_tag: true, ..Reregistration::default() };
    assert_eq!(table.reregister(&ALL, tag, to).unwrap(), tag);
    assert_eq!(remote_denied(&table, STREAM, addr(tag, ADDR), 1, Rights::REMOTE_READ), Check::Domain);
    assert_eq!(table.len(), 1);
}
