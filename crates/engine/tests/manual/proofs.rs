//! How a queue pair authenticates its peer: by the cluster key, and on the same host by the user.
//! `docs/wire.md` describes the proofs; these tests compute them independently from that description.

use super::common::{Host, Received, Stranger, TIMEOUT, UNUSED_QPN, gid, port, refusal, talk};
use super::log;
use hmac::{Hmac, Mac};
use ironwarp_engine::config::{ClusterKey, Config, Users};
use ironwarp_engine::{BringUpOptions, ConnectError, Local, QueuePair, Remote};
use ironwarp_rnic::qp::State;
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::long_form;
use ironwarp_testkit::net::ip;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Secret, Token};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use sha2::Sha256;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

const LOCAL_IP: &str = "127.0.0.3";
const PEER_IP: &str = "127.0.0.2";
const KEY: &[u8] = b"a key of the whole cluster";
const OTHER_USER: u32 = 65534;

fn with_key(key: &[u8]) -> Config {
    Config::default().key(ClusterKey::new(key).unwrap())
}

fn keyed() -> Host {
    Host::new(with_key(KEY))
}

/// Posts a request with the shortest possible timeout, after which the queue pair reports why it is not
/// connected.
fn be_impatient(host: &mut Host, pair: &QueuePair) {
    pair.set_retries(pair.qp().retries().timeout(1).retry_count(0));
    host.send(pair, 0, b"for nobody");
}

/// Computes a proof as docs/wire.md describes it. `hello` contains both nonces.
fn proof(label: &[u8], key: &[u8], hello: &Hello, dialler: (&str, u32), acceptor: (&str, u32)) -> Token {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(label);
    mac.update(&[2]);
    mac.update(&hello.dialler_nonce.unwrap());
    mac.update(&hello.acceptor_nonce.unwrap());
    for (address, qpn) in [dialler, acceptor] {
        mac.update(&gid(address).to_bytes());
        mac.update(&qpn.to_be_bytes());
    }
    mac.finalize().into_bytes()[..16].try_into().unwrap()
}

/// The hello of queue pair [`UNUSED_QPN`] at [`PEER_IP`], with a nonce.
fn hello_to(number: u32) -> Hello {
    Hello { dialler_nonce: Some([7; 16]), ..Hello::new(HelloKind::Dial, number, UNUSED_QPN) }
}

/// The nonce in the challenge of a queue pair at [`LOCAL_IP`].
fn challenge(number: u32) -> Token {
    let mut stranger = Stranger::send_hello(PEER_IP, LOCAL_IP, &hello_to(number));
    assert_eq!(
        (stranger.receive_next(), stranger.reply_hello().kind),
        (Received::Rejected, HelloKind::Challenge)
    );
    stranger.reply_hello().acceptor_nonce.unwrap()
}

fn proved(key: &[u8], number: u32) -> Hello {
    let mut hello = Hello { acceptor_nonce: Some(challenge(number)), ..hello_to(number) };
    hello.proof = Some(proof(b"dial", key, &hello, (PEER_IP, UNUSED_QPN), (LOCAL_IP, number)));
    hello
}

/// A queue pair at [`LOCAL_IP`] that waits for [`UNUSED_QPN`] at [`PEER_IP`].
fn waiting(host: &Host) -> Arc<QueuePair> {
    let pair = host.pair();
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    pair
}

#[test]
fn ends_with_the_same_key_connect_in_either_order() {
    for dialler_first in [true, false] {
        let (mut one, mut other) = (keyed(), keyed());
        let (near, far) = (one.pair(), other.pair());
        let tell = |dialler: bool| match dialler {
            true => one.bring_up(&near, PEER_IP, (LOCAL_IP, far.id())),
            false => other.bring_up(&far, LOCAL_IP, (PEER_IP, near.id())),
        };
        tell(dialler_first);
        tell(!dialler_first);
        talk(&mut one, &near, &mut other, &far);
    }
}

