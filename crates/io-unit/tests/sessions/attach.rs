//! Attaching, configuration requests, detaching and time limits (P1, P5, P8).

use crate::input::frame;
use crate::model::{MAC, OTHER_HOST, OTHER_MAC, Pair, START, Who};
use ironwarp_io_unit::message::{
    Admitted, Join, Mac, Message, Mode, Nonce, Operation, Proof, Reply, Request, Statistics, Status,
};
use ironwarp_io_unit::session::{Action, Blocked, Channel, Config, Reason, Session, join_request};
use std::time::Duration;

fn actions(session: &mut Session) -> Vec<Action> {
    std::iter::from_fn(|| session.next_action()).collect()
}

/// Sends a request to a unit and returns the reply.
fn ask(unit: &mut Session, request: Request) -> Reply {
    unit.receive(Channel::Control, &Message::Request(request).encode(77));
    let replies = actions(unit).into_iter().filter_map(|action| match action {
        Action::Post { channel: Channel::Control, message } => match Message::decode(&message) {
            Ok((77, Message::Reply(reply))) => Some(reply),
            _ => None,
        },
        _ => None,
    });
    let [reply] = replies.collect::<Vec<_>>().try_into().unwrap();
    reply
}

#[test]
fn a_host_attaches_and_frames_travel_in_both_modes() {
    for mode in [Mode::Rdma, Mode::Send] {
        let config = Config { offloads: 7, mtu: 9000, ..Config::default() };
        let unit = Config { offloads: 5, ..config.clone() };
        let mut pair = Pair::new(mode, config, unit);
        assert_eq!(pair.send(Who::Host, frame(1, 100)), Err(Blocked::NotOpen), "nothing is sent before");
        pair.settle();
        assert_eq!(pair.host.session.number(), Some((1, 1)));
        assert_eq!(pair.unit.session.number(), Some((1, 1)));
        assert_eq!(pair.host.session.link(), Some((5, 9000)), "offloads that both support");
        assert_eq!((pair.unit.session.mode(), pair.unit.session.macs()), (mode, &[MAC][..]));
        for len in [1, 60, 256, 257, 1514, 69_000] {
            for who in [Who::Host, Who::Unit] {
                pair.send(who, frame(u64::from(len), len)).unwrap();
            }
        }
        pair.settle();
        assert_eq!((pair.host.received, pair.unit.received), (6, 6));
        let Statistics {
            frames_sent, bytes_sent, frames_received, bytes_received, drops, stalls, pools, ..
        } = pair.host.session.statistics();
        assert_eq!((frames_sent, bytes_sent), (6, 71_088));
        assert_eq!((frames_received, bytes_received, drops, stalls), (6, 71_088, 0, 0));
        assert_eq!(pools, if mode == Mode::Rdma { 4 } else { 2 });
        pair.call(Who::Host, Session::detach);
        pair.settle();
        assert_eq!((pair.host.closed, pair.unit.closed), (Some(Reason::Detached), Some(Reason::Detached)));
    }
}

#[test]
fn a_host_with_a_wrong_key_is_refused_and_told_why() {
    let mut pair = Pair::with_key(Mode::Rdma, Config::default(), Config::default(), &[8; 32]);
    pair.settle();
    let refused = Reason::Refused(Status::AuthenticationFailed);
    assert_eq!((&pair.unit.closed, &pair.host.closed), (&Some(refused.clone()), &Some(refused.clone())));
    let error = "failed to attach: authentication failed: check the name and the key of this host";
    assert_eq!(refused.to_string(), error);
}

#[test]
fn a_unit_that_does_not_know_the_key_is_left() {
    let mut pair = Pair::new(Mode::Rdma, Config::default(), Config::default());
    let mut host = |reply, context| {
        pair.host.session.receive(Channel::Control, &Message::Reply(reply).encode(context));
    };
    host(Reply::Challenge(Nonce([3; 16])), 1);
    let admitted = Admitted { session: 1, generation: 1, offloads: 0, mtu: 1500, proof: Proof([0; 32]) };
    host(Reply::Attach(admitted), 2);
    assert_eq!(pair.host.session.reason(), Some(&Reason::WrongUnit));
}

