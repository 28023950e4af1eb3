//! One work request that registers memory and sends a message (requirement M12): it succeeds or fails as one.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{
    Access, Buffer, Check, FastRegion, MemoryRegion, RegisterError, RemoteAddr, Sge, Tag,
};
use ironwarp::queue::{
    Completes, PostError, QpError, QueuePairBuilder, RegistrationFailure, SendRequest, State, WorkRequest,
};
use ironwarp_testkit::native::{CASES, Case, Completions, End, connect, pair, pair_with, pattern};

const LOCAL: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);
const ACKNOWLEDGED: Case = CASES[1];
/// The peer may write, but the program may not: no memory can be registered like that.
const REFUSED: Access = Access::REMOTE_WRITE;

/// Two connected ends. The queue pair of the server is built with these options.
fn pair_of(server: impl FnOnce(QueuePairBuilder) -> QueuePairBuilder) -> (End, End) {
    let end = || End::new(Config::default(), Completes::WhenAcknowledged);
    let (client, mut owner) = (end(), end());
    let builder = owner.domain.queue_pair(&owner.cq).completes(Completes::WhenAcknowledged);
    owner.qp = server(builder).create().unwrap();
    connect(&client, &owner, "127.0.0.1:0".parse().unwrap());
    (client, owner)
}

fn new_region(end: &End, bytes: &[u8]) -> FastRegion {
    end.domain.allocate_region([Buffer::copy_of(bytes).unwrap()]).unwrap()
}

fn read(end: &End, sink: &MemoryRegion, from: RemoteAddr) -> Vec<u8> {
    sink.fill(0).unwrap();
    end.qp.post_send(WorkRequest::read(1, &[sink.slice(..).unwrap()], from)).unwrap();
    end.done(Opcode::Read, 1);
    sink.to_vec().unwrap()
}

/// Checks that no completion is left: the request has one, not two.
fn assert_quiet(end: &End) {
    assert!(end.cq.poll_one().unwrap().is_none());
}

/// Checks that a tag is not valid: the peer of another queue pair, of the same domain, cannot read with it.
fn assert_invalid(owner: &mut End, tag: Tag) {
    let other = End::new(Config::default(), Completes::WhenAcknowledged);
    owner.qp = owner.domain.queue_pair(&owner.cq).create().unwrap();
    connect(&other, owner, "127.0.0.1:0".parse().unwrap());
    assert_unreadable(&other, owner, tag);
}

/// Checks that the client cannot read with a tag of the server, because the tag is not valid.
fn assert_unreadable(client: &End, server: &End, tag: Tag) {
    let sink = client.region(&[0; 5], LOCAL);
    let read = WorkRequest::read(3, &[sink.slice(..).unwrap()], RemoteAddr { tag, offset: 0 });
    client.qp.post_send(read).unwrap();
    client.failed(Opcode::Read, 3, Status::RemoteAccess);
    let error = server.qp.error();
    assert!(matches!(&error, Some(QpError::Remote(denied)) if denied.check == Check::Valid), "{error:?}");
    assert_eq!(sink.to_vec().unwrap(), [0; 5]);
}

/// The payload of a message, and its local memory.
struct Payload {
    request: SendRequest,
    bytes: Vec<u8>,
    _memory: Option<MemoryRegion>,
}

/// Payloads of every kind: none, inline, of registered memory in one segment and in many, and of the region itself.
fn payload(owner: &End, region: &FastRegion, kind: u8) -> Payload {
    let (len, tag) = (region.len(), region.next_tag());
    let from = |bytes: Vec<u8>| {
        let memory = owner.region(&bytes, Access::LOCAL_READ);
        let request = WorkRequest::send(2, &[memory.slice(..).unwrap()]);
        Payload { request, bytes, _memory: Some(memory) }
    };
    let inline =
        |bytes: Vec<u8>| Payload { request: WorkRequest::send_inline(2, &bytes), bytes, _memory: None };
    match kind {
        0 => inline(vec![]),
        1 => inline(tag.0.to_be_bytes().to_vec()),
        2 => inline(pattern(1, 400)),
        3 => from(pattern(2, 3000)),
        4 => from(pattern(3, 300_000)),
        _ => {
            let own = Sge { tag, ..region.slice(..len).unwrap() };
            Payload { request: WorkRequest::send(2, &[own]), bytes: region.to_vec().unwrap(), _memory: None }
        }
    }
}

