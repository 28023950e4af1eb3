//! Private messages that are malformed, or sent by peers that may not send them.

use crate::common::peer::StartupSettings;
use crate::common::segment_with_immediate;
use crate::common::victim::{Attacked, RECEIVES, Victim};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::queue::Status;
use ironwarp_wire::private::Capabilities;
use ironwarp_wire::{Cause, MpaFault, Operation, UntaggedBuffer, Violation};

const OPCODE: Cause = Cause::Operation(Operation::Opcode);
const OFFSET: Cause = Cause::UntaggedBuffer(UntaggedBuffer::Offset);

/// A peer that has announced itself as Ironwarp.
fn kin(victim: &Victim) -> Attacked {
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), RECEIVES);
    attacked.peer.open_as_ironwarp(Capabilities::all());
    attacked
}

/// 0/2/06: a peer that has not sent the signal uses the standard protocol, in which this opcode does not
/// exist.
#[test]
fn a_private_message_before_the_signal() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let fpdu = attacked.peer.send(&segment_with_immediate(1, 0, true), b"psst");
    let error = attacked.assert_terminated(OPCODE, &fpdu);
    assert!(matches!(*error, QpError::Violation(_)), "{error}");
    victim.assert_untouched();
    victim.assert_survives();
}

/// If private messages are disabled, the victim does not recognise any peer as Ironwarp.
#[test]
fn a_private_message_when_private_messages_are_disabled() {
    let config = ironwarp_engine::config::Config::default().private(false);
    let victim = Victim::with(config);
    let mut attacked = kin(&victim);
    let fpdu = attacked.peer.send(&segment_with_immediate(1, 0, true), b"psst");
    attacked.assert_terminated(OPCODE, &fpdu);
    victim.assert_untouched();
    victim.assert_survives();
}

#[test]
fn a_send_with_immediate_in_segments() {
    let victim = Victim::new();
    let mut attacked = kin(&victim);
    attacked.peer.send(&segment_with_immediate(1, 0, false), b"in ");
    attacked.peer.send(&segment_with_immediate(1, 8 + 3, true), b"two");
    let done = attacked.one();
    assert_eq!((done.status, done.byte_len, done.immediate), (Status::Success, 6, Some(0x1111_1111)));
    assert_eq!(victim.memory.read(victim.private.at, 6), b"in two");
    attacked.assert_works(2);
    victim.assert_survives();
}

/// The immediate data count as the first eight bytes of the message: no segment may start within them, or at
/// any offset but the next one.
#[test]
fn a_send_with_immediate_with_wrong_offsets() {
    for offset in [1, 7, 8 + 2, 8 + 4, 3, u32::MAX] {
        let victim = Victim::new();
        let mut attacked = kin(&victim);
        attacked.peer.send(&segment_with_immediate(1, 0, false), b"in ");
        let fpdu = attacked.peer.send(&segment_with_immediate(1, offset, true), b"two");
        let terminate = attacked.peer.receive_terminate();
        assert_eq!(terminate, ironwarp_wire::Terminate::for_segment(OFFSET, &fpdu), "{offset}");
        attacked.closed();
        let error = attacked.error(RECEIVES);
        assert!(matches!(*error, QpError::Protocol(Protocol::Offset { expected: 3, .. })), "{error}");
        victim.assert_untouched_except(&[(victim.private.at, 3)]);
        victim.assert_survives();
    }
}

/// The first segment must contain all of the immediate data.
#[test]
fn a_send_with_immediate_that_is_cut() {
    let victim = Victim::new();
    let mut attacked = kin(&victim);
    let mut fpdu = attacked.peer.frame(&segment_with_immediate(1, 0, true), &[]);
    fpdu[..2].copy_from_slice(&u16::to_be_bytes(18 + 7));
    attacked.peer.send_bytes(&fpdu);
    let error = attacked.assert_terminated(Cause::Mpa(MpaFault::Length), &fpdu);
    assert!(matches!(*error, QpError::Violation(Violation::TooShort { .. })), "{error}");
    victim.assert_untouched();
    victim.assert_survives();
}