/// Compares an exchange byte for byte, with independently computed proofs.
#[test]
fn the_exchange_is_the_documented_one() {
    let host = keyed();
    let pair = waiting(&host);
    let hello = proved(KEY, pair.id());
    let mut peer = Stranger::send_hello(PEER_IP, LOCAL_IP, &hello);
    assert_eq!(peer.receive_next(), Received::Accepted);
    let expected = proof(b"answer", KEY, &hello, (PEER_IP, UNUSED_QPN), (LOCAL_IP, pair.id()));
    assert_eq!((peer.reply_hello().kind, peer.reply_hello().proof), (HelloKind::Answer, Some(expected)));
    peer.open();
    pair.wait_connected(TIMEOUT).unwrap();
}

#[test]
fn wrong_proofs_are_refused_and_the_right_one_is_still_taken() {
    let host = keyed();
    let pair = waiting(&host);
    let number = pair.id();
    let right = proved(KEY, number);
    for (what, wrong) in [
        ("another key", proved(b"a key of another cluster", number)),
        ("the other end's proof", {
            let proof = proof(b"answer", KEY, &right, (PEER_IP, UNUSED_QPN), (LOCAL_IP, number));
            Hello { proof: Some(proof), ..right }
        }),
        ("another nonce of the dialler", Hello { dialler_nonce: Some([8; 16]), ..right }),
    ] {
        let refused = Stranger::send_hello(PEER_IP, LOCAL_IP, &wrong).receive_refusal();
        assert_eq!(refused, Some(Reason::WrongProof), "{what}");
    }
    let mut stale =
        Stranger::send_hello(PEER_IP, LOCAL_IP, &Hello { acceptor_nonce: Some([9; 16]), ..right });
    assert_eq!((stale.receive_next(), stale.reply_hello().kind), (Received::Rejected, HelloKind::Challenge));
    assert_eq!(Stranger::send_hello(PEER_IP, LOCAL_IP, &right).receive_next(), Received::Accepted);
}

/// A proof is valid for a single connection: it cannot be used again, neither during that connection nor
/// later.
#[test]
fn a_replayed_proof_is_refused() {
    let host = keyed();
    let pair = waiting(&host);
    let hello = proved(KEY, pair.id());
    let mut peer = Stranger::send_hello(PEER_IP, LOCAL_IP, &hello);
    assert_eq!(peer.receive_next(), Received::Accepted);
    peer.open();
    pair.wait_connected(TIMEOUT).unwrap();
    assert_eq!(Stranger::send_hello(PEER_IP, LOCAL_IP, &hello).receive_refusal(), Some(Reason::Busy));
    pair.modify(State::Reset).unwrap();
    pair.modify(State::Init).unwrap();
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    let mut again = Stranger::send_hello(PEER_IP, LOCAL_IP, &hello);
    assert_eq!((again.receive_next(), again.reply_hello().kind), (Received::Rejected, HelloKind::Challenge));
    assert_ne!(again.reply_hello().acceptor_nonce, hello.acceptor_nonce);
}

/// Tries to connect two ends with these settings, the first of which dials. Returns its error.
fn why_not(dialler: Config, acceptor: Config) -> ConnectError {
    let (mut one, other) = (Host::new(dialler), Host::new(acceptor));
    let (near, far) = (one.pair(), other.pair());
    other.bring_up(&far, LOCAL_IP, (PEER_IP, near.id()));
    one.bring_up(&near, PEER_IP, (LOCAL_IP, far.id()));
    be_impatient(&mut one, &near);
    refusal(&near)
}

#[test]
fn ends_with_different_keys_do_not_connect() {
    let error = why_not(with_key(KEY), with_key(b"a key of another cluster"));
    assert!(matches!(error, ConnectError::Refused(Reason::WrongProof)), "{error}");
    assert!(error.to_string().contains("set the same key on both ends"), "{error}");
}

