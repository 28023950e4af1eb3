//! Shutdown of an adapter that is in use (requirement N11).
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests, with small numbers")]

use ironwarp::completion::{Arm, Completion, CompletionHandler, CompletionQueue, Opcode, Status};
use ironwarp::connection::{AcceptOptions, BringUpOptions, ConnectOptions, Remote};
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{Completes, PostError, QueuePair, State, WorkRequest};
use ironwarp::{Adapter, Config, ProtectionDomain, Shutdown, WaitError};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, SOON, pair_with, pattern};
use ironwarp_testkit::wait::until;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Number of completion queues of each adapter, each with a thread. Half of the threads poll, half sleep at a handler.
const QUEUES: usize = 4;
/// Number of queue pairs of each completion queue.
const PAIRS: usize = 6;
/// Number of sends, and of receives, that a queue pair has posted.
const DEPTH: usize = 8;
/// Size of a slot, which holds one message.
const SLOT: usize = 40_000;
/// Completions of each thread before the adapter is shut down.
const LOAD: usize = 200;

/// A message, by its sender's queue pair and its number.
type Message = (usize, u64);

/// Returns the bytes of a message: sizes of inline messages, of one segment and of many.
fn bytes(message: Message) -> Vec<u8> {
    let (pair, number) = message;
    let len = [16, 100, 4_000, SLOT][(pair + number as usize) % 4];
    let mut bytes = pattern((pair * 31 + number as usize) as u8, len);
    bytes[..8].copy_from_slice(&(pair as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn is_empty(cq: &CompletionQueue) -> bool {
    cq.poll_one().unwrap().is_none()
}

/// One end of a connection, with a slot for each request.
struct Link {
    /// Number of the connection.
    index: usize,
    qp: QueuePair,
    source: MemoryRegion,
    sink: MemoryRegion,
    /// Number of the next message.
    next: u64,
    /// Slots without a send.
    free: Vec<usize>,
    /// Whether more may be posted.
    is_open: bool,
}

/// What a thread has posted and found.
#[derive(Default)]
struct Log {
    /// Number of completions of each accepted request, by queue pair and identifier.
    accepted: HashMap<(u32, u64), usize>,
    sent: HashSet<Message>,
    received: HashSet<Message>,
    refusals: Vec<PostError>,
    statuses: HashMap<Status, usize>,
}

impl Log {
    fn accept(&mut self, qp: u32, id: u64) {
        assert!(self.accepted.insert((qp, id), 0).is_none(), "identifiers are used once");
    }
}

/// Identifiers: the message of a send with its slot, the number of a receive with its slot.
const RECEIVE: u64 = 1 << 63;

impl Link {
    fn new(index: usize, domain: &ProtectionDomain, cq: &CompletionQueue) -> Self {
        let qp = domain.queue_pair(cq).completes(Completes::WhenAcknowledged);
        let qp = qp.send_depth(DEPTH).receive_depth(2 * DEPTH).create().unwrap();
        let memory = || domain.register(Buffer::new(DEPTH * SLOT).unwrap(), ALL).unwrap();
        let (source, sink) = (memory(), memory());
        Self { index, qp, source, sink, next: 0, free: (0..DEPTH).collect(), is_open: true }
    }

    fn post_receive(&mut self, slot: usize, log: &mut Log) {
        let (id, at) = (RECEIVE | self.next << 8 | slot as u64, slot * SLOT);
        self.next += 1;
        match self.qp.post_receive(id, &[self.sink.slice(at..at + SLOT).unwrap()]) {
            Ok(()) => log.accept(self.qp.id(), id),
            Err(refusal) => self.close(refusal, log),
        }
    }

    fn post_sends(&mut self, log: &mut Log) {
        while self.is_open
            && let Some(slot) = self.free.pop()
        {
            let message = bytes((self.index, self.next));
            let (id, at) = (self.next << 8 | slot as u64, slot * SLOT);
            self.source.write(at, &message).unwrap();
            self.next += 1;
            match self
                .qp
                .post_send(WorkRequest::send(id, &[self.source.slice(at..at + message.len()).unwrap()]))
            {
                Ok(()) => log.accept(self.qp.id(), id),
                Err(refusal) => self.close(refusal, log),
            }
        }
    }

    fn close(&mut self, refusal: PostError, log: &mut Log) {
        self.is_open = false;
        log.refusals.push(refusal);
    }

    /// Checks a completion, and posts the request again.
    fn take(&mut self, completion: &Completion, log: &mut Log) {
        let Completion { wr_id: id, status, .. } = *completion;
        *log.accepted.get_mut(&(completion.qp, id)).expect("a request that was accepted") += 1;
        *log.statuses.entry(status).or_default() += 1;
        self.is_open &= status == Status::Success;
        let slot = (id & 0xff) as usize;
        if id & RECEIVE == 0 {
            assert_eq!(completion.opcode, Opcode::Send);
            self.free.push(slot);
            if status == Status::Success {
                log.sent.insert((self.index, (id & !RECEIVE) >> 8));
            }
        } else if status == Status::Success {
            let mut found = vec![0; completion.byte_len as usize];
            self.sink.read(slot * SLOT, &mut found).unwrap();
            let number = u64::from_le_bytes(found[8..16].try_into().unwrap());
            assert!(found == bytes((self.index, number)), "every byte of message {number} is right");
            assert!(log.received.insert((self.index, number)), "message {number} arrives once");
            self.post_receive(slot, log);
        }
    }
}

/// The thread of a completion queue, until `is_over` and the queue is empty.
fn run(
    cq: &CompletionQueue,
    handler: Option<&CompletionHandler>,
    links: &mut [Link],
    done: &AtomicUsize,
    is_over: impl Fn(&Log) -> bool,
    mut log: Log,
) -> Log {
    let mut found = Vec::new();
    loop {
        links.iter_mut().for_each(|link| link.post_sends(&mut log));
        let over = is_over(&log); // before the poll, which then finds everything
        cq.poll(&mut found, 16).unwrap();
        if found.is_empty() && over {
            return log;
        }
        for completion in found.drain(..) {
            let link = links.iter_mut().find(|link| link.qp.id() == completion.qp).unwrap();
            link.take(&completion, &mut log);
            done.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(handler) = handler
            && !cq.arm(Arm::Next)
        {
            match handler.wait(SOON) {
                Ok(event) => assert_eq!(event.cq, cq.id()),
                Err(error) => assert_eq!(error, WaitError::Stopped, "no event is lost"),
            }
        }
    }
}

/// An adapter with completion queues, handlers for half of them, and connected queue pairs.
struct Side {
    adapter: Adapter,
    cqs: Vec<CompletionQueue>,
    handlers: Vec<Option<CompletionHandler>>,
    links: Vec<Vec<Link>>,
}

impl Side {
    fn new(shm: bool) -> Self {
        let adapter = Adapter::open(Config::default().lanes(2).shm(shm)).unwrap();
        let domain = adapter.protection_domain();
        let handlers: Vec<_> = (0..QUEUES)
            .map(|index| (index % 2 == 1).then(|| adapter.completion_handler().unwrap()))
            .collect();
        let cq = |handler: &Option<CompletionHandler>| {
            let builder = adapter.completion_queue_builder(PAIRS * 4 * DEPTH);
            builder.handler(handler.as_ref()).create().unwrap()
        };
        let cqs: Vec<_> = handlers.iter().map(cq).collect();
        let links = (0..QUEUES).map(|queue| {
            (0..PAIRS).map(|pair| Link::new(queue * PAIRS + pair, &domain, &cqs[queue])).collect()
        });
        Self { links: links.collect(), adapter, cqs, handlers }
    }

    /// Returns the number of events that the handlers have had.
    fn events(&self) -> Vec<u64> {
        self.handlers.iter().flatten().map(|handler| handler.stats().written).collect()
    }
}

fn shut_down_under_load(shm: bool, how: Shutdown) {
    let (mut client, mut server) = (Side::new(shm), Side::new(shm));
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut logs: Vec<[Log; 2]> = (0..QUEUES).map(|_| Default::default()).collect();
    for (queue, [near_log, far_log]) in logs.iter_mut().enumerate() {
        for (near, far) in client.links[queue].iter_mut().zip(&mut server.links[queue]) {
            for slot in 0..DEPTH {
                near.post_receive(slot, near_log);
                far.post_receive(slot, far_log);
            }
            near.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
            listener.accept(SOON).unwrap().accept(&far.qp, &AcceptOptions::new()).unwrap();
            near.qp.wait_connected(SOON).unwrap();
        }
    }
    let done: Vec<AtomicUsize> = (0..2 * QUEUES).map(|_| AtomicUsize::new(0)).collect();
    let returned = AtomicBool::new(false);
    let (mut client_links, mut server_links) =
        (std::mem::take(&mut client.links), std::mem::take(&mut server.links));
    let (client_logs, server_logs, events) = thread::scope(|scope| {
        let (client, server, returned, done) = (&client, &server, &returned, &done);
        let mut threads = [Vec::new(), Vec::new()];
        let links = client_links.iter_mut().zip(&mut server_links).zip(logs);
        for (queue, ((near, far), [near_log, far_log])) in links.enumerate() {
            // The client is done when its connections have ended, and all its requests have completed.
            let is_over =
                |log: &Log| returned.load(Ordering::SeqCst) && log.accepted.values().all(|count| *count > 0);
            let end = move || run(&client.cqs[queue], None, near, &done[queue], is_over, near_log);
            threads[0].push(scope.spawn(end));
            let handler = server.handlers[queue].as_ref();
            let is_over = |_: &Log| returned.load(Ordering::SeqCst);
            let end = move || run(&server.cqs[queue], handler, far, &done[QUEUES + queue], is_over, far_log);
            threads[1].push(scope.spawn(end));
        }
        until(|| done.iter().all(|done| done.load(Ordering::Relaxed) >= LOAD));
        server.adapter.shutdown(how);
        let events = server.events();
        returned.store(true, Ordering::SeqCst);
        let [clients, servers] = threads;
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, Log>>| -> Vec<Log> {
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        };
        (join(clients), join(servers), events)
    });

    for log in client_logs.iter().chain(&server_logs) {
        let wrong: Vec<_> = log.accepted.iter().filter(|(_, count)| **count != 1).collect();
        assert!(wrong.is_empty(), "every accepted request has one completion: {wrong:?}");
    }
    for (mine, other) in server_logs.iter().zip(&client_logs) {
        assert!(mine.sent.is_subset(&other.received) && other.sent.is_subset(&mine.received));
        assert!(!mine.sent.is_empty() && !other.sent.is_empty());
        let expected = [Status::Success, Status::Flushed];
        assert!(mine.statuses.keys().all(|status| expected.contains(status)), "{:?}", mine.statuses);
        assert!(mine.refusals.iter().all(|refusal| *refusal == PostError::ShutDown), "{:?}", mine.refusals);
    }
    // Nothing any more, whatever the peer and the program do.
    drop((client, client_links));
    for (cq, links) in server.cqs.iter().zip(&server_links) {
        for Link { qp, sink, source, .. } in links {
            let list = [sink.slice(..8).unwrap()];
            assert_eq!(qp.post_receive(1, &list), Err(PostError::ShutDown));
            assert_eq!(
                qp.post_send(WorkRequest::send(1, &[source.slice(..8).unwrap()])),
                Err(PostError::ShutDown)
            );
            assert_eq!(qp.state(), State::Error);
            assert!(qp.wait_closed(SOON));
        }
        assert!(!cq.arm(Arm::Next));
        assert!(is_empty(cq));
        assert_eq!(cq.wait(None).unwrap_err(), WaitError::Stopped);
    }
    assert_eq!(server.events(), events, "no event after the shutdown");
    for handler in server.handlers.iter().flatten() {
        while handler.try_next().is_some() {}
        assert_eq!(handler.wait(None).unwrap_err(), WaitError::Stopped);
    }
    assert_eq!(server.adapter.statistics().lanes, 2, "counters stay");
}

#[test]
fn a_drain_under_load_completes_every_request_once_over_tcp() {
    shut_down_under_load(false, Shutdown::Drain(SOON));
}

#[test]
fn a_drain_under_load_completes_every_request_once_in_shared_memory() {
    shut_down_under_load(true, Shutdown::Drain(SOON));
}

#[test]
fn a_flush_under_load_completes_every_request_once_over_tcp() {
    shut_down_under_load(false, Shutdown::Flush);
}

#[test]
fn a_flush_under_load_completes_every_request_once_in_shared_memory() {
    shut_down_under_load(true, Shutdown::Flush);
}

/// All that was posted before a drain succeeds, and every byte arrives, with either meaning of completion.
#[test]
fn a_drain_completes_what_was_posted() {
    for (case, shm) in CASES.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let config = Config::default().shm(shm);
        let (client, server) = pair_with(case, config.clone(), config);
        let (here, there) =
            (client.region(&pattern(1, 64 * 1000), ALL), server.region(&vec![0; 64 * 1000], ALL));
        for number in 0..64 {
            let slot = number * 1000..(number + 1) * 1000;
            server.qp.post_receive(number as u64, &[there.slice(slot.clone()).unwrap()]).unwrap();
            client.qp.post_send(WorkRequest::send(number as u64, &[here.slice(slot).unwrap()])).unwrap();
        }
        client.adapter.shutdown(Shutdown::Drain(SOON));
        for number in 0..64 {
            let done = client.cq.poll_one().unwrap().expect("complete when the shutdown returns");
            assert_eq!((done.wr_id, done.status), (number, Status::Success), "{case:?}, {shm}");
        }
        assert!(is_empty(&client.cq));
        (0..64).for_each(|number| drop(server.done(Opcode::Receive, number)));
        assert_eq!(there.to_vec().unwrap(), pattern(1, 64 * 1000));
    }
}

/// Posts a send that cannot complete: its receiver posts no receive.
fn stuck() -> (End, End) {
    let (client, server) = pair_with(CASES[1], Config::default(), Config::default());
    client.qp.post_send(WorkRequest::send(1, &[])).unwrap();
    (client, server)
}

#[test]
fn a_drain_flushes_what_is_left_when_its_time_is_over() {
    let (client, _server) = stuck();
    client.adapter.shutdown(Shutdown::Drain(Duration::from_millis(20)));
    let flushed = client.cq.poll_one().unwrap().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (1, Status::Flushed));
    assert!(is_empty(&client.cq));
}

/// Several threads, twice, and the thread of a handler: all return once the adapter has ended. A flush cuts a drain short.
#[test]
fn any_threads_can_shut_an_adapter_down_and_a_flush_ends_a_drain() {
    let (client, _server) = stuck();
    let (hour, ended) = (Duration::from_secs(3600), AtomicUsize::new(0));
    let handler = client.adapter.completion_handler().unwrap();
    client.cq.set_handler(&handler);
    assert!(!client.cq.arm(Arm::Next));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Woken by the flush of the stuck request, or at the end.
            let _ = handler.wait(None);
            client.adapter.shutdown(Shutdown::Flush);
            assert_eq!(handler.wait(None).unwrap_err(), WaitError::Stopped);
            ended.fetch_add(1, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                client.adapter.shutdown(Shutdown::Drain(hour));
                assert_eq!(client.qp.post_receive(2, &[]), Err(PostError::ShutDown));
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        until(|| client.adapter.completion_handler().is_err()); // a drain has begun
        assert_eq!(ended.load(Ordering::SeqCst), 0, "the drains wait for the peer");
        client.adapter.shutdown(Shutdown::Flush);
    });
    client.adapter.shutdown(Shutdown::Drain(hour));
    assert_eq!(client.cq.poll_one().unwrap().unwrap().status, Status::Flushed);
    assert!(is_empty(&client.cq));
}

/// Queue pairs without a connection are flushed, waiting threads are woken, and further verbs are refused.
#[test]
fn objects_without_a_connection_end_as_well() {
    let adapter = Adapter::open(Config::default()).unwrap();
    let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
    let region = domain.register(Buffer::new(4096).unwrap(), ALL).unwrap();
    let slot = || [region.slice(..4096).unwrap()];
    let idle = domain.queue_pair(&cq).create().unwrap();
    let manual = domain.queue_pair(&cq).manual().create().unwrap();
    let datagrams = domain.datagram_queue_pair(&cq).create().unwrap();
    let srq = domain.shared_receive_queue(4);
    let control = adapter.control_queue(&cq, 4).unwrap();
    let (handler, events) = (adapter.completion_handler().unwrap(), adapter.async_events().unwrap());
    let other = adapter.completion_queue(4).unwrap();
    let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    idle.post_receive(1, &slot()).unwrap();
    manual.post_receive(2, &slot()).unwrap();
    datagrams.post_receive(3, &slot()).unwrap();
    srq.post_receive(4, &slot()).unwrap();
    // Connecting: its peer does not exist.
    let gid = "127.0.0.1".parse().unwrap();
    let nobody = Remote { gid, qpn: manual.id() ^ 1 };
    manual.bring_up(nobody, &BringUpOptions::new().gid(gid)).unwrap();
    manual.set_state(State::ReadyToSend).unwrap();
    manual.post_send(WorkRequest::send(5, &slot())).unwrap();

    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| handler.wait(None).map(drop)),
            scope.spawn(|| events.wait(None).map(drop)),
            scope.spawn(|| other.wait(None).map(drop)),
            scope.spawn(|| listener.accept(None).map(drop)),
        ];
        adapter.shutdown(Shutdown::Flush);
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap_err(), WaitError::Stopped);
        }
    });
    let mut flushed = Vec::new();
    cq.poll(&mut flushed, 64).unwrap();
    assert!(flushed.iter().all(|completion| completion.status == Status::Flushed), "{flushed:?}");
    let mut ids: Vec<_> = flushed.iter().map(|completion| completion.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 5]);

    assert_eq!(idle.post_receive(6, &slot()), Err(PostError::ShutDown));
    assert_eq!(manual.post_send(WorkRequest::send(6, &slot())), Err(PostError::ShutDown));
    assert_eq!(datagrams.post_receive(6, &slot()), Err(PostError::ShutDown));
    assert_eq!(srq.post_receive(6, &slot()), Err(PostError::ShutDown));
    assert!(control.create_queue_pair(6, domain.queue_pair(&cq)).is_err());
    assert!(manual.set_state(State::ReadyToReceive).is_err() && datagrams.set_state(State::Init).is_err());
    idle.set_state(State::Reset).unwrap();
    assert_eq!(idle.post_receive(6, &slot()), Err(PostError::ShutDown), "a reset brings nothing back");
    assert_eq!(adapter.completion_queue(1).unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(adapter.completion_handler().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(domain.queue_pair(&cq).create().is_err() && domain.datagram_queue_pair(&cq).create().is_err());
    let fresh = idle.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new());
    assert!(fresh.is_err());
    assert!(is_empty(&cq));
    drop((
        adapter, domain, cq, region, idle, manual, datagrams, srq, control, handler, events, other, listener,
    ));
}
