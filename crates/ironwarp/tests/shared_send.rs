//! Shared send queues (requirement X7) through the native API.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::{Completion, CompletionQueue, Status};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{Completes, PostError, QpError, QueuePair, SharedSendQueue, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const LEN: usize = 64;

/// Connections of a client to one server, all fed by one shared send queue.
struct Star {
    ssq: SharedSendQueue,
    sent: CompletionQueue,
    /// Completions of the client's receives.
    heard: CompletionQueue,
    received: CompletionQueue,
    region: MemoryRegion,
    server: ProtectionDomain,
    near: Vec<QueuePair>,
    far: Vec<QueuePair>,
}

fn star(connections: usize, depth: usize, completes: Completes) -> Star {
    star_with_capacity(connections, depth, completes, 1024)
}

/// Connects like [`star`], with a send completion queue of this capacity.
fn star_with_capacity(connections: usize, depth: usize, completes: Completes, room: usize) -> Star {
    let (here, there) = (Adapter::new().unwrap(), Adapter::new().unwrap());
    let sent = here.completion_queue(room).unwrap();
    let (heard, received) = (here.completion_queue(1024).unwrap(), there.completion_queue(1024).unwrap());
    let (client, server) = (here.protection_domain(), there.protection_domain());
    let region = server.register(Buffer::new(connections * LEN).unwrap(), Access::all()).unwrap();
    let ssq = client.shared_send_queue(&sent, depth);
    let listener = there.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let qp = client.queue_pair(&heard).shared_send_queue(&ssq).completes(completes).create().unwrap();
        qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
        let other = server.queue_pair(&received).create().unwrap();
        listener.accept(TIMEOUT).unwrap().accept(&other, &AcceptOptions::new()).unwrap();
        qp.wait_connected(TIMEOUT).unwrap();
        near.push(qp);
        far.push(other);
    }
    Star { ssq, sent, heard, received, region, server, near, far }
}

fn next(cq: &CompletionQueue) -> Completion {
    cq.wait(TIMEOUT).unwrap()
}

impl Star {
    fn receive(&self, connection: usize, id: u64) {
        let place = self.region.slice(connection * LEN..(connection + 1) * LEN).unwrap();
        self.far[connection].post_receive(id, &[place]).unwrap();
    }

    /// Posts Sends for which the peer has no receive, and waits until they were transmitted. Without waiting, requests
    /// of other connections could be transmitted first: if a lane is sending on this connection, the lane also sends
    /// requests that are posted meanwhile.
    ///
    /// A Read that is posted with them tells when they were transmitted: it is sent in the same call, and completes
    /// only after that call has recorded what it sent.
    fn transmit_without_receive(&self, connection: usize, ids: &[u64]) {
        let read = WorkRequest::read(0, &[], self.region.remote_addr(0).unwrap());
        let send = |id: &u64| WorkRequest::send_inline(*id, b"no receive is posted for it").into();
        let requests = std::iter::once(read).chain(ids.iter().map(send));
        self.ssq.post_all(&self.near[connection], requests).unwrap();
        assert_eq!(next(&self.sent).success().unwrap().wr_id, 0);
    }

    /// Lets the peer of this connection send a message, and receives it. With the message the client receives
    /// acknowledgements of earlier requests.
    fn receive_from_peer(&self, connection: usize) {
        self.near[connection].post_receive(9, &[]).unwrap();
        self.far[connection].post_send(WorkRequest::send(9, &[]).unsignaled()).unwrap();
        next(&self.heard).success().unwrap();
    }
}

