//! Forged signals: two Ironwarp peers communicate by empty Writes, which any peer can send.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{Attacked, Victim};
use crate::common::{TIMEOUT, send};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::qp::{Completes, Retries};
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::private::{Capabilities, SIGNAL_TAG, Signal, Unreadable};
use ironwarp_wire::{Cause, Header, Operation as Code, RemoteAddr, Tagged};
use std::time::{Duration, Instant};

const SEND: Operation = Operation::Send { invalidate: None };

/// The signals that the peer receives within a short time.
fn signals(attacked: &mut Attacked) -> Vec<Signal> {
    let mut signals = Vec::new();
    while let Received::Message(header, ..) = attacked.peer.receive_within(Duration::from_millis(100)) {
        let Header::Write(write) = header else { panic!("{header:?}") };
        signals.push(Signal::parse(write.addr).expect("a signal").expect("of this release"));
    }
    signals
}

/// Only the first capability signal counts and is answered; later ones change nothing.
#[test]
fn capabilities_twice() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 4);
    attacked.peer.open_as_ironwarp(Capabilities::ACKNOWLEDGE | Capabilities::WANTS_ACKNOWLEDGE);
    let first = signals(&mut attacked);
    assert!(matches!(first[..], [Signal::Capabilities(_)]), "{first:?}");
    attacked.peer.open_as_ironwarp(Capabilities::empty());
    attacked.peer.open_as_ironwarp(Capabilities::all());
    attacked.assert_works(1);
    // The peer still gets acknowledgements, and got no second answer.
    let rest = signals(&mut attacked);
    assert_eq!(rest, [Signal::Acknowledged(1)]);
    victim.assert_survives();
}

fn signal_of(word: u64) -> Header {
    Header::Write(Tagged { last: true, addr: RemoteAddr { tag: SIGNAL_TAG, offset: word } })
}

/// Unknown signals that may be ignored are ignored (`docs/wire.md`), and do not count as messages that could
/// be acknowledged.
#[test]
fn unknown_signals() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 4);
    attacked.peer.open_as_ironwarp(Capabilities::ACKNOWLEDGE | Capabilities::WANTS_ACKNOWLEDGE);
    signals(&mut attacked);
    for word in [0, 4 << 56, 0x7f << 56 | 1] {
        attacked.peer.send(&signal_of(word), &[]);
    }
    attacked.assert_works(1);
    victim.assert_untouched_except(&[(victim.private.at, 10)]);
    victim.assert_survives();
}

/// A peer of another release is told so at once, and so is the local user.
#[test]
fn signals_of_another_release() {
    let cases = [
        ("version 1", 0x0101_0009_5741_5250, Unreadable::Version(1)),
        ("version 3", 0x0103_0009_0000_5750, Unreadable::Version(3)),
        ("a must-understand bit", 0x0102_0009_8000_5750, Unreadable::Bits(0x80)),
    ];
    let cause = Cause::Operation(Code::StreamCatastrophic);
    for (name, word, why) in cases {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer_with(StartupSettings::default(), 4);
        let fpdu = attacked.peer.send(&signal_of(word), &[]);
        assert_eq!(*attacked.assert_terminated(cause, &fpdu), QpError::OtherRelease(why), "{name}");
        victim.assert_survives();
    }
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 4);
    attacked.peer.open_as_ironwarp(Capabilities::empty());
    let fpdu = attacked.peer.send(&signal_of(0x80 << 56), &[]);
    let error = attacked.assert_terminated(cause, &fpdu);
    assert_eq!(*error, QpError::OtherRelease(Unreadable::Extension(0x80)));
    victim.assert_survives();
}

/// A standard peer does not know that an empty Write with this tag would be a signal, so it need not follow
/// the rules for signals.
#[test]
fn a_must_understand_signal_of_a_peer_that_is_not_ironwarp() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 4);
    attacked.peer.send(&signal_of(0xff << 56), &[]);
    attacked.assert_works(1);
    victim.assert_untouched_except(&[(victim.private.at, 10)]);
    victim.assert_survives();
}

/// The peer acknowledges more than was sent. Outstanding requests are not reported as complete.
#[test]
fn an_acknowledgement_of_more_than_was_sent() {
    let victim = Victim::new();
    let mut attacked = victim.connect_acknowledging_peer(0);
    attacked.post(1, SEND, victim.open.sge(0, 8));
    attacked.post(2, SEND, victim.open.sge(0, 8));
    for _ in 0..2 {
        assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
    }
    attacked.peer.send(&Signal::Acknowledged(1).to_header(), &[]);
    let done = attacked.one();
    assert_eq!((done.wr_id, done.status), (1, Status::Success), "{done:?}");
    let fpdu = attacked.peer.send(&Signal::Acknowledged(3).to_header(), &[]);
    let failed = attacked.one();
    assert_eq!((failed.wr_id, failed.status), (2, Status::Flushed), "{failed:?}");
    let cause = Cause::Operation(Code::StreamCatastrophic);
    assert_eq!(attacked.peer.receive_terminate(), ironwarp_wire::Terminate::for_segment(cause, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.error(0), QpError::Protocol(Protocol::Acknowledged { sent: 2, found: 3 }));
    victim.assert_untouched();
    victim.assert_survives();
}

/// Acknowledgements that go back or are repeated have no effect.
#[test]
fn an_acknowledgement_of_less() {
    let victim = Victim::new();
    let mut attacked = victim.connect_acknowledging_peer(4);
    attacked.post(1, SEND, victim.open.sge(0, 8));
    attacked.post(2, SEND, victim.open.sge(0, 8));
    for _ in 0..2 {
        assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
    }
    for count in [0, 2, 1, 0, 2] {
        attacked.peer.send(&Signal::Acknowledged(count).to_header(), &[]);
    }
    let done: Vec<_> = attacked.completions(2).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::Success)]);
    attacked.assert_works(1);
    victim.assert_survives();
}