#[test]
fn one_request_registers_memory_and_sends_with_every_kind_of_send() {
    for case in CASES {
        let (client, server) = pair(case);
        let inbox = client.region(&vec![0; 300_000], LOCAL);
        let sink = client.region(&[0; 5000], LOCAL);
        let region = new_region(&server, &pattern(4, 5000));
        // A tag of the client, for the server to invalidate.
        let window = client.domain.window().unwrap();
        let bound = client.region(&[7; 8], LOCAL | Access::BIND);
        for kind in 0..16_u32 {
            let [solicits, invalidates, immediate, unsignaled] = [1, 2, 4, 8].map(|bit| kind & bit != 0);
            let bind = WorkRequest::bind(3, &window, &bound, ..8, Access::REMOTE_READ);
            client.qp.post_send(bind.unwrap()).unwrap();
            client.done(Opcode::Bind, 3);
            inbox.fill(0).unwrap();
            client.qp.post_receive(4, &[inbox.slice(..).unwrap()]).unwrap();

            let tag = region.next_tag();
            let Payload { mut request, bytes, _memory } = payload(&server, &region, (kind % 6) as u8);
            request = if solicits { request.solicited() } else { request };
            // Options may come before the registration and after it.
            request = if invalidates { request.invalidate(window.tag()) } else { request };
            request = request.register(&region, LOCAL | Access::REMOTE_READ);
            request = if immediate { request.immediate(kind) } else { request };
            request = if unsignaled { request.unsignaled() } else { request };
            server.qp.post_send(request).unwrap();
            assert_eq!(region.tag(), tag);

            let received = client.done(Opcode::Receive, 4);
            let invalidated = invalidates.then(|| window.tag());
            assert_eq!(
                (received.solicited, received.invalidated, received.immediate),
                (solicits, invalidated, immediate.then_some(kind))
            );
            assert_eq!(received.byte_len as usize, bytes.len());
            assert!(inbox.to_vec().unwrap()[..bytes.len()] == bytes, "{kind}");
            if !unsignaled {
                let sent = server.done(Opcode::Send, 2);
                assert_eq!(sent.byte_len as usize, bytes.len());
            }
            assert_eq!(read(&client, &sink, RemoteAddr { tag, offset: 0 }), pattern(4, 5000));
            assert_quiet(&server);

            // The message of the peer that ends the transaction ends the registration.
            server.qp.post_receive(5, &[]).unwrap();
            client.qp.post_send(WorkRequest::send(6, &[]).invalidate(tag)).unwrap();
            client.done(Opcode::Send, 6);
            assert_eq!(server.done(Opcode::Receive, 5).invalidated, Some(tag));
        }
    }
}

#[test]
fn a_combined_registration_for_one_message_ends_with_it() {
    let (client, server) = pair(ACKNOWLEDGED);
    let (sink, region) = (client.region(&[0; 8], LOCAL), new_region(&server, b"one time"));
    for round in 0..3 {
        client.qp.post_receive(2, &[]).unwrap();
        let send = WorkRequest::send(3, &[]).register_once(&region, Access::REMOTE_READ);
        server.qp.post_send(send).unwrap();
        client.done(Opcode::Receive, 2);
        server.done(Opcode::Send, 3);
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"one time", "{round}");
    }
    client
        .qp
        .post_send(WorkRequest::read(4, &[sink.slice(..).unwrap()], region.remote_addr(0).unwrap()))
        .unwrap();
    client.failed(Opcode::Read, 4, Status::RemoteAccess);
}