/// Requests of all kinds over many connections, more than the queue holds. All data arrives; messages of one connection
/// arrive in order; each request completes once, with the number of its queue pair.
#[test]
fn a_shared_send_queue_feeds_many_connections() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        const CONNECTIONS: usize = 40;
        const ROUNDS: usize = 30;
        let star = star(CONNECTIONS, 16, completes);
        let mut outstanding = Vec::new();
        let done = |star: &Star, outstanding: &mut Vec<(u64, u32)>| {
            let completion = next(&star.sent).success().unwrap();
            let at = outstanding.iter().position(|posted| *posted == (completion.wr_id, completion.qp));
            outstanding.remove(at.unwrap_or_else(|| panic!("{completion:?} is not outstanding")));
        };
        let mut last = vec![0_u8; CONNECTIONS];
        for round in 0..ROUNDS {
            for step in 0..CONNECTIONS {
                let connection = (step * 7 + round * 13) % CONNECTIONS;
                let (id, qp) = ((round * CONNECTIONS + step) as u64, &star.near[connection]);
                let byte = u8::try_from((round * 31 + connection) % 251).unwrap();
                let to = star.region.remote_addr(connection * LEN).unwrap();
                last[connection] = byte;
                while outstanding.len() == 16 {
                    done(&star, &mut outstanding);
                }
                star.ssq.post(qp, WorkRequest::write_inline(id, &[byte; LEN], to)).unwrap();
                outstanding.push((id, qp.id()));
            }
        }
        while !outstanding.is_empty() {
            done(&star, &mut outstanding);
        }
        assert_eq!(star.ssq.outstanding(), 0);
        for (connection, byte) in last.iter().enumerate() {
            star.receive(connection, connection as u64);
            let message = WorkRequest::send_inline(7, &[*byte; LEN]);
            star.ssq.post(&star.near[connection], message).unwrap();
            let received = next(&star.received).success().unwrap();
            assert_eq!((received.wr_id, received.byte_len as usize), (connection as u64, LEN));
            assert_eq!(next(&star.sent).success().unwrap().qp, star.near[connection].id());
        }
        let bytes = star.region.to_vec().unwrap();
        assert!(bytes.chunks(LEN).zip(&last).all(|(chunk, byte)| chunk == [*byte; LEN]));
    }
}

/// A request that waits for a response delays the completions of those transmitted after it, on all connections.
#[test]
fn completions_come_in_the_order_of_transmission() {
    let star = star(2, 8, Completes::WhenAcknowledged);
    star.receive(1, 11);
    star.transmit_without_receive(0, &[1]);
    star.ssq.post(&star.near[1], WorkRequest::send_inline(2, b"delivered at once")).unwrap();
    star.ssq.post(&star.near[1], WorkRequest::read(3, &[], star.region.remote_addr(0).unwrap())).unwrap();
    assert_eq!(next(&star.received).success().unwrap().wr_id, 11);
    star.receive_from_peer(1);
    let early = star.sent.poll_one().unwrap();
    assert!(early.is_none(), "{early:?}");
    assert_eq!(star.ssq.outstanding(), 3);
    star.receive(0, 10);
    for (id, connection) in [(1, 0), (2, 1), (3, 1)] {
        let completion = next(&star.sent).success().unwrap();
        assert_eq!((completion.wr_id, completion.qp), (id, star.near[connection].id()));
    }
    assert_eq!(star.ssq.outstanding(), 0);
}

/// A blocked connection does not block the others: they transmit and complete first.
#[test]
fn a_blocked_connection_is_overtaken() {
    let star = star(2, 64, Completes::WhenSent);
    // The peer has no receives and stops reading, so the socket is full in the middle of one of these.
    let long = vec![7; 16 << 20];
    for id in 0..3 {
        star.ssq.post(&star.near[0], WorkRequest::send_inline(id, &long)).unwrap();
    }
    for id in 100..120 {
        star.receive(1, id);
        star.ssq.post(&star.near[1], WorkRequest::send_inline(id, b"continues")).unwrap();
        assert_eq!(next(&star.received).success().unwrap().wr_id, id);
        let completion = next(&star.sent).success().unwrap();
        assert_eq!((completion.wr_id, completion.qp), (id, star.near[1].id()));
    }
    let room = star.server.register(Buffer::new(long.len()).unwrap(), Access::LOCAL_WRITE).unwrap();
    for id in 0..3 {
        star.far[0].post_receive(id, &[room.slice(..long.len()).unwrap()]).unwrap();
        assert_eq!(next(&star.sent).success().unwrap().wr_id, id);
    }
    for id in 0..3 {
        let received = next(&star.received).success().unwrap();
        assert_eq!((received.wr_id, received.byte_len as usize), (id, long.len()));
    }
    assert_eq!(room.to_vec().unwrap(), long);
}