#[test]
fn a_data_channel_with_a_wrong_proof_leaves_the_session_alone() {
    let mut pair = Pair::new(Mode::Rdma, Config::default(), Config::default());
    // Up to the Attach, with the Join on its way.
    while pair.host.data_requests() == 0 {
        for who in [Who::Host, Who::Unit] {
            pair.carry(who, Channel::Control);
            pair.process(who);
        }
    }
    let forged = Join { session: 1, generation: 1, proof: Proof([1; 32]) };
    let bytes = Message::Request(Request::Join(forged)).encode(9);
    assert_eq!(join_request(&bytes).unwrap(), (9, forged));
    let join = |pair: &mut Pair, join: &Join| pair.call(Who::Unit, |unit| unit.join(9, join));
    assert_eq!(join(&mut pair, &forged), Err(Status::AuthenticationFailed));
    assert_eq!(join(&mut pair, &Join { session: 2, ..forged }), Err(Status::AuthenticationFailed));
    let (_, right) = join_request(pair.host.first_data_message().unwrap()).unwrap();
    pair.settle();
    assert!(pair.host.up && pair.unit.up, "the right one still joins");
    assert_eq!(join(&mut pair, &forged), Err(Status::AuthenticationFailed));
    assert_eq!(join(&mut pair, &right), Err(Status::WrongState), "replayed");
    pair.send(Who::Host, frame(1, 1000)).unwrap();
    pair.settle();
    assert_eq!(pair.unit.received, 1);
}

#[test]
fn a_host_that_attaches_again_replaces_its_old_session() {
    let mut old = Pair::open(Mode::Rdma, &Config::default());
    let mut other = Pair::second(&old, "right", OTHER_HOST, &Config::default());
    other.settle();
    let mut new = Pair::second(&old, "left", MAC, &Config::default());
    new.settle();
    assert_eq!((old.replaced, other.replaced, new.replaced), (None, None, Some(1)));
    assert_eq!(new.unit.session.number(), Some((3, 3)));
    old.call(Who::Unit, |unit| unit.end(Reason::Replaced));
    old.settle();
    assert_eq!((old.unit.closed, old.host.closed), (Some(Reason::Replaced), Some(Reason::Disconnected)));
    assert_eq!((old.unit.session.statistics().pools, old.host.session.statistics().pools), (0, 0));
    for pair in [&mut other, &mut new] {
        pair.send(Who::Host, frame(1, 1000)).unwrap();
        pair.settle();
        assert_eq!(pair.unit.received, 1);
    }
}

#[test]
fn every_request_is_answered() {
    let failed = |operation, status| Reply::Failed { operation: operation as u16, status };
    let mut unit = Session::unit(Config::default(), Nonce([5; 16]), START).unwrap();
    assert_eq!(ask(&mut unit, Request::Mtu(0)), failed(Operation::Mtu, Status::WrongState));
    assert_eq!(ask(&mut unit, Request::Statistics), failed(Operation::Statistics, Status::WrongState));
    assert_eq!(ask(&mut unit, Request::Detach), failed(Operation::Detach, Status::WrongState));
    assert_eq!(ask(&mut unit, Request::Challenge), Reply::Challenge(Nonce([5; 16])));
    assert_eq!(ask(&mut unit, Request::Challenge), failed(Operation::Challenge, Status::WrongState));

    let mut pair = Pair::open(Mode::Rdma, &Config::default());
    let unit = &mut pair.unit.session;
    let unknown = Request::Unknown { operation: 99, data: vec![1] };
    assert_eq!(ask(unit, unknown), Reply::Failed { operation: 99, status: Status::Unsupported });
    assert_eq!(ask(unit, Request::SetMac(OTHER_MAC)), Reply::SetMac);
    assert_eq!(unit.macs(), [OTHER_MAC]);
    let foreign = Request::SetMac(Mac([2, 0, 0, 0, 0, 9]));
    assert_eq!(ask(unit, foreign), failed(Operation::SetMac, Status::NotAllowed));
    assert_eq!(unit.macs(), [OTHER_MAC]);
    assert_eq!(ask(unit, Request::Mtu(0)), Reply::Mtu(1500));
    assert_eq!(ask(unit, Request::Mtu(1400)), Reply::Mtu(1400));
    assert_eq!(ask(unit, Request::Mtu(1501)), failed(Operation::Mtu, Status::OutOfRange));
    assert_eq!(ask(unit, Request::Mtu(67)), failed(Operation::Mtu, Status::OutOfRange));
    let statistics = unit.statistics();
    assert_eq!(ask(unit, Request::Statistics), Reply::Statistics(statistics));
    let host = &mut pair.host.session;
    assert_eq!(
        ask(host, Request::Mtu(0)),
        failed(Operation::Mtu, Status::Unsupported),
        "a unit only asks for statistics"
    );
    assert!(matches!(ask(host, Request::Statistics), Reply::Statistics(_)));
}