/// Posts a request whose registration is refused, after a Send and before another one.
fn post_refused(server: &End, region: &FastRegion, kind: u32) {
    let refused = WorkRequest::send_inline(11, b"must not arrive").register(region, REFUSED);
    let refused = if kind & 1 != 0 { refused.solicited() } else { refused };
    let refused = if kind & 2 != 0 { refused.immediate(1) } else { refused };
    let refused = if kind & 4 != 0 { refused.invalidate(Tag(0x1234_5600)) } else { refused };
    let refused = if kind & 8 != 0 { refused.unsignaled() } else { refused };
    server.qp.post_send(WorkRequest::send_inline(10, b"before")).unwrap();
    server.done(Opcode::Send, 10);
    let behind = WorkRequest::send_inline(12, b"must not arrive either");
    server.qp.post_send_all([refused, behind]).unwrap();
    let failed = server.failed(Opcode::Send, 11, Status::WindowBind);
    let cause = failed.cause.unwrap();
    assert!(matches!(&*cause, QpError::Register { error: RegisterError::Rights(REFUSED), .. }), "{cause}");
    server.failed(Opcode::Send, 12, Status::Flushed);
    assert_quiet(server);
}

/// The reactive option: the queue is drained, and the consumer tries again.
#[test]
fn a_refused_combined_request_sends_nothing_and_can_be_retried() {
    let (client, server) = pair_of(|qp| qp.registration_failure(RegistrationFailure::Reactive));
    let (inbox, sink) = (client.region(&[0; 64], LOCAL), client.region(&[0; 5], LOCAL));
    let region = new_region(&server, b"hello");
    for kind in 0..16 {
        for (id, at) in [(1, 0), (2, 32)] {
            client.qp.post_receive(id, &[inbox.slice(at..).unwrap()]).unwrap();
        }
        post_refused(&server, &region, kind);
        assert_eq!((server.qp.state(), server.qp.error()), (State::Drained, None));
        assert_eq!(client.done(Opcode::Receive, 1).byte_len, 6);

        // The request posted next is flushed, and registers nothing either.
        let send = || WorkRequest::send_inline(13, b"again").register(&region, Access::REMOTE_READ);
        server.qp.post_send(send()).unwrap();
        server.failed(Opcode::Send, 13, Status::Flushed);

        server.qp.set_state(State::ReadyToSend).unwrap();
        server.qp.post_send(send()).unwrap();
        server.done(Opcode::Send, 13);
        assert_eq!(client.done(Opcode::Receive, 2).byte_len, 5, "the next message is that of the retry");
        assert_eq!(&inbox.to_vec().unwrap()[32..37], b"again");
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"hello");
        server.qp.post_send(WorkRequest::invalidate_region(14, &region)).unwrap();
        server.done(Opcode::Invalidate, 14);
    }
    // A registration that would assign a tag while the region has one is refused as well, and the region keeps its tag.
    client.qp.post_receive(3, &[]).unwrap();
    server.qp.post_send(WorkRequest::send(15, &[]).register(&region, Access::REMOTE_READ)).unwrap();
    server.done(Opcode::Send, 15);
    client.done(Opcode::Receive, 3);
    let tag = region.tag();
    server.qp.post_send(WorkRequest::send(16, &[]).register(&region, Access::REMOTE_READ)).unwrap();
    let failed = server.failed(Opcode::Send, 16, Status::WindowBind);
    let cause = failed.cause.unwrap();
    let QpError::Register { error: RegisterError::Denied(denied), .. } = &*cause else { panic!("{cause}") };
    assert_eq!(denied.check, Check::Idle);
    server.qp.set_state(State::ReadyToSend).unwrap();
    assert_eq!(region.tag(), tag);
    assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"hello");
}

/// The tag that the refused request would have assigned is not valid.
#[test]
fn the_tag_of_a_refused_combined_request_is_not_valid() {
    let (client, server) = pair_of(|qp| qp.registration_failure(RegistrationFailure::Reactive));
    let region = new_region(&server, b"hello");
    let tag = region.next_tag();
    server.qp.post_send(WorkRequest::send(2, &[]).register(&region, REFUSED)).unwrap();
    server.failed(Opcode::Send, 2, Status::WindowBind);
    assert_unreadable(&client, &server, tag);
}