/// The requests of a failed connection are flushed in order; those of other connections succeed, before and after.
#[test]
fn a_failed_connection_flushes_only_its_own_requests() {
    let mut star = star(3, 8, Completes::WhenAcknowledged);
    star.transmit_without_receive(0, &[1, 2]);
    star.receive(1, 11);
    star.ssq.post(&star.near[1], WorkRequest::send_inline(3, b"delivered")).unwrap();
    assert_eq!(next(&star.received).success().unwrap().wr_id, 11);
    drop(star.far.remove(0));
    for id in [1, 2] {
        let failed = next(&star.sent);
        assert_eq!((failed.wr_id, failed.qp), (id, star.near[0].id()));
        assert_ne!(failed.status, Status::Success);
    }
    assert_eq!(next(&star.sent).success().unwrap().wr_id, 3);
    star.ssq.post(&star.near[0], WorkRequest::send_inline(4, b"too late")).map_or_else(
        |error| assert_eq!(error, PostError::NotConnected),
        |()| assert_eq!(next(&star.sent).status, Status::Flushed),
    );
    let place = star.region.slice(2 * LEN..3 * LEN).unwrap();
    star.far[1].post_receive(12, &[place]).unwrap();
    star.ssq.post(&star.near[2], WorkRequest::send_inline(5, b"continues")).unwrap();
    assert_eq!(next(&star.sent).success().unwrap().wr_id, 5);
    assert_eq!(star.ssq.outstanding(), 0);
}

/// The depth applies to all connections together, and a list is posted as a whole or not at all.
#[test]
fn a_full_shared_send_queue_is_full_for_all_connections() {
    let star = star(2, 4, Completes::WhenAcknowledged);
    star.transmit_without_receive(0, &[1, 2, 3]);
    let waits = |id| WorkRequest::send_inline(id, b"no receive is posted for it");
    let two = [waits(4), waits(5)];
    assert_eq!(star.ssq.post_all(&star.near[1], two), Err(PostError::Full { capacity: 4 }));
    star.ssq.post(&star.near[1], WorkRequest::send_inline(6, b"fits")).unwrap();
    assert_eq!(star.ssq.post(&star.near[1], waits(7)), Err(PostError::Full { capacity: 4 }));
    for id in 1..4 {
        star.receive(0, id);
    }
    star.receive(1, 6);
    for id in [1, 2, 3, 6] {
        assert_eq!(next(&star.sent).success().unwrap().wr_id, id);
    }
    star.receive(1, 8);
    star.ssq.post(&star.near[1], waits(8)).unwrap();
    assert_eq!(next(&star.sent).success().unwrap().wr_id, 8);
    assert_eq!(star.near[0].post_send(WorkRequest::send(9, &[])), Err(PostError::NoSendQueue));
    assert_eq!(star.far[0].query().send_depth, 128);
    assert_eq!(star.near[0].query().send_depth, 0);
}

/// A completion that finds no room is never lost silently (requirement I5): its connection ends, although a request of
/// another connection may have caused the completion.
#[test]
fn a_completion_without_room_ends_its_connection() {
    let star = star_with_capacity(3, 8, Completes::WhenAcknowledged, 1);
    star.receive(1, 11);
    star.transmit_without_receive(0, &[1]);
    star.ssq.post(&star.near[1], WorkRequest::send_inline(2, b"delivered, and waits for the first")).unwrap();
    assert_eq!(next(&star.received).success().unwrap().wr_id, 11);
    star.receive_from_peer(1);
    assert_eq!(star.ssq.outstanding(), 2);
    star.receive(0, 10);
    assert!(star.near[1].wait_closed(TIMEOUT), "there was room for one");
    let overran = |qp: &QueuePair| matches!(qp.query().error.as_deref(), Some(QpError::Overrun(_)));
    assert!(overran(&star.near[1]), "{:?}", star.near[1].query());
    assert!(star.near[0].query().error.is_none(), "its completion had room");
    assert_eq!(next(&star.sent).success().unwrap().wr_id, 1);
    assert!(star.sent.poll_one().is_err(), "the queue reports the overrun");
    // No completion has room from here on.
    star.receive(2, 12);
    star.ssq.post(&star.near[2], WorkRequest::send_inline(3, b"delivered")).unwrap();
    assert!(star.near[2].wait_closed(TIMEOUT));
    assert!(overran(&star.near[2]), "{:?}", star.near[2].query());
    assert_eq!(star.ssq.outstanding(), 0);
}