#[test]
fn a_key_at_the_accepting_end_alone_is_named() {
    let error = why_not(Config::default(), with_key(KEY));
    assert!(matches!(error, ConnectError::Refused(Reason::KeyNeeded)), "{error}");
}

#[test]
fn a_key_at_the_dialling_end_alone_is_named() {
    let error = why_not(with_key(KEY), Config::default());
    assert!(matches!(error, ConnectError::Refused(Reason::NoKey)), "{error}");
}

/// However often they try, each end logs once what is wrong and what to do, and neither logs the key. Runs in a process of
/// its own, because the log of a process has the lines of all its tests.
#[test]
fn both_ends_log_once_why_they_do_not_connect() {
    if !child::in_child("proofs::both_ends_log_once_why_they_do_not_connect") {
        return;
    }
    log::listen();
    why_not(Config::default(), with_key(KEY));
    why_not(with_key(KEY), with_key(b"a key of another cluster"));
    let mut version_1 = b"IRWH\x01\0\0\0".to_vec();
    version_1.extend([0; 8]);
    let host = keyed();
    let pair = waiting(&host);
    for _ in 0..3 {
        let mut old = Stranger::connect(PEER_IP, LOCAL_IP, port(pair.id())).unwrap();
        old.request(&version_1);
        assert_eq!(old.receive_refusal(), Some(Reason::Version));
    }
    for line in [
        "refused the peer: it has no cluster key and this end has one: set the same key on both ends",
        "not connected yet: the peer refused the connection: it has a cluster key and this end has none: set the same",
        "refused the peer: it has a different cluster key: set the same key on both ends",
        "not connected yet: the peer refused the connection: it has a different cluster key: set the same key on both ends",
        "the peer uses version 1 of Ironwarp's private protocol, this end uses 2: run the same release on both ends",
    ] {
        assert_eq!(log::lines_with(line).len(), 1, "{line}: {:#?}", log::lines_with(""));
    }
    assert!(log::lines_with("a key of").is_empty());
}

/// A server that has taken the peer's port accepts the connection, but cannot prove that it knows the key.
#[test]
fn a_squatter_on_the_peers_port_is_not_taken_for_the_peer() {
    let mut host = keyed();
    let pair = host.pair();
    let squatter = TcpListener::bind((LOCAL_IP, 0)).unwrap();
    let far = u32::from(squatter.local_addr().unwrap().port()) << 8;
    host.bring_up(&pair, PEER_IP, (LOCAL_IP, far));
    be_impatient(&mut host, &pair);
    let squatter_thread = thread::spawn(move || {
        for (turn, stream) in squatter.incoming().enumerate() {
            let mut stranger = Stranger::from(stream.unwrap());
            stranger.reply(turn % 2 == 0, |request| {
                let asked = Hello::parse(request).unwrap();
                let kind = if turn % 2 == 0 { HelloKind::Challenge } else { HelloKind::Answer };
                let said = Hello { acceptor_nonce: Some([3; 16]), proof: asked.proof, ..asked };
                let said = Hello { kind, destination: asked.source, source: asked.destination, ..said };
                said.emit().unwrap().to_vec()
            });
        }
    });
    let error = refusal(&pair);
    assert!(matches!(error, ConnectError::Unproven), "{error}");
    drop(squatter_thread); // the thread ends with the process
}

