//! Messages for which no receive is posted wait, in order, and up to a limit.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{Attacked, RECEIVE, Victim};
use crate::common::{TIMEOUT, read, resident, segment, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::queue::{ReceiveRequest, Status};
use ironwarp_wire::{Cause, Header, Terminate, UntaggedBuffer};
use std::io::{ErrorKind, Write};
use std::time::Duration;

fn without_receives(victim: &Victim) -> Attacked {
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 0);
    attacked.peer.open();
    attacked
}

fn post(victim: &Victim, attacked: &Attacked, id: usize) {
    let sge = victim.private.sge((id * RECEIVE) as u64, u32::try_from(RECEIVE).unwrap());
    attacked.pair.qp().post_receive(ReceiveRequest { id: id as u64, buffers: sge.into() }).unwrap();
}

/// Parked messages are delivered in order once receives are posted; Writes after a Send do not overtake it.
#[test]
fn parked_messages_are_delivered_in_order() {
    let victim = Victim::new();
    let mut attacked = without_receives(&victim);
    let open = victim.open;
    for msn in 1..=3 {
        attacked.peer.send(&send(msn), &vec![u8::try_from(msn).unwrap(); 10 * msn as usize]);
        attacked.peer.send(&write(open.tag, open.addr + u64::from(msn)), &[0xee; 1]);
    }
    // After them a Read, whose response shows that everything before it is done.
    attacked.peer.send(&read(1, open.tag, open.addr, 8), &[]);
    assert_eq!(
        attacked.peer.receive_within(Duration::from_millis(100)),
        Received::Silence,
        "the Read must not be answered yet"
    );
    victim.assert_untouched();
    for id in 0..3 {
        post(&victim, &attacked, id);
        let done = attacked.one();
        let len = u32::try_from(10 * (id + 1)).unwrap();
        assert_eq!((done.wr_id, done.status, done.byte_len), (id as u64, Status::Success, len), "{done:?}");
    }
    let received = attacked.peer.receive_message();
    let Received::Message(Header::ReadResponse(_), payload, _) = received else { panic!("{received:?}") };
    assert_eq!(payload[1..4], [0xee; 3]);
    let inbox = victim.private.at;
    for id in 0..3 {
        let byte = u8::try_from(id + 1).unwrap();
        assert!(victim.memory.holds_only(inbox + id * RECEIVE, 10 * (id + 1), byte));
    }
    victim.assert_untouched_except(&[(open.at + 1, 3), (inbox, 3 * RECEIVE)]);
    victim.assert_survives();
}

/// All segments of a message wait together.
#[test]
fn segments_wait_together() {
    let victim = Victim::new();
    let mut attacked = without_receives(&victim);
    attacked.peer.send(&segment(1, 0, false), b"in ");
    attacked.peer.send(&segment(1, 3, false), b"three ");
    attacked.peer.send(&segment(1, 9, true), b"parts");
    attacked.peer.send(&send(2), b"another");
    post(&victim, &attacked, 0);
    let done = attacked.one();
    assert_eq!((done.wr_id, done.status, done.byte_len), (0, Status::Success, 14), "{done:?}");
    assert_eq!(victim.memory.read(victim.private.at, 14), b"in three parts");
    post(&victim, &attacked, 1);
    assert_eq!(attacked.one().byte_len, 7);
    victim.assert_survives();
}

/// Parked messages are checked when their turn comes: a Send that is too long for its receive ends the stream
/// only then.
#[test]
fn parked_messages_are_checked_in_their_turn() {
    let victim = Victim::new();
    let mut attacked = without_receives(&victim);
    attacked.peer.send(&send(1), b"fits");
    let fpdu = attacked.peer.send(&send(2), &[0xee; RECEIVE + 1]);
    attacked.peer.send(&send(3), b"never comes");
    post(&victim, &attacked, 0);
    assert_eq!(attacked.one().status, Status::Success);
    post(&victim, &attacked, 1);
    assert_eq!(attacked.one().status, Status::LocalLength);
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::TooLong);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu));
    attacked.closed();
    let (room, found) = (RECEIVE as u64, RECEIVE as u64 + 1);
    assert_eq!(*attacked.error(0), QpError::Protocol(Protocol::TooLong { room, found }));
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(inbox, 4)]);
    victim.assert_survives();
}

