//! Peers that are asked to leave shared memory, or ask for it (requirement X2).

use super::common::attack::{Attack, CHANNEL, Link, TOKEN};
use super::common::doorway::{self, Doorway, MAGIC};
use super::common::peer::Received;
use super::common::ring::{ACCEPT, ATTACH, RingEnd};
use super::common::victim::{Attacked, Victim};
use super::common::{TIMEOUT, wait_until};
use ironwarp_engine::LeaveFailure;
use ironwarp_rnic::link::Route;
use ironwarp_wire::Header;
use ironwarp_wire::private::{Capabilities, Signal};
use std::time::{Duration, Instant};

/// Connects a peer that knows the request, and whose memory the victim uses. Both directions are in shared memory.
fn sharing(victim: &Victim) -> Attack {
    let mut attacked = victim.connect_peer_with(Capabilities::SHARED_MEMORY | Capabilities::LEAVE);
    let (mut link, victims_channel) = Link::offered(&mut attacked.peer);
    link.send(victims_channel, ACCEPT, &CHANNEL.to_ne_bytes());
    let mut attack = Attack::established(attacked, link, victims_channel);
    attack.switch();
    attack
}

/// Has the victim leave. Returns why it could not, and checks that the error names the connection.
fn failure(attacked: &Attacked, within: Duration) -> LeaveFailure {
    let error = attacked.pair.leave_shared_memory(Instant::now() + within).unwrap_err();
    assert_eq!(error.qp, attacked.pair.qp().id());
    assert!(error.to_string().contains(&error.peer.to_string()), "{error}");
    error.why
}

#[test]
fn a_peer_without_the_capability_is_not_asked_and_goes_on() {
    for connect in Attack::both() {
        let victim = Victim::new();
        let mut attack = Attack::switched(connect, &victim);
        assert_eq!(failure(&attack, TIMEOUT), LeaveFailure::Unsupported);
        attack.assert_works(1);
        assert_eq!(attack.pair.qp().recv_route(), Route::SharedMemory);
        victim.assert_survives(attack);
    }
}

/// The peer does not answer, answers in part, and then leaves.
#[test]
fn a_silent_peer_delays_only_its_own_connection() {
    let victim = Victim::new();
    let mut attack = sharing(&victim);
    assert_eq!(failure(&attack, Duration::from_millis(50)), LeaveFailure::Timeout);
    attack.assert_works(1);
    // Without its own switch, the answer has no effect, and the channel stays.
    let left = attack.fpdu(&Signal::Left.to_header(), &[]);
    attack.send_data(&left);
    attack.assert_works(2);
    assert_eq!(failure(&attack, Duration::from_millis(50)), LeaveFailure::Timeout);
    let switch = attack.fpdu(&Signal::Switch(Route::Tcp).to_header(), &[]);
    attack.send_data(&switch);
    attack.attacked.peer.send(&Signal::Leave.to_header(), &[]);
    attack.attacked.pair.leave_shared_memory(Instant::now() + TIMEOUT).unwrap();
    attack.assert_works_over_tcp(3);
    victim.assert_survives(attack);
}

/// The victim follows, answers once, and gives the memory back, however often it is asked.
#[test]
fn a_flood_of_requests_is_answered_once() {
    let victim = Victim::new();
    let mut attack = sharing(&victim);
    let switch = attack.fpdu(&Signal::Switch(Route::Tcp).to_header(), &[]);
    attack.send_data(&switch);
    for _ in 0..20_000 {
        attack.attacked.peer.send(&Signal::Leave.to_header(), &[]);
        attack.attacked.peer.send(&Signal::Left.to_header(), &[]);
    }
    attack.assert_works_over_tcp(1);
    wait_until("the victim to leave", || attack.pair.qp().has_left_shared_memory());
    attack.pair.leave_shared_memory(Instant::now() + TIMEOUT).unwrap();
    let peer = &mut attack.attacked.peer;
    peer.receive_signal(|signal| (signal == Signal::Leave).then_some(()));
    peer.receive_signal(|signal| {
        assert_ne!(signal, Signal::Leave, "again");
        (signal == Signal::Left).then_some(())
    });
    attack.post_send(100, 64);
    loop {
        match attack.attacked.peer.receive_next() {
            Received::Message(Header::Send(_), ..) => break,
            Received::Message(Header::Write(write), ..) => {
                let signal = Signal::parse(write.addr);
                assert!(!matches!(signal, Some(Ok(Signal::Leave | Signal::Left))), "again: {signal:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    victim.assert_survives(attack);
}

/// The victim leaves while it waits for the memory that its peer has offered. When the memory comes, it asks for no channel.
#[test]
fn memory_that_comes_too_late_is_not_used() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let doorway = Doorway::new();
    attacked.peer.offer(&TOKEN, &doorway.id, 0);
    let (bell, hello) = doorway.accept();
    assert_eq!(hello.token, TOKEN);
    attacked.pair.leave_shared_memory(Instant::now()).unwrap();
    let mut link = Link { bell, ring: RingEnd::create() };
    doorway::answer(&link.bell, &MAGIC, &link.ring.file);
    let first = link.ring.next();
    assert_ne!(first.kind, ATTACH, "{first:?}");
    attacked.assert_works_over_tcp(1);
    victim.assert_survives((attacked, link));
}