/// Without a cluster key, the ends prove the secret that two connection managers have exchanged.
#[test]
fn a_secret_for_two_queue_pairs_is_proved_and_ends_with_a_reset() {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (near, far) = (one.pair(), other.pair());
    let secret = near.new_secret().unwrap();
    assert!(near.keep_secret(secret) && far.keep_secret(secret));
    other.bring_up(&far, LOCAL_IP, (PEER_IP, near.id()));
    // The right address and QPNs are not enough.
    let hello = Hello::new(HelloKind::Dial, far.id(), near.id());
    assert_eq!(Stranger::send_hello(PEER_IP, LOCAL_IP, &hello).receive_refusal(), Some(Reason::KeyNeeded));
    one.bring_up(&near, PEER_IP, (LOCAL_IP, far.id()));
    talk(&mut one, &near, &mut other, &far);
    for (host, pair) in [(&one, &near), (&other, &far)] {
        pair.modify(State::Reset).unwrap();
        pair.modify(State::Init).unwrap();
        host.cq.poll(16, |_| ()).unwrap();
    }
    near.keep_secret(Secret([1; 16]));
    near.modify(State::Reset).unwrap();
    near.modify(State::Init).unwrap();
    other.bring_up(&far, LOCAL_IP, (PEER_IP, near.id()));
    one.bring_up(&near, PEER_IP, (LOCAL_IP, far.id()));
    talk(&mut one, &near, &mut other, &far);
}

/// Runs `run` in a thread with another user ID: that user then owns the sockets that `run` opens. Needs root.
fn as_another_user<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_thread_uid(Uid::from_raw(OTHER_USER)).unwrap();
            run()
        });
        other.join().unwrap()
    })
}

#[test]
fn another_user_of_the_host_is_refused_though_it_knows_all_numbers() {
    if !child::as_root("proofs::another_user_of_the_host_is_refused_though_it_knows_all_numbers") {
        return;
    }
    let host = Host::new(Config::default());
    let pair = waiting(&host);
    let number = pair.id();
    let refused =
        as_another_user(|| Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN).receive_refusal());
    assert_eq!(refused, Some(Reason::OtherUser));
    assert_eq!(
        Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN).receive_next(),
        Received::Accepted,
        "the same user is accepted"
    );
}

#[test]
fn users_that_are_listed_may_connect() {
    if !child::as_root("proofs::users_that_are_listed_may_connect") {
        return;
    }
    for users in [Users::Listed(vec![OTHER_USER]), Users::Any] {
        let host = Host::new(Config::default().users(users));
        let pair = waiting(&host);
        let number = pair.id();
        let received =
            as_another_user(|| Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN).receive_next());
        assert_eq!(received, Received::Accepted);
    }
}

/// The end that dials checks the user as well, because another user may have taken the port of its peer.
#[test]
fn another_user_at_the_peers_port_is_not_taken_for_the_peer() {
    if !child::as_root("proofs::another_user_at_the_peers_port_is_not_taken_for_the_peer") {
        return;
    }
    let mut host = Host::new(Config::default());
    let pair = host.pair();
    let squatter = as_another_user(|| TcpListener::bind((LOCAL_IP, 0)).unwrap());
    let far = u32::from(squatter.local_addr().unwrap().port()) << 8;
    host.bring_up(&pair, PEER_IP, (LOCAL_IP, far));
    be_impatient(&mut host, &pair);
    let squatter_thread = thread::spawn(move || {
        set_thread_uid(Uid::from_raw(OTHER_USER)).unwrap();
        for stream in squatter.incoming() {
            let mut stranger = Stranger::from(stream.unwrap());
            stranger.reply(false, |request| {
                let asked = Hello::parse(request).unwrap();
                Hello::new(HelloKind::Answer, asked.source, asked.destination).emit().unwrap().to_vec()
            });
            // Wait until the dialler closes the connection.
            assert_eq!(stranger.receive_next(), Received::Closed);
        }
    });
    let error = refusal(&pair);
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    drop(squatter_thread); // the thread ends with the process
}

