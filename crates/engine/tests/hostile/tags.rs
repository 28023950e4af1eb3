//! Tags: stale ones, guessed ones, and those of other streams.

use crate::common::victim::{AREA, Victim};
use crate::common::{read, write};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Check, Memory, Rights};
use ironwarp_rnic::queue::Status;
use ironwarp_wire::{Cause, Header, Protection, Send, SendWord, Tag, TaggedBuffer};
use std::collections::HashSet;

const ALL: Rights =
    Rights::LOCAL_READ.union(Rights::LOCAL_WRITE).union(Rights::REMOTE_READ).union(Rights::REMOTE_WRITE);

/// Requirement M4: when the index is reused for other memory, the old tag is not honoured.
#[test]
fn a_stale_tag_does_not_reach_the_memory_that_reuses_its_index() {
    let victim = Victim::new();
    let table = victim.engine.device().table();
    let (stale, addr) = (victim.open.tag, victim.open.addr);
    table.deregister(stale).unwrap();
    // The table delays the reuse of an index: register until it happens.
    let fresh = (0..100_000)
        .map(|_| {
            let memory = Memory::direct(addr, AREA as u64, ALL).unwrap();
            let tag = victim.engine.device().register(victim.domain, memory).unwrap();
            if tag.0 >> 8 != stale.0 >> 8 {
                table.deregister(tag).unwrap();
            }
            tag
        })
        .find(|tag| tag.0 >> 8 == stale.0 >> 8)
        .expect("the index is reused");
    assert_ne!(fresh, stale);
    let mut attacked = victim.connect_peer();
    let fpdu = attacked.peer.send(&write(stale, addr), &[0xee; 64]);
    let error = attacked.assert_terminated(Cause::TaggedBuffer(TaggedBuffer::Tag), &fpdu);
    assert!(matches!(&*error, QpError::Remote(denied) if denied.check == Check::Instance), "{error}");
    victim.assert_untouched();
    victim.assert_survives();
}

/// Of the tags with a known index, and of random ones, only the one that was given out is honoured.
#[test]
fn guessed_tags_are_refused() {
    let victim = Victim::new();
    let index = victim.open.tag.0 & !0xff;
    let near = (0..=255).map(|instance| Tag(index | instance)).filter(|tag| *tag != victim.open.tag);
    let random = (1_u32..200).map(|i| Tag(i.wrapping_mul(0x9e37_79b9) | 0x8000_0000));
    for tag in near.step_by(16).chain(random.step_by(16)) {
        let mut attacked = victim.connect_peer();
        let fpdu = attacked.peer.send(&write(tag, victim.open.addr), &[0xee; 64]);
        attacked.assert_terminated(Cause::TaggedBuffer(TaggedBuffer::Tag), &fpdu);
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// RFC 5042 §6.1: tags are not sequential, and the tags of one adapter reveal nothing about those of another.
#[test]
fn tags_are_drawn_with_a_key_of_the_adapter() {
    let tags = |victim: &Victim| -> Vec<u32> {
        let register = |_| {
            let memory = Memory::direct(victim.open.addr, AREA as u64, ALL).unwrap();
            victim.engine.device().register(victim.domain, memory).unwrap().0
        };
        (0..64).map(register).collect()
    };
    let (one, other) = (tags(&Victim::new()), tags(&Victim::new()));
    let steps: HashSet<u32> = one.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert_eq!(steps.len(), one.len() - 1, "the same step twice: {one:x?}");
    assert!(one.iter().all(|tag| !other.contains(tag)), "{one:x?} and {other:x?}");
}

/// A Read is valid when it arrives, but not when it is served: the responses before it are sent, but not its
/// own.
#[test]
fn a_read_of_memory_deregistered_meanwhile() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let (tag, addr, len) = (victim.open.tag, victim.open.addr, u32::try_from(AREA).unwrap());
    // The peer does not read, so the responses queue up.
    let mut frames = Vec::new();
    for msn in 1..=32 {
        frames.extend(attacked.peer.frame(&read(msn, tag, addr, len), &[]));
    }
    attacked.peer.send_bytes(&frames);
    victim.engine.device().table().deregister(tag).unwrap();
    victim.memory.fill(victim.open.at, AREA, 0xcc);
    let (messages, _) = attacked.peer.receive_until_end();
    let mut served = 0;
    for (header, payload) in &messages {
        match header {
            Header::ReadResponse(_) => served += payload.len(),
            Header::Terminate(terminate) => {
                assert_eq!(terminate.cause, Cause::Protection(Protection::Tag));
                let left = terminate.offender.read.expect("the Terminate returns the Read");
                // RFC 5040 §4.8: the unserved part of a Read.
                assert_eq!(left.len as usize, (32 * AREA - served - 1) % AREA + 1);
            }
            other => panic!("{other:?}"),
        }
        assert!(!payload.contains(&0xcc), "bytes were sent after the deregistration");
    }
    attacked.closed();
    victim.assert_untouched_except(&[(victim.open.at, AREA)]);
    victim.assert_survives();
}

/// Requirement M12: a peer may invalidate a window that was bound for it, and only once.
#[test]
fn a_window_is_invalidated_once() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let window = victim.window(&victim.bindable, attacked.pair.qp().id(), Rights::REMOTE_WRITE);
    let invalidate = |msn| {
        let word = SendWord::Invalidate(window);
        Header::Send(Send { msn, last: true, offset: 0, solicited: false, word })
    };
    attacked.peer.send(&invalidate(1), &[]);
    let done = attacked.one();
    assert_eq!((done.status, done.invalidated), (Status::Success, Some(window)));
    // Once the completion is visible, the window is closed.
    let fpdu = attacked.peer.send(&write(window, victim.bindable.addr), &[0xee; 8]);
    assert_eq!(
        attacked.peer.receive_terminate(),
        ironwarp_wire::Terminate::for_segment(Cause::TaggedBuffer(TaggedBuffer::Tag), &fpdu)
    );
    attacked.closed();
    victim.assert_untouched();
    victim.assert_survives();
}

/// A window has only the rights that it was bound with, whatever those of its region.
#[test]
fn a_window_has_only_the_rights_it_was_bound_with() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let window = victim.window(&victim.open, attacked.pair.qp().id(), Rights::REMOTE_READ);
    let fpdu = attacked.peer.send(&write(window, victim.open.addr), &[0xee; 8]);
    let error = attacked.assert_terminated(Cause::Protection(Protection::Access), &fpdu);
    assert!(matches!(&*error, QpError::Remote(denied) if denied.check == Check::Right), "{error}");
    victim.assert_untouched();
    victim.assert_survives();
}
