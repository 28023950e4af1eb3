//! Misplaced Immediate Data (RFC 7306 §6): they consume a receive, so they are numbered and wait like a Send.

use crate::common::peer::StartupSettings;
use crate::common::victim::{Attacked, RECEIVE, Victim};
use crate::common::{immediate, segment, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::queue::{Opcode, ReceiveRequest, Status};
use ironwarp_wire::{Cause, Header, MpaFault, Operation, RemoteAddr, Tagged, UntaggedBuffer, Violation};
use std::time::Duration;

const OUT_OF_TURN: Cause = Cause::Operation(Operation::StreamCatastrophic);

/// Runs an attack that ends the stream with this cause, and checks that it has no other effect.
fn refused(cause: Cause, attack: impl FnOnce(&Victim, &mut Attacked) -> Vec<u8>) -> QpError {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let fpdu = attack(&victim, &mut attacked);
    let error = attacked.assert_terminated(cause, &fpdu);
    victim.assert_untouched_except(&[(victim.open.at, 8), (victim.private.at, 8)]);
    victim.assert_survives();
    (*error).clone()
}

/// Immediate Data report the length of the Write before them, or zero if there was none.
#[test]
fn immediate_data_report_the_write_before_them() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let open = victim.open;
    attacked.peer.send(&write(open.tag, open.addr), &[0xee; 8]);
    attacked.peer.send(&immediate(1, 0xdead_beef), &[]);
    attacked.peer.send(&immediate(2, 7), &[]);
    for (value, len) in [(0xdead_beef, 8), (7, 0)] {
        let done = attacked.one();
        assert_eq!((done.opcode, done.status, done.byte_len), (Opcode::ReceiveWrite, Status::Success, len));
        assert_eq!(done.immediate, Some(value), "{done:?}");
    }
    attacked.assert_works(3);
    victim.assert_untouched_except(&[(open.at, 8), (victim.private.at + 2 * RECEIVE, 10)]);
    victim.assert_survives();
}

#[test]
fn immediate_data_out_of_sequence() {
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::Sequence);
    for msn in [0, 2, u32::MAX] {
        let error = refused(cause, |_, attacked| attacked.peer.send(&immediate(msn, 1), &[]));
        assert_eq!(error, QpError::Protocol(Protocol::Sequence { queue: 0, expected: 1, found: msn }));
    }
}

#[test]
fn immediate_data_in_the_middle_of_a_send() {
    let error = refused(OUT_OF_TURN, |_, attacked| {
        attacked.peer.send(&segment(1, 0, false), b"half");
        attacked.peer.send(&immediate(1, 1), &[])
    });
    assert_eq!(error, QpError::Protocol(Protocol::Interleaved));
}

#[test]
fn immediate_data_in_the_middle_of_a_write() {
    let error = refused(OUT_OF_TURN, |victim, attacked| {
        let addr = RemoteAddr { tag: victim.open.tag, offset: victim.open.addr };
        attacked.peer.send(&Header::Write(Tagged { last: false, addr }), &[0xee; 8]);
        attacked.peer.send(&immediate(1, 1), &[])
    });
    assert_eq!(error, QpError::Protocol(Protocol::Interleaved));
}

/// Immediate Data have exactly eight bytes.
#[test]
fn immediate_data_that_are_cut() {
    let error = refused(Cause::Mpa(MpaFault::Length), |_, attacked| {
        let mut fpdu = attacked.peer.frame(&immediate(1, 1), &[]);
        fpdu[..2].copy_from_slice(&u16::to_be_bytes(18 + 4));
        attacked.peer.send_bytes(&fpdu);
        fpdu
    });
    assert!(matches!(error, QpError::Violation(Violation::TooShort { .. })), "{error}");
}

/// If no receive is posted, Immediate Data wait, and so do the messages after them.
#[test]
fn immediate_data_wait_for_a_receive() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 0);
    attacked.peer.open();
    let open = victim.open;
    attacked.peer.send(&write(open.tag, open.addr), &[0xee; 8]);
    attacked.peer.send(&immediate(1, 1), &[]);
    attacked.peer.send(&write(open.tag, open.addr + 8), &[0xee; 3]);
    attacked.peer.send(&immediate(2, 2), &[]);
    attacked.peer.send(&send(3), b"behind");
    assert!(!attacked.cq.wait(Some(Duration::from_millis(50))).unwrap(), "nothing can complete yet");
    victim.assert_untouched_except(&[(open.at, 8)]);
    for (id, len) in [(0, 8), (1, 3), (2, 6)] {
        let sge = victim.private.sge(id * RECEIVE as u64, u32::try_from(RECEIVE).unwrap());
        attacked.pair.qp().post_receive(ReceiveRequest { id, buffers: sge.into() }).unwrap();
        let done = attacked.one();
        assert_eq!((done.wr_id, done.status, done.byte_len), (id, Status::Success, len), "{done:?}");
    }
    victim.assert_untouched_except(&[(open.at, 11), (victim.private.at + 2 * RECEIVE, 6)]);
    victim.assert_survives();
}

#[test]
fn immediate_data_without_a_receive_in_strict_mode() {
    let victim = Victim::alone(Config::default().strict_receive(true));
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 0);
    attacked.peer.open();
    let fpdu = attacked.peer.send(&immediate(1, 1), &[]);
    let terminate = attacked.peer.receive_terminate();
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
    assert_eq!(terminate, ironwarp_wire::Terminate::for_segment(cause, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.error(0), QpError::Protocol(Protocol::NoReceive));
    victim.assert_untouched();
}
