//! Connection setup, rejection and failure.

use ironwarp::completion::Opcode;
use ironwarp::connection::{
    AcceptOptions, ConnectError, ConnectOptions, ConnectionEventKind, EventChannel, MpaMode,
};
use ironwarp::queue::{Completes, CreateError, PostError, QpError, State, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{Completions, End, SOON, pair};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

fn end() -> End {
    End::new(Config::default(), Completes::WhenSent)
}

#[test]
fn private_data_and_depths_reach_the_other_end() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server) = (end(), end());
        let listener = server.adapter.listen(at.parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let options = ConnectOptions::new().private_data(&[7; 252]).ird(5).ord(3);
        client.qp.start_connect(to, &options).unwrap();

        let incoming = listener.accept(SOON).unwrap();
        assert_eq!(incoming.private_data(), [7; 252]);
        assert_eq!((incoming.depths().ird, incoming.depths().ord), (Some(5), Some(3)));
        assert_eq!(incoming.local_addr(), to);
        let there =
            incoming.accept(&server.qp, &AcceptOptions::new().private_data(b"yes").ird(9).ord(9)).unwrap();

        let here = client.qp.wait_connected(SOON).unwrap();
        assert_eq!(&here.private_data[..], b"yes");
        assert_eq!((here.peer, here.local), (to, there.peer));
        // RFC 6581 §9.1: the ORD of one end does not exceed the IRD of the other.
        assert_eq!((here.agreed.ord, there.agreed.ord), (3, 5));
        assert!(here.agreed.send.crc && there.agreed.send.crc);
        assert_eq!((client.qp.state(), server.qp.state()), (State::ReadyToSend, State::ReadyToSend));
    }
}

/// In the peer-to-peer model either program may send first, in the others the initiator must (RFC 6581 §5).
#[test]
fn every_mpa_mode_carries_messages_both_ways() {
    for setup in [MpaMode::PeerToPeer, MpaMode::ClientServer, MpaMode::Unenhanced] {
        for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
            let client = End::new(Config::default(), completes);
            let server = End::new(Config::default(), completes);
            let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            for end in [&client, &server] {
                end.qp.post_receive(1, &[]).unwrap();
            }
            let options = ConnectOptions::new().mpa_mode(setup);
            client.qp.start_connect(listener.local_addr().unwrap(), &options).unwrap();
            let there = listener.accept(SOON).unwrap().accept(&server.qp, &AcceptOptions::new()).unwrap();
            assert_eq!(there.agreed.mode, setup);
            client.qp.wait_connected(SOON).unwrap();
            client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
            server.done(Opcode::Receive, 1);
            server.qp.post_send(WorkRequest::send(2, &[])).unwrap();
            let ids = [client.next(), client.next()].map(|it| (it.opcode, it.wr_id, it.status as u8));
            assert!(ids.contains(&(Opcode::Receive, 1, 0)) && ids.contains(&(Opcode::Send, 2, 0)), "{ids:?}");
            server.done(Opcode::Send, 2);
        }
    }
}

#[test]
fn a_rejection_carries_its_reason() {
    let (client, server) = (end(), end());
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().reject(b"the queue is full").unwrap();
    let error = client.qp.wait_connected(SOON).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Rejected { private_data, .. } if &private_data[..] == b"the queue is full")
    );
    assert_eq!(error.to_string(), "the peer rejected the connection: \"the queue is full\"");
    assert!(client.qp.wait_closed(SOON));
    assert_eq!(client.qp.post_send(WorkRequest::send(1, &[])).unwrap_err(), PostError::NotConnected);
}

#[test]
fn an_incoming_connection_that_is_dropped_is_rejected() {
    let (client, server) = (end(), end());
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    drop(listener.accept(SOON).unwrap());
    assert!(matches!(&client.qp.wait_connected(SOON).unwrap_err(), ConnectError::Rejected { .. }));
}

#[test]
fn connecting_to_an_unused_port_is_refused() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = end().qp.connect(closed, &ConnectOptions::new()).unwrap_err();
    assert!(error.to_string().starts_with("Connection refused"), "{error}");
}

/// A peer that accepts the TCP connection and sends nothing, as the kernel's backlog does.
#[test]
fn connecting_to_a_silent_peer_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config::default().startup(Duration::from_millis(100));
    let began = Instant::now();
    let error = End::new(config, Completes::WhenSent)
        .qp
        .connect(silent.local_addr().unwrap(), &ConnectOptions::new())
        .unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut), "{error}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(5), "{took:?}");
}

/// A timeout of the caller that is shorter than that of the settings.
#[test]
fn a_caller_may_set_a_shorter_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config::default().close(Duration::from_millis(100));
    let client = End::new(config, Completes::WhenSent);
    let options = ConnectOptions::new().timeout(Duration::from_millis(50));
    let error = client.qp.connect(silent.local_addr().unwrap(), &options).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut), "{error}");
}

