//! Requirement M9, a to f: the memory that a remote Write or Read names is checked before a byte moves.

use crate::common::peer::StartupSettings;
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{read, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Check, Denied, Rights, next_tag};
use ironwarp_wire::{Cause, Header, Protection, Tag, TaggedBuffer};

const LEN: u32 = 64;

/// A remote access to memory.
#[derive(Clone, Copy)]
enum Access {
    Write,
    Read,
}

/// The memory that the peer names, given the victim and the number of its queue pair.
type Named = fn(&Victim, u32) -> (Tag, u64);

/// Makes an access, and checks that it is refused.
fn refused(config: Config, access: Access, named: Named, check: Check, cause: Cause) {
    let victim = Victim::with(config);
    let mut attacked = victim.connect_peer();
    let (tag, offset) = named(&victim, attacked.pair.qp().id());
    let fpdu = match access {
        Access::Write => attacked.peer.send(&write(tag, offset), &[0xee; LEN as usize]),
        Access::Read => attacked.peer.send(&read(1, tag, offset, LEN), &[]),
    };
    let error = attacked.assert_terminated(cause, &fpdu);
    let QpError::Remote(denied) = &*error else { panic!("{error:?}") };
    assert_eq!((denied.check, denied.tag, denied.offset), (check, tag, offset), "{denied}");
    assert_eq!((denied.len, denied.domain), (LEN.into(), victim.domain), "{denied}");
    victim.assert_untouched();
    victim.assert_survives();
}