#[test]
fn packet_sequence_numbers_are_compared_where_both_ends_know_them() {
    for (sent, expected, accepted) in [(5, 5, true), (5, 6, false)] {
        let host = Host::new(Config::default());
        let pair = host.pair();
        let options = BringUpOptions {
            local: Local::Gid(gid(LOCAL_IP)),
            receive_psn: Some(expected),
            ..BringUpOptions::default()
        };
        host.bring_up_with(&pair, (PEER_IP, UNUSED_QPN), &options);
        pair.set_send_psn(9);
        let hello = Hello::new(HelloKind::Dial, pair.id(), UNUSED_QPN);
        let mut other_sq = Stranger::send_hello(PEER_IP, LOCAL_IP, &Hello { receive_psn: Some(8), ..hello });
        assert_eq!(other_sq.receive_refusal(), Some(Reason::Psn));
        let mut peer = Stranger::send_hello(PEER_IP, LOCAL_IP, &Hello { send_psn: Some(sent), ..hello });
        match accepted {
            true => {
                assert_eq!(peer.receive_next(), Received::Accepted);
                assert_eq!(
                    (peer.reply_hello().receive_psn, peer.reply_hello().send_psn),
                    (Some(expected), Some(9))
                );
            }
            false => assert_eq!(peer.receive_refusal(), Some(Reason::Psn)),
        }
    }
}

/// A client that dials and leaves, before or after it is answered, does not keep the peer out.
#[test]
fn an_abandoned_attempt_does_not_block_the_peer() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (pair, far) = (host.pair(), peer.pair());
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, far.id()));
    for turn in 0..200 {
        let mut attempt = Stranger::hello(PEER_IP, (LOCAL_IP, pair.id()), far.id());
        if turn % 2 == 0 {
            attempt.receive_next();
        }
        attempt.reset();
    }
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, pair.id()));
    talk(&mut host, &pair, &mut peer, &far);
}

/// A queue pair that stays in the state ready to receive receives and acknowledges messages.
#[test]
fn a_queue_pair_that_stays_ready_to_receive_receives() {
    for (near_at, far_at) in [(PEER_IP, LOCAL_IP), (LOCAL_IP, PEER_IP)] {
        let (mut one, other) = (Host::new(Config::default()), Host::new(Config::default()));
        let (near, far) = (one.pair(), other.pair());
        let options = BringUpOptions { local: Local::Gid(gid(far_at)), ..BringUpOptions::default() };
        let remote = Remote { gid: gid(near_at), qpn: near.id() };
        other.receive(&far, 0, 64);
        other.engine.bring_up(&far, remote, &options).unwrap();
        one.bring_up(&near, near_at, (far_at, far.id()));
        one.send(&near, 100, b"to one that listens");
        one.one();
        other.one();
        assert_eq!(other.bytes(0, 19), b"to one that listens");
        assert_eq!(far.qp().state(), State::ReadyToReceive);
    }
}

// --- Two hosts ---

/// The addresses of the victim and of its peer. The peer has the smaller one, so it dials.
const VICTIM_AT: &str = "10.97.0.2";
const PEER_AT: &str = "10.97.0.1";

/// Runs a test again in a network namespace of its own, with a second process in another namespace as the
/// remote host.
fn on_two_hosts(test: &str, near: impl FnOnce(&mut Partner), far: impl FnOnce()) {
    match child::role().as_deref() {
        Some("far") => {
            child::tell("ready");
            child::wait_for("go");
            far();
        }
        Some(_) => {
            let mut partner = Partner::start(child::in_front(&["unshare", "--net"], test, "far"));
            partner.wait_for("ready");
            ip("link add iw0 type veth peer name iw1");
            ip(&format!("link set iw1 netns {}", partner.id()));
            ip(&format!("addr add {VICTIM_AT}/24 dev iw0"));
            ip("link set iw0 up");
            partner.tell("go");
            near(&mut partner);
            partner.finish();
        }
        None => assert!(!child::in_network(test)),
    }
}

fn number(text: &str) -> u32 {
    text.trim().parse().unwrap()
}

/// Sends a message and receives one.
fn exchange(host: &mut Host, pair: &QueuePair) {
    pair.wait_connected(TIMEOUT).unwrap();
    host.receive(pair, 0, 64);
    host.send(pair, 100, b"a message");
    host.one();
    host.one();
    assert_eq!(host.bytes(0, 9), b"a message");
}