/// A peer announces acknowledgements and sends none: the request waits, and fails when the peer leaves. It is
/// not reported as delivered.
#[test]
fn acknowledgements_that_never_come() {
    let victim = Victim::new();
    let mut attacked = victim.connect_acknowledging_peer(0);
    attacked.peer.send(&send(1), b"waits forever");
    attacked.post(1, SEND, victim.open.sge(0, 8));
    assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
    assert!(!attacked.cq.wait(Some(Duration::from_millis(50))).unwrap());
    let Attacked { peer, pair, cq } = attacked;
    peer.reset();
    assert!(cq.wait(Some(TIMEOUT)).unwrap());
    cq.poll(1, |failed| assert_eq!((failed.wr_id, failed.status), (1, Status::RetryExceeded), "{failed:?}"))
        .unwrap();
    assert!(pair.wait_closed(TIMEOUT));
    victim.assert_untouched();
    victim.assert_survives();
}

/// A queue pair with a limited wait for receives, connected to a peer that sends signals. The wait is the
/// longest possible, about four seconds, so that timers stay pending.
fn impatient(victim: &Victim) -> Attacked {
    let (pair, cq) = victim.queue_pair(Completes::WhenAcknowledged, 0);
    pair.qp().set_retries(Retries::default().rnr_retry(6));
    let mut peer = victim.connected(&pair, StartupSettings::default());
    peer.open_as_ironwarp(Capabilities::ACKNOWLEDGE);
    Attacked { peer, pair, cq }
}

/// Number of pending timers on all lanes.
fn pending_timers(victim: &Victim) -> usize {
    victim.engine.steering().load().iter().map(|lane| lane.timers).sum()
}

/// A peer reports the same message as not ready again and again. The signal is sent once per message, so the
/// second one ends the stream, and the rest cost nothing; in particular they add no timers.
#[test]
fn not_ready_a_million_times() {
    let victim = Victim::new();
    let mut attacked = impatient(&victim);
    attacked.post(1, SEND, victim.open.sge(0, 8));
    assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
    let signal = attacked.peer.frame(&Signal::NotReady(0).to_header(), &[]);
    let many = signal.repeat(1000);
    let mut most = 0;
    for _ in 0..1000 {
        attacked.peer.send_bytes(&many);
        most = most.max(pending_timers(&victim));
    }
    assert!(most < 100, "{most} timers were pending");
    let failed = attacked.one();
    assert_eq!((failed.wr_id, failed.status), (1, Status::Flushed), "{failed:?}");
    assert_eq!(*attacked.error(0), QpError::Protocol(Protocol::NotReadyAgain { last: 0, found: 0 }));
    victim.assert_untouched();
    victim.assert_survives();
}

/// A peer reports every message as not ready, and acknowledges it at once: one timer serves all of them.
#[test]
fn not_ready_for_each_message() {
    let victim = Victim::new();
    let mut attacked = impatient(&victim);
    let before = pending_timers(&victim);
    for number in 0..500 {
        attacked.post(number, SEND, victim.open.sge(0, 8));
        assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
        attacked.peer.send(&Signal::NotReady(number).to_header(), &[]);
        attacked.peer.send(&Signal::Acknowledged(number + 1).to_header(), &[]);
        assert_eq!(attacked.one().status, Status::Success);
    }
    let after = pending_timers(&victim);
    assert!(after < before + 100, "{before} timers were pending before, {after} after");
    victim.assert_survives();
}

/// A message that waits later has its own time limit, although all messages share one timer.
#[test]
fn not_ready_for_the_second_message() {
    let victim = Victim::new();
    let mut attacked = impatient(&victim);
    let retries = Retries::default().rnr_retry(1); // with the peer's code 0: 0.66 s
    attacked.pair.qp().set_retries(retries);
    for number in 0..2 {
        attacked.post(number, SEND, victim.open.sge(0, 8));
        assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
        attacked.peer.send(&Signal::NotReady(number).to_header(), &[]);
        if number == 0 {
            attacked.peer.send(&Signal::Acknowledged(1).to_header(), &[]);
            assert_eq!(attacked.one().status, Status::Success);
        }
    }
    let began = Instant::now();
    let failed = attacked.one();
    assert_eq!((failed.wr_id, failed.status), (1, Status::RnrRetryExceeded), "{failed:?}");
    // The signal may have arrived a moment before `began`.
    let timeout = retries.rnr_timeout(0).unwrap();
    assert!(began.elapsed() > timeout * 9 / 10, "failed after {:?}", began.elapsed());
    victim.assert_untouched();
    victim.assert_survives();
}

/// The stream fails because of a local error while acknowledgements are outstanding: requests that the peer
/// has not acknowledged are not reported as delivered (requirement P2).
#[test]
fn a_failure_here_before_the_acknowledgement() {
    let victim = Victim::new();
    let mut attacked = victim.connect_acknowledging_peer(0);
    attacked.post(1, SEND, victim.open.sge(0, 8));
    assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::Send(_), ..)));
    attacked.post(2, SEND, victim.foreign.sge(0, 8));
    let failed: Vec<_> = attacked.completions(2).iter().map(|failed| (failed.wr_id, failed.status)).collect();
    assert_eq!(failed, [(1, Status::Flushed), (2, Status::LocalProtection)]);
    victim.assert_untouched();
    victim.assert_survives();
}
