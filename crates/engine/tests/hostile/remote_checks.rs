//! Requirement M9, a to f: what a peer's Write or Read names is checked before a byte moves.

use crate::common::peer::Way;
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{read, write};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::memory::{Check, Denied, Rights, following};
use ironwarp_wire::{Cause, Header, Protection, Tag, TaggedBuffer};

const LEN: u32 = 64;

/// A peer's access to memory.
#[derive(Clone, Copy)]
enum Access {
    Write,
    Read,
}

/// What the peer names, given the victim and the number of its queue pair.
type Named = fn(&Victim, u32) -> (Tag, u64);

/// The peer tries, and is refused.
fn refused(config: Config, access: Access, named: Named, check: Check, cause: Cause) {
    let victim = Victim::with(config);
    let mut attacked = victim.attacked();
    let (tag, offset) = named(&victim, attacked.pair.qp().id());
    let fpdu = match access {
        Access::Write => attacked.peer.send(&write(tag, offset), &[0xee; LEN as usize]),
        Access::Read => attacked.peer.send(&read(1, tag, offset, LEN), &[]),
    };
    let fault = attacked.terminated_for(cause, &fpdu);
    let Fault::Remote(denied) = &*fault else { panic!("{fault:?}") };
    assert_eq!((denied.check, denied.tag, denied.offset), (check, tag, offset), "{denied}");
    assert_eq!((denied.len, denied.domain), (LEN.into(), victim.domain), "{denied}");
    victim.untouched();
    victim.survives();
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

// RFC 5041 §7.2 answers a Write, RFC 5040 §4.8 (figure 9) a Read.
refused! {
    /// a: no entry has this index.
    a_tag_that_never_was: |victim, _| (Tag(0xff), victim.open.addr), Valid,
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
    /// c: the protection domain is another.
    c_tag_of_another_domain: |victim, _| (victim.foreign.tag, victim.foreign.addr), Domain,
        Write tagged(TaggedBuffer::Stream), Read Protection::Stream;
    /// c: the window is another stream's.
    c_window_of_another_stream: |victim, qp| {
        let remote = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        (victim.window(&victim.bindable, qp + 1, remote), victim.bindable.addr)
    }, Stream, Write tagged(TaggedBuffer::Stream), Read Protection::Stream;
    /// d: the index is right, the instance is not (requirement M4).
    d_tag_of_another_instance: |victim, _| (following(victim.open.tag), victim.open.addr), Instance,
        Write tagged(TaggedBuffer::Tag), Read Protection::Tag;
    /// e: one byte before the first.
    e_range_begins_a_byte_early: |victim, _| (victim.open.tag, victim.open.addr - 1), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// e: one byte behind the last.
    e_range_ends_a_byte_late: |victim, _| (victim.open.tag, victim.open.end() - u64::from(LEN) + 1), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// e: all of it behind the last.
    e_range_is_elsewhere: |victim, _| (victim.open.tag, victim.open.end() + AREA as u64), Range,
        Write tagged(TaggedBuffer::Bounds), Read Protection::Bounds;
    /// The end is beyond 2^64.
    e_range_wraps: |victim, _| (victim.open.tag, u64::MAX - 10), Wrap,
        Write tagged(TaggedBuffer::Wrap), Read Protection::Wrap;
    /// The end is 2^64 exactly: not a number of 64 bits either.
    e_range_ends_at_the_end_of_all: |victim, _| (victim.open.tag, (LEN as u64).wrapping_neg()), Wrap,
        Write tagged(TaggedBuffer::Wrap), Read Protection::Wrap;
    /// f: not for peers at all.
    f_region_that_peers_may_not_reach: |victim, _| (victim.private.tag, victim.private.addr), Right,
        Write Cause::Protection(Protection::Access), Read Protection::Access;
}

/// f: a region may be for one of the two only.
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

/// b: in strict mode peers reach windows only. That is the only way in which a kind can be wrong for a peer.
#[test]
fn b_region_in_strict_mode() {
    let strict = || Config { strict_windows: true, ..Config::default() };
    let named: Named = |victim, _| (victim.foreign.tag, victim.foreign.addr);
    // The neighbour uses regions, so it must be left alone: strictness is for the adapter as a whole.
    for (access, cause) in
        [(Access::Write, tagged(TaggedBuffer::Tag)), (Access::Read, Cause::Protection(Protection::Tag))]
    {
        refused_in_strict_mode(strict(), access, named, cause);
    }
}

fn refused_in_strict_mode(config: Config, access: Access, named: Named, cause: Cause) {
    let victim = Victim::alone(config);
    let mut attacked = victim.attacked();
    let (tag, offset) = named(&victim, attacked.pair.qp().id());
    let header = match access {
        Access::Write => write(tag, offset),
        Access::Read => read(1, tag, offset, LEN),
    };
    let payload = if matches!(access, Access::Write) { &[0xee; LEN as usize][..] } else { &[] };
    let fpdu = attacked.peer.send(&header, payload);
    let fault = attacked.terminated_for(cause, &fpdu);
    let Fault::Remote(Denied { check: Check::Kind, .. }) = *fault else { panic!("{fault:?}") };
    victim.untouched();
}

/// A window is what strict mode leaves open: the same accesses pass.
#[test]
fn strict_mode_leaves_windows_open() {
    let victim = Victim::alone(Config { strict_windows: true, ..Config::default() });
    let mut attacked = victim.attacked();
    let remote = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let window = victim.window(&victim.bindable, attacked.pair.qp().id(), remote);
    attacked.peer.send(&write(window, victim.bindable.addr), b"through the window");
    attacked.peer.send(&read(1, window, victim.bindable.addr, 18), &[]);
    let answer = attacked.peer.hear_message();
    let crate::common::peer::Heard::Message(Header::ReadResponse(_), payload, _) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(payload, b"through the window");
    let at = victim.bindable.at;
    victim.untouched_but(&[(at, 18)]);
}

/// RFC 5041 §5.2, RFC 5040 §5.2: where there are no bytes, nothing is checked.
#[test]
fn nothing_is_checked_where_there_are_no_bytes() {
    let victim = Victim::new();
    let mut attacked = victim.attacked();
    for tag in [Tag(0xff), victim.foreign.tag, following(victim.open.tag)] {
        attacked.peer.send(&write(tag, u64::MAX), &[]);
    }
    attacked.peer.send(&read(1, victim.foreign.tag, u64::MAX, 0), &[]);
    assert!(matches!(
        attacked.peer.hear_message(),
        crate::common::peer::Heard::Message(Header::ReadResponse(_), payload, _) if payload.is_empty()
    ));
    attacked.goes_on(1);
    victim.untouched_but(&[(victim.private.at, 10)]);
    victim.survives();
}

/// The check is made for each segment: the second of a Write may go too far where the first did not.
#[test]
fn every_segment_is_checked() {
    use ironwarp_wire::{Place, Tagged};
    let victim = Victim::new();
    let mut attacked: Attacked = victim.attacked();
    let area = victim.open;
    let place = Place { tag: area.tag, offset: area.end() - 8 };
    attacked.peer.send(&Header::Write(Tagged { last: false, place }), &[0xee; 8]);
    let fpdu = attacked.peer.send(&write(area.tag, area.end()), &[0xee; 1]);
    attacked.terminated_for(tagged(TaggedBuffer::Bounds), &fpdu);
    victim.untouched_but(&[(area.at + AREA - 8, 8)]);
    victim.survives();
}

/// The same checks hold where payload goes straight to its place: without CRCs, and large.
#[test]
fn large_payload_without_crc_is_checked_as_well() {
    let victim = Victim::with(Config { crc: false, ..Config::default() });
    let mut attacked = victim.attacked_by(Way { crc: false, ..Way::default() }, RECEIVES);
    attacked.peer.open();
    let fpdu = attacked.peer.send(&write(victim.open.tag, victim.open.addr), &[0xee; 40_000]);
    attacked.terminated_for(tagged(TaggedBuffer::Bounds), &fpdu);
    victim.untouched();
    victim.survives();
}
