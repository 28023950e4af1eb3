//! Peers that switch when they must not, and bytes that were damaged.

use crate::pair::{BOTH, End, OPEN, Options, SEND, pair, settle};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::queue::Status;
use ironwarp_wire::mpa::{FpduWriter, Framing};
use ironwarp_wire::private::{Capabilities, Signal};
use ironwarp_wire::{Cause, Operation, Violation};

/// Returns the bytes of a signal.
pub(crate) fn encode(signal: Signal, crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FpduWriter::new(Framing { crc, markers: false });
    writer.write(&signal.to_header(), &[], |part| bytes.extend_from_slice(part)).unwrap();
    bytes
}

/// Checks that `end` has failed because of this violation, and has told its peer the cause.
pub(crate) fn expect_violation(ends: &[End; 2], rule: Protocol, cause: Operation) {
    let [near, far] = ends;
    assert_eq!(far.qp.error().map(|error| &**error), Some(&QpError::Protocol(rule)));
    settle(ends);
    let Some(QpError::Terminated(terminate)) = near.qp.error().map(|error| &**error) else {
        panic!("{:?}", near.qp.error());
    };
    assert_eq!(terminate.cause, Cause::Operation(cause));
}

#[test]
fn an_unexpected_switch_ends_the_stream() {
    let yes = Options::default();
    for (what, options, route) in [
        (
            "the receiver has not announced it",
            Options { announces: [true, false], ..yes },
            Route::SharedMemory,
        ),
        ("the sender has not announced it", Options { announces: [false, true], ..yes }, Route::SharedMemory),
        ("the link has no such route", Options { shares: false, ..yes }, Route::SharedMemory),
        ("the route is used already", yes, Route::Tcp),
    ] {
        println!("{what}");
        let ends = pair(options);
        ends[1].inject(Route::Tcp, &encode(Signal::Switch(route), true));
        ends[1].qp.drive(BOTH);
        expect_violation(&ends, Protocol::UnexpectedSwitch(route), Operation::Opcode);
    }
}

/// A standard peer may send an empty Write with these bytes, which has no meaning.
#[test]
fn a_switch_of_a_standard_peer_is_an_empty_write() {
    let ends = pair(Options { private: [false, true], ..Options::default() });
    let [near, far] = &ends;
    for signal in [Signal::Switch(Route::SharedMemory), Signal::Offer { part: 0, data: [1; 6] }] {
        far.inject(Route::Tcp, &encode(signal, true));
    }
    let buffer = far.post_receive(7, 100);
    near.post(1, SEND, near.register(100, 3));
    settle(&ends);
    assert_eq!((far.ended(), far.qp.recv_route()), (vec![(7, Status::Success)], Route::Tcp));
    far.expect(buffer, 3);
}

#[test]
fn shared_memory_is_requested_only_if_both_ends_have_announced_it() {
    let markers = Framing { crc: true, markers: true };
    for (announces, framing) in
        [([true, false], Framing::default()), ([false, true], Framing::default()), ([true; 2], markers)]
    {
        let ends = pair(Options { announces, framing, ..Options::default() });
        for end in &ends {
            end.qp.switch_route(Route::SharedMemory);
            end.qp.offer([1; 24]);
        }
        settle(&ends);
        for end in &ends {
            assert_eq!((end.qp.send_route(), end.switches(), end.sent()[1]), (Route::Tcp, vec![], 0));
            assert_eq!((end.qp.error(), &end.driver.offers.lock().unwrap()[..]), (None, &[][..]));
            let capabilities = end.driver.capabilities.lock().unwrap();
            assert_eq!(capabilities.len(), 1);
            assert!(!capabilities[0].contains(Capabilities::SHARED_MEMORY), "{announces:?}");
        }
    }
}

/// FPDUs have CRCs again after a switch back to TCP, and none in shared memory.
#[test]
fn damage_is_detected_on_tcp_only() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    let buffers = [1, 2, 3].map(|id| far.post_receive(id, 100));
    near.qp.switch_route(Route::SharedMemory);
    near.post(1, SEND, near.register(100, 1));
    // The last four bytes are the CRC.
    far.damage(Route::SharedMemory, |bytes| *bytes.back_mut().unwrap() ^= 1);
    far.qp.drive(BOTH);
    near.qp.switch_route(Route::Tcp);
    near.post(2, SEND, near.register(100, 2));
    far.qp.drive(BOTH);
    assert_eq!(far.ended(), [(1, Status::Success), (2, Status::Success)]);
    far.expect(buffers[0], 1);
    far.expect(buffers[1], 2);
    near.post(3, SEND, near.register(100, 3));
    far.damage(Route::Tcp, |bytes| bytes[50] ^= 1);
    far.qp.drive(BOTH);
    let error = far.qp.error().map(|error| &**error);
    assert!(matches!(error, Some(QpError::Violation(Violation::Crc { .. }))), "{error:?}");
    assert_eq!(far.ended(), [(3, Status::Flushed)]);
    near.allow(OPEN);
}