fn near_host(config: Config, partner: &mut Partner) {
    let mut host = Host::new(config);
    let pair = host.pair();
    let far = number(&partner.wait_for("number "));
    host.bring_up(&pair, VICTIM_AT, (PEER_AT, far));
    partner.tell(&format!("number {}", pair.id()));
    partner.wait_for("connects");
    exchange(&mut host, &pair);
    partner.wait_for("done");
}

/// Runs the peer, which connects while the thread started by `before` is running.
fn far_host(config: Config, before: impl FnOnce(u32, u32) -> JoinHandle<()>) {
    ip(&format!("addr add {PEER_AT}/24 dev iw1"));
    ip("link set iw1 up");
    let mut host = Host::new(config);
    let pair = host.pair();
    child::tell(&format!("number {}", pair.id()));
    let victim = number(&child::wait_for("number "));
    let meanwhile = before(victim, pair.id());
    child::tell("connects");
    host.bring_up(&pair, PEER_AT, (VICTIM_AT, victim));
    exchange(&mut host, &pair);
    meanwhile.join().unwrap();
    child::tell("done");
}

/// An attacker that has the peer's address and knows both QPNs, but not the key, dials continuously.
#[test]
fn strangers_at_the_peers_address_are_refused_and_the_peer_connects() {
    let count: u32 = if long_form::is_requested() { 1_000_000 } else { 20_000 };
    let far = || {
        far_host(with_key(KEY), |victim, own| {
            let (first, rest) = (count / 2, count - count / 2);
            refused(first, victim, own);
            // Do the other half while the peer connects.
            thread::spawn(move || refused(rest, victim, own))
        });
    };
    let near = |partner: &mut Partner| near_host(with_key(KEY), partner);
    on_two_hosts("proofs::strangers_at_the_peers_address_are_refused_and_the_peer_connects", near, far);
}

/// Dials `count` times without the key, in different ways, and checks that it is never accepted.
fn refused(count: u32, victim: u32, own: u32) {
    let began = Instant::now();
    let plain = Hello::new(HelloKind::Dial, victim, own);
    let mut nonce = [0; 16];
    for turn in 0..count {
        let hello = match turn % 3 {
            0 => plain,
            1 => Hello { dialler_nonce: Some([1; 16]), ..plain },
            _ => Hello {
                dialler_nonce: Some([1; 16]),
                acceptor_nonce: Some(nonce),
                proof: Some([2; 16]),
                ..plain
            },
        };
        let mut stranger = Stranger::send_hello(PEER_AT, VICTIM_AT, &hello);
        assert_eq!(stranger.receive_next(), Received::Rejected, "turn {turn}");
        nonce = stranger.reply_hello().acceptor_nonce.unwrap_or(nonce);
        stranger.reset();
    }
    println!("\n{count} refused in {:?}", began.elapsed());
}

/// Without a key, a queue pair identifies its peer by address and QPN only, as SECURITY.md says.
#[test]
fn without_a_key_another_host_is_known_by_its_address_and_number_alone() {
    let near = |partner: &mut Partner| {
        let host = Host::new(Config::default());
        let pair = host.pair();
        host.bring_up(&pair, VICTIM_AT, (PEER_AT, UNUSED_QPN));
        partner.tell(&format!("number {}", pair.id()));
        pair.wait_connected(TIMEOUT).unwrap();
        partner.wait_for("done");
    };
    let far = || {
        ip(&format!("addr add {PEER_AT}/24 dev iw1"));
        ip("link set iw1 up");
        let victim = number(&child::wait_for("number "));
        let mut stranger = Stranger::hello(PEER_AT, (VICTIM_AT, victim), UNUSED_QPN);
        assert_eq!(stranger.receive_next(), Received::Accepted);
        stranger.open();
        child::tell("done");
        assert_eq!(stranger.receive_next(), Received::Closed); // when the victim ends
    };
    on_two_hosts("proofs::without_a_key_another_host_is_known_by_its_address_and_number_alone", near, far);
}