#[test]
fn a_queue_pair_connects_only_once() {
    let (client, server) = pair(ironwarp_testkit::native::CASES[0]);
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let error = client.qp.connect(to, &ConnectOptions::new()).unwrap_err();
    assert!(matches!(error, ConnectError::Connected(_)), "{error}");
    let other = client.domain.queue_pair(&client.cq).create().unwrap();
    other.start_connect(to, &ConnectOptions::new()).unwrap();
    let error = listener.accept(SOON).unwrap().accept(&server.qp, &AcceptOptions::new()).unwrap_err();
    assert!(matches!(error, ConnectError::Connected(_)), "{error}");
    assert!(matches!(&other.wait_connected(SOON).unwrap_err(), ConnectError::Rejected { .. }));

    server.qp.post_receive(1, &[]).unwrap();
    client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
    server.done(Opcode::Receive, 1);
    assert!(!client.qp.wait_closed(Duration::ZERO), "the existing connection is not affected");
}

/// The caller gave up, and the peer accepts nevertheless: the peer must not be left with an open connection.
#[test]
fn a_queue_pair_that_is_dropped_while_it_connects_is_closed() {
    let (client, server) = (end(), end());
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let End { qp, adapter, .. } = client;
    qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    let incoming = listener.accept(SOON).unwrap();
    drop(qp);
    incoming.accept(&server.qp, &AcceptOptions::new()).unwrap();
    assert!(server.qp.wait_closed(SOON), "{adapter:?} keeps it open");
}

#[test]
fn only_receives_can_be_posted_before_connecting() {
    let end = end();
    assert_eq!(end.qp.post_send(WorkRequest::send(1, &[])).unwrap_err(), PostError::NotConnected);
    end.qp.post_receive(1, &[]).unwrap();
    assert_eq!(end.qp.state(), State::Init);
}

#[test]
fn objects_of_different_adapters_cannot_be_mixed() {
    let (client, server) = (end(), end());
    let error = client.domain.queue_pair(&server.cq).create().unwrap_err();
    assert!(matches!(error, CreateError::OtherAdapter), "{error}");
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    let other = end();
    let error = listener.accept(SOON).unwrap().accept(&other.qp, &AcceptOptions::new()).unwrap_err();
    assert!(
        error.to_string().starts_with("the queue pair and the listener belong to different adapters"),
        "{error}"
    );
}

#[test]
fn too_much_private_data_is_refused_at_once() {
    let at: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let error = end().qp.start_connect(at, &ConnectOptions::new().private_data(&[0; 509])).unwrap_err();
    assert!(matches!(error, ConnectError::InvalidArgument(_)), "{error}");
}

#[test]
fn events_report_the_life_of_a_connection() {
    let server = end();
    let client = end();
    let events = EventChannel::new().unwrap();
    let qp = client.domain.queue_pair(&client.cq).events(&events).create().unwrap();
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().accept(&server.qp, &AcceptOptions::new()).unwrap();
    let event = events.wait(Some(SOON)).unwrap();
    assert_eq!(event.qp, qp.id());
    assert!(matches!(event.kind, ConnectionEventKind::Connected(_)), "{event:?}");
    server.qp.disconnect();
    let event = events.wait(Some(SOON)).unwrap();
    assert!(
        matches!(&event.kind, ConnectionEventKind::Ended(error) if *error == QpError::Closed),
        "{event:?}"
    );
}

/// Many connections at once, on one listener: each is accepted, in order of arrival.
#[test]
fn many_connect_at_once() {
    let server = end();
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let adapter = Adapter::new().unwrap();
    let cq = adapter.completion_queue(64).unwrap();
    let domain = adapter.protection_domain();
    let clients: Vec<_> = (0..50_u8)
        .map(|number| {
            let qp = domain.queue_pair(&cq).create().unwrap();
            qp.start_connect(to, &ConnectOptions::new().private_data(&[number])).unwrap();
            qp
        })
        .collect();
    let mut servers = Vec::new();
    for _ in 0..50 {
        let incoming = listener.accept(SOON).unwrap();
        let number = incoming.private_data()[0];
        let qp = server.domain.queue_pair(&server.cq).create().unwrap();
        qp.post_receive(number.into(), &[]).unwrap();
        incoming.accept(&qp, &AcceptOptions::new().private_data(&[number])).unwrap();
        servers.push(qp);
    }
    for (number, client) in (0..).zip(&clients) {
        assert_eq!(client.wait_connected(SOON).unwrap().private_data[..], [number]);
        client.post_send(WorkRequest::send(0, &[]).unsignaled()).unwrap();
        server.done(Opcode::Receive, number.into());
    }
}