/// A peer keeps sending while no receive is posted: at the limit the victim stops reading, so that TCP stops
/// the peer. Neither large nor empty messages exhaust memory.
#[test]
fn parked_messages_are_bounded() {
    for payload in [0, 1000, 60_000] {
        let victim = Victim::with(Config::default().park(64 << 10).close(Duration::from_millis(300)));
        let mut attacked = without_receives(&victim);
        attacked.peer.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let before = resident();
        let mut sent = 0_usize;
        for msn in 1.. {
            let frame = attacked.peer.frame(&send(msn), &vec![0xee; payload]);
            match attacked.peer.stream.write(&frame) {
                Ok(n) if n == frame.len() => sent += n,
                Ok(_) => break,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 64 << 20, "the victim reads without limit");
        }
        // What was sent but not read is in the kernel's buffers; the adapter holds only a few buffers of its
        // own.
        let grown = resident().saturating_sub(before);
        assert!(grown < 32 << 20, "{payload}: the victim grew by {grown} bytes");
        assert_eq!(attacked.pair.qp().error(), None);
        victim.assert_untouched();
        victim.assert_survives();
    }
}

/// The peer closes while its messages are parked: they are still delivered, then the queue pair is closed.
#[test]
fn parked_messages_survive_a_close() {
    let victim = Victim::new();
    let mut attacked = without_receives(&victim);
    attacked.peer.send(&send(1), b"last");
    attacked.peer.send(&send(2), b"words");
    attacked.peer.finish();
    for id in 0..2 {
        post(&victim, &attacked, id);
        let done = attacked.one();
        assert_eq!((done.wr_id, done.status), (id as u64, Status::Success), "{done:?}");
    }
    assert_eq!(attacked.peer.receive_message(), Received::End);
    assert!(attacked.pair.wait_closed(TIMEOUT));
    assert_eq!(*attacked.error(0), QpError::Closed);
    victim.assert_survives();
}

/// The peer closes while so much is parked that the victim has stopped reading. It is not notified of the
/// close again.
#[test]
fn a_close_after_the_park_is_full() {
    let victim = Victim::with(Config::default().park(4 << 10));
    let mut attacked = without_receives(&victim);
    let mut bytes = attacked.peer.frame(&send(1), &[]);
    for _ in 0..400 {
        bytes.extend(attacked.peer.frame(&write(victim.open.tag, victim.open.addr), &[0xee; 1000]));
    }
    attacked.peer.send_bytes(&bytes);
    attacked.peer.finish();
    // Usually long enough for the victim to see all of it. If not, the test passes without testing anything.
    assert_eq!(attacked.peer.receive_within(Duration::from_millis(100)), Received::Silence);
    // Post without polling, because a thread that polls would check the socket repeatedly.
    post(&victim, &attacked, 0);
    assert_eq!(attacked.peer.receive_message(), Received::End);
    assert!(attacked.pair.wait_closed(TIMEOUT), "the close was not noticed");
    assert_eq!(attacked.one().status, Status::Success);
    assert_eq!(*attacked.error(0), QpError::Closed);
    victim.assert_untouched_except(&[(victim.open.at, 1000)]);
    victim.assert_survives();
}

/// The peer disconnects in the middle of a message that follows a parked one: this is an error, not a close.
#[test]
fn a_message_cut_short_after_a_parked_one() {
    let victim = Victim::new();
    let mut attacked = without_receives(&victim);
    attacked.peer.send(&send(1), b"whole");
    let cut = attacked.peer.frame(&send(2), b"not whole");
    attacked.peer.send_bytes(&cut[..cut.len() - 3]);
    attacked.peer.finish();
    post(&victim, &attacked, 0);
    assert_eq!(attacked.one().status, Status::Success);
    assert_eq!(attacked.peer.receive_message(), Received::End);
    assert!(attacked.pair.wait_closed(TIMEOUT));
    assert_eq!(*attacked.error(0), QpError::CutShort);
    victim.assert_survives();
}

/// The connection is lost while so much is parked that the victim does not read: it must notice nevertheless.
#[test]
fn a_reset_after_the_park_is_full() {
    let victim = Victim::with(Config::default().park(4 << 10));
    let mut attacked = without_receives(&victim);
    for msn in 1..=8 {
        attacked.peer.send(&send(msn), &[0xee; 1000]);
    }
    let Attacked { peer, pair, .. } = attacked;
    peer.reset();
    assert!(pair.wait_closed(TIMEOUT), "the loss was not noticed");
    assert!(matches!(pair.qp().error().map(|error| &**error), Some(QpError::Lost(_))));
    victim.assert_untouched();
    victim.assert_survives();
}

/// The program ends the stream while messages are parked.
#[test]
fn the_program_leaves_while_messages_wait() {
    let victim = Victim::with(Config::default().close(Duration::from_millis(300)));
    let mut attacked = without_receives(&victim);
    attacked.peer.send(&send(1), b"too late");
    attacked.pair.disconnect();
    assert_eq!(attacked.peer.receive_message(), Received::End);
    attacked.peer.finish();
    assert!(attacked.pair.wait_closed(TIMEOUT), "the connection is not closed");
    victim.assert_untouched();
    victim.assert_survives();
}