/// The anticipatory option: the connection ends with a Terminate, and all requests are flushed.
#[test]
fn a_refused_combined_request_ends_the_connection() {
    for kind in 0..16 {
        let (client, mut server) = pair_of(|qp| qp);
        let inbox = client.region(&[0; 64], LOCAL);
        for (id, at) in [(1, 0), (2, 32)] {
            client.qp.post_receive(id, &[inbox.slice(at..).unwrap()]).unwrap();
        }
        let region = new_region(&server, b"hello");
        let tag = region.next_tag();
        post_refused(&server, &region, kind);
        assert_eq!(server.qp.state(), State::Error);
        client.done(Opcode::Receive, 1);
        let flushed = client.failed(Opcode::Receive, 2, Status::Flushed);
        assert!(matches!(&*flushed.cause.unwrap(), QpError::Terminated(_)));
        assert_eq!(inbox.to_vec().unwrap()[6..], [0; 58], "nothing of the refused request arrived");

        // A request that is flushed registers nothing, either.
        let other = new_region(&server, b"other");
        let flushed = other.next_tag();
        server.qp.post_send(WorkRequest::send(13, &[]).register(&other, Access::REMOTE_READ)).unwrap();
        server.failed(Opcode::Send, 13, Status::Flushed);
        assert_invalid(&mut server, if kind == 0 { flushed } else { tag });
    }
}

/// If the message cannot be sent because its data may not be read, the region is not registered.
#[test]
fn a_combined_request_whose_data_may_not_be_read_registers_nothing() {
    for own in [false, true] {
        let (_client, mut server) = pair_of(|qp| qp.registration_failure(RegistrationFailure::Reactive));
        let region = new_region(&server, b"hello");
        let hidden = server.region(&[7; 8], Access::LOCAL_WRITE);
        let tag = region.next_tag();
        let data = if own { Sge { tag, ..region.slice(..).unwrap() } } else { hidden.slice(..).unwrap() };
        // The registration itself does not let the program read the region.
        let send = WorkRequest::send(2, &[data]).register(&region, Access::LOCAL_WRITE | Access::REMOTE_READ);
        server.qp.post_send(send).unwrap();
        server.failed(Opcode::Send, 2, Status::LocalProtection);
        assert_eq!(server.qp.state(), State::Error);
        assert_invalid(&mut server, tag);
    }
}

/// A peer that does not understand immediate data: nothing is registered.
#[test]
fn a_combined_request_with_immediate_data_for_a_foreign_peer_registers_nothing() {
    let foreign = Config::default().private(false);
    let (_client, mut server) = pair_with(ACKNOWLEDGED, foreign, Config::default());
    let region = new_region(&server, b"hello");
    let tag = region.next_tag();
    let send = WorkRequest::send(2, &[]).immediate(1).register(&region, Access::REMOTE_READ);
    server.qp.post_send(send).unwrap();
    server.failed(Opcode::Send, 2, Status::LocalQpOperation);
    assert_invalid(&mut server, tag);
}