#[test]
fn both_ends_ask_for_statistics_and_the_host_configures() {
    let mut pair = Pair::open(Mode::Rdma, &Config::default());
    pair.call(Who::Host, |host| host.request(&Request::Mtu(1280))).unwrap();
    pair.call(Who::Host, |host| host.request(&Request::SetMac(OTHER_MAC))).unwrap();
    pair.call(Who::Unit, |unit| unit.request(&Request::Statistics)).unwrap();
    assert_eq!(pair.call(Who::Unit, |unit| unit.request(&Request::Mtu(0))), Err(Status::Unsupported));
    pair.settle();
    assert_eq!(pair.host.answers, [Reply::Mtu(1280), Reply::SetMac]);
    assert_eq!(pair.unit.answers, [Reply::Statistics(pair.host.session.statistics())]);
    assert_eq!(pair.host.session.link(), Some((0, 1280)));
}

#[test]
fn a_peer_that_does_not_answer_loses_its_session() {
    let limit = Config::default().reply_limit;
    let unanswered = |awaited| Some(Reason::Unanswered { awaited, limit });
    let mut pair = Pair::new(Mode::Rdma, Config::default(), Config::default());
    assert_eq!(pair.host.session.deadline(), Some(START + limit));
    for who in [Who::Host, Who::Unit] {
        pair.call(who, |session| session.tick(START + limit - Duration::from_nanos(1)));
        assert_eq!(pair.end(who).closed, None);
        pair.call(who, |session| session.tick(START + limit));
    }
    assert_eq!(pair.host.closed, unanswered("CfgUtilReply"));
    assert_eq!(pair.unit.closed, unanswered("Attach"));

    let mut pair = Pair::open(Mode::Rdma, &Config::default());
    assert_eq!((pair.host.session.deadline(), pair.unit.session.deadline()), (None, None));
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    pair.call(Who::Unit, |unit| unit.tick(START + limit * 2));
    assert_eq!(pair.unit.closed, unanswered("BufferPoolFlushReply"));
    assert_eq!(pair.unit.closed.as_ref().unwrap().to_string(), "no BufferPoolFlushReply within 5s");
    assert_eq!(pair.unit.pools(), 0, "disconnected first, then deregistered");
}

#[test]
fn a_peer_that_does_not_read_its_control_channel_loses_its_session() {
    let mut pair = Pair::open(Mode::Rdma, &Config::default());
    let statistics = Message::Request(Request::Statistics).encode(1);
    for _ in 0..64 {
        pair.call(Who::Unit, |unit| unit.receive(Channel::Control, &statistics));
        assert_eq!(pair.unit.closed, None);
    }
    pair.call(Who::Unit, |unit| unit.receive(Channel::Control, &statistics));
    assert_eq!(pair.unit.closed, Some(Reason::ControlBlocked { messages: 64 }));
    assert_eq!(pair.unit.pools(), 0);
}