macro_rules! refused {
    ($($(#[$doc:meta])* $name:ident: $named:expr, $check:ident,
        Write $tagged:expr, Read $protection:expr;)*) => {
        $($(#[$doc])* mod $name {
            use super::*;

            #[test]
            fn write() {
                refused(Config::default(), Access::Write, $named, Check::$check, $tagged);
            }

            #[test]
            fn read() {
                refused(Config::default(), Access::Read, $named, Check::$check, Cause::Protection($protection));
            }
        })*
    };
}

const fn tagged(code: TaggedBuffer) -> Cause {
    Cause::TaggedBuffer(code)
}

// The causes are those of RFC 5041 §7.2 for a Write, and of RFC 5040 §4.8 (figure 9) for a Read.
refused! {
    /// a: no entry has this index.
    a_tag_that_never_existed: |victim, _| (Tag(0xff), victim.open.addr), Valid,
        Write tagged(TaggedBuffer::Tag), Read Protection::Tag;
    /// a: the entry is free again.
    a_tag_that_was_given_back: |victim, _| {
        victim.engine.device().table().deregister(victim.open.tag).unwrap();
        (victim.open.tag, victim.open.addr)
    }, Valid, Write tagged(TaggedBuffer::Tag), Read Protection::Tag;
    /// a: the window is not bound.
    a_window_that_is_not_bound: |victim, _| {
        let table = victim.engine.device().table();
        (table.allocate_window(victim.domain).unwrap(), victim.open.addr)
    }, Valid, Write tagged(TaggedBuffer::Tag), Read Protection::Tag;
    /// c: the tag belongs to another protection domain.
    c_tag_of_another_domain: |victim, _| (victim.foreign.tag, victim.foreign.addr), Domain,
        Write tagged(TaggedBuffer::Stream), Read Protection::Stream;
    /// c: the window belongs to another stream.
    c_window_of_another_stream: |victim, qp| {
        let remote = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        (victim.window(&victim.bindable, qp + 1, remote), victim.bindable.addr)
    }, Stream, Write tagged(TaggedBuffer::Stream), Read Protection::Stream;
    /// d: the index is right, but not the instance (requirement M4).
    d_tag_of_another_instance: |victim, _| (next_tag(victim.open.tag), victim.open.addr), Instance,
        Write tagged(TaggedBuffer::Tag), Read Protection::Tag;
    /// e: one byte before the first.
    e_range_begins_a_byte_early: |victim, _| (victim.open.tag, victim.open.addr - 1), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// e: one byte past the last.
    e_range_ends_a_byte_late: |victim, _| (victim.open.tag, victim.open.end() - u64::from(LEN) + 1), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// e: entirely past the last byte.
    e_range_is_elsewhere: |victim, _| (victim.open.tag, victim.open.end() + AREA as u64), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// The end is beyond 2^64.
    e_range_wraps: |victim, _| (victim.open.tag, u64::MAX - 10), Wrap,
        Write tagged(TaggedBuffer::Wrap), Read Protection::Wrap;
    /// The end is exactly 2^64, which does not fit 64 bits either.
    e_range_ends_exactly_at_2_to_the_64: |victim, _| (victim.open.tag, (LEN as u64).wrapping_neg()), Wrap,
        Write tagged(TaggedBuffer::Wrap), Read Protection::Wrap;
    /// f: not accessible to peers at all.
    f_region_that_peers_may_not_reach: |victim, _| (victim.private.tag, victim.private.addr), Right,
        Write Cause::Protection(Protection::Access), Read Protection::Access;
}

/// f: a region may allow only one of the two.
#[test]
fn f_write_where_peers_may_only_read() {
    let cause = Cause::Protection(Protection::Access);
    let named: Named = |victim, _| (victim.readable.tag, victim.readable.addr);
    refused(Config::default(), Access::Write, named, Check::Right, cause);
}

#[test]
fn f_read_where_peers_may_only_write() {
    let cause = Cause::Protection(Protection::Access);
    let named: Named = |victim, _| (victim.writable.tag, victim.writable.addr);
    refused(Config::default(), Access::Read, named, Check::Right, cause);
}

/// b: in strict mode peers can access windows only. This is the only case in which the kind can be wrong for
/// a peer.
#[test]
fn b_region_in_strict_mode() {
    let strict = || Config::default().strict_windows(true);
    let named: Named = |victim, _| (victim.foreign.tag, victim.foreign.addr);
    // The neighbour uses regions, so there is none here: strict mode applies to the whole adapter.
    for (access, cause) in
        [(Access::Write, tagged(TaggedBuffer::Tag)), (Access::Read, Cause::Protection(Protection::Tag))]
    {
        refused_in_strict_mode(strict(), access, named, cause);
    }
}

fn refused_in_strict_mode(config: Config, access: Access, named: Named, cause: Cause) {
    let victim = Victim::alone(config);
    let mut attacked = victim.connect_peer();
    let (tag, offset) = named(&victim, attacked.pair.qp().id());
    let header = match access {
        Access::Write => write(tag, offset),
        Access::Read => read(1, tag, offset, LEN),
    };
    let payload = if matches!(access, Access::Write) { &[0xee; LEN as usize][..] } else { &[] };
    let fpdu = attacked.peer.send(&header, payload);
    let error = attacked.assert_terminated(cause, &fpdu);
    let QpError::Remote(Denied { check: Check::Kind, .. }) = *error else { panic!("{error:?}") };
    victim.assert_untouched();
}

/// Strict mode still allows windows: the same accesses succeed.
#[test]
fn strict_mode_leaves_windows_open() {
    let victim = Victim::alone(Config::default().strict_windows(true));
    let mut attacked = victim.connect_peer();
    let remote = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let window = victim.window(&victim.bindable, attacked.pair.qp().id(), remote);
    attacked.peer.send(&write(window, victim.bindable.addr), b"through the window");
    attacked.peer.send(&read(1, window, victim.bindable.addr, 18), &[]);
    let answer = attacked.peer.receive_message();
    let crate::common::peer::Received::Message(Header::ReadResponse(_), payload, _) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(payload, b"through the window");
    let at = victim.bindable.at;
    victim.assert_untouched_except(&[(at, 18)]);
}

/// Empty messages are not checked (RFC 5041 §5.2, RFC 5040 §5.2).
#[test]
fn empty_messages_are_not_checked() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    for tag in [Tag(0xff), victim.foreign.tag, next_tag(victim.open.tag)] {
        attacked.peer.send(&write(tag, u64::MAX), &[]);
    }
    attacked.peer.send(&read(1, victim.foreign.tag, u64::MAX, 0), &[]);
    assert!(matches!(
        attacked.peer.receive_message(),
        crate::common::peer::Received::Message(Header::ReadResponse(_), payload, _) if payload.is_empty()
    ));
    attacked.assert_works(1);
    victim.assert_untouched_except(&[(victim.private.at, 10)]);
    victim.assert_survives();
}

/// Each segment is checked: the second segment of a Write may exceed the range if the first did not.
#[test]
fn every_segment_is_checked() {
    use ironwarp_wire::{RemoteAddr, Tagged};
    let victim = Victim::new();
    let mut attacked: Attacked = victim.connect_peer();
    let area = victim.open;
    let addr = RemoteAddr { tag: area.tag, offset: area.end() - 8 };
    attacked.peer.send(&Header::Write(Tagged { last: false, addr }), &[0xee; 8]);
    let fpdu = attacked.peer.send(&write(area.tag, area.end()), &[0xee; 1]);
    attacked.assert_terminated(tagged(TaggedBuffer::Bounds), &fpdu);
    victim.assert_untouched_except(&[(area.at + AREA - 8, 8)]);
    victim.assert_survives();
}

/// The same checks apply to payload that is placed directly: large, and without CRC.
#[test]
fn large_payload_without_crc_is_checked_as_well() {
    let victim = Victim::with(Config::default().crc(false));
    let mut attacked =
        victim.connect_peer_with(StartupSettings { crc: false, ..StartupSettings::default() }, RECEIVES);
    attacked.peer.open();
    let fpdu = attacked.peer.send(&write(victim.open.tag, victim.open.addr), &[0xee; 40_000]);
    attacked.assert_terminated(tagged(TaggedBuffer::Bounds), &fpdu);
    victim.assert_untouched();
    victim.assert_survives();
}