/// A shared send queue takes combined requests: one of its entries, one completion.
#[test]
fn a_shared_send_queue_takes_combined_requests() {
    let own = End::new(Config::default(), Completes::WhenAcknowledged);
    let ssq = own.domain.shared_send_queue(&own.cq, 2);
    let mut ends = Vec::new();
    for _ in 0..2 {
        let client = End::new(Config::default(), Completes::WhenAcknowledged);
        let reactive = RegistrationFailure::Reactive;
        let builder = own.domain.queue_pair(&own.cq).shared_send_queue(&ssq).registration_failure(reactive);
        let (adapter, domain) = (own.adapter.clone(), own.domain.clone());
        let server = End { qp: builder.create().unwrap(), cq: own.cq.clone(), domain, adapter };
        connect(&client, &server, "127.0.0.1:0".parse().unwrap());
        let region = new_region(&server, b"hello");
        ends.push((client, server, region));
    }
    for (client, server, region) in &ends {
        let sink = client.region(&[0; 5], LOCAL);
        client.qp.post_receive(1, &[]).unwrap();
        let send = WorkRequest::send(2, &[]).immediate(7).register(region, Access::REMOTE_READ);
        ssq.post(&server.qp, send).unwrap();
        assert_eq!(client.done(Opcode::Receive, 1).immediate, Some(7));
        server.done(Opcode::Send, 2);
        assert_eq!(read(client, &sink, region.remote_addr(0).unwrap()), b"hello");
        assert_eq!(ssq.outstanding(), 0);

        let refused = WorkRequest::send(3, &[]).register(region, REFUSED);
        ssq.post_all(&server.qp, [refused, WorkRequest::send(4, &[])]).unwrap();
        server.failed(Opcode::Send, 3, Status::WindowBind);
        server.failed(Opcode::Send, 4, Status::Flushed);
        assert_eq!((server.qp.state(), ssq.outstanding()), (State::Drained, 0));
    }
}

/// Requirement M17: a queue pair on which registration by work request is disabled refuses it when it is posted, alone and
/// with a Send, and nothing changes. Bindings and invalidations work.
#[test]
fn a_queue_pair_without_registration_by_request_refuses_it() {
    let (client, server) = pair_of(|qp| qp.registration_by_request(false));
    assert!(!server.qp.query().registration_by_request && client.qp.query().registration_by_request);
    let region = new_region(&server, b"hello");
    let tag = region.next_tag();
    let alone = || WorkRequest::register(1, &region, Access::REMOTE_READ);
    let combined = || WorkRequest::send(2, &[]).register(&region, Access::REMOTE_READ);
    for request in [alone(), alone().unsignaled(), combined().into(), combined().unsignaled().into()] {
        assert_eq!(server.qp.post_send(request), Err(PostError::RegistrationDisabled));
    }
    let list = [WorkRequest::send(3, &[]).into(), alone()];
    assert_eq!(server.qp.post_send_all(list), Err(PostError::RegistrationDisabled), "all or none");
    assert_eq!((region.next_tag(), server.qp.error()), (tag, None));

    // The connection works, and so do the other requests that change the table.
    let exposed = server.region(b"world", LOCAL | Access::BIND);
    let (window, sink) = (server.domain.window().unwrap(), client.region(&[0; 5], LOCAL));
    let bind = WorkRequest::bind(4, &window, &exposed, .., Access::REMOTE_READ).unwrap();
    server.qp.post_send(bind).unwrap();
    server.done(Opcode::Bind, 4);
    assert_eq!(read(&client, &sink, window.remote_addr(0)), b"world");
    server.qp.post_send(WorkRequest::invalidate_window(5, &window)).unwrap();
    server.done(Opcode::Invalidate, 5);
    assert_quiet(&server);
    assert_unreadable(&client, &server, tag);
}

/// The same with a shared send queue: the request takes no room in it.
#[test]
fn a_shared_send_queue_refuses_registration_for_a_queue_pair_without_it() {
    let own = End::new(Config::default(), Completes::WhenAcknowledged);
    let ssq = own.domain.shared_send_queue(&own.cq, 1);
    let (client, mut server) = (End::new(Config::default(), Completes::WhenAcknowledged), own);
    let builder = server.domain.queue_pair(&server.cq).shared_send_queue(&ssq);
    server.qp = builder.registration_by_request(false).create().unwrap();
    connect(&client, &server, "127.0.0.1:0".parse().unwrap());
    let region = new_region(&server, b"hello");
    let tag = region.next_tag();
    let send = WorkRequest::send(1, &[]).register(&region, Access::REMOTE_READ);
    assert_eq!(ssq.post(&server.qp, send), Err(PostError::RegistrationDisabled));
    assert_eq!((ssq.outstanding(), region.next_tag()), (0, tag));
}
