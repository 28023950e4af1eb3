//! Lanes that fail: the adapter stops and raises an event, and no thread waits forever.

use super::command::Command;
use super::source::{EventSource, Rearm};
use crate::config::Config;
use crate::sys::testing::close_all;
use crate::sys::thread::Thread;
use crate::{
    Class, CompletionQueue, ConnectOptions, ConnectionEvent, ConnectionEventKind, Engine, EventSink,
    Listener, QueuePair, QueuePairAttributes, QueuePairOptions, WaitError,
};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::queue::{Completion, Data, Operation, ReceiveRequest, Sges, Status, WorkRequest};
use ironwarp_testkit::child::in_child;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Timeout of each step, longer than any takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// An adapter with one lane and two queue pairs that are connected to each other, each with a posted receive.
struct Ends {
    engine: Arc<Engine>,
    listener: Listener,
    cq: Arc<CompletionQueue>,
    pairs: [Arc<QueuePair>; 2],
}

impl Ends {
    /// Opens the adapter, and connects the queue pairs.
    fn new() -> Self {
        let engine = Engine::new(Config::default().lanes(1)).unwrap();
        let (cq, domain) = (engine.create_cq(16).unwrap(), engine.device().allocate_domain());
        let pairs = [(); 2].map(|()| engine.create_qp(QueuePairAttributes::new(domain, &cq)).unwrap());
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let [near, far] = &pairs;
        engine.connect(near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(TIMEOUT).unwrap();
        incoming.accept(far, engine.terms(None, None), &[]).unwrap();
        for pair in &pairs {
            pair.wait_connected(TIMEOUT).unwrap();
            pair.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
        }
        Self { engine, listener, cq, pairs }
    }

    /// Polls until the adapter has stopped, and returns the completions.
    fn drain_completions(&self) -> Vec<Completion> {
        let mut flushed = Vec::new();
        loop {
            match self.cq.wait(Some(TIMEOUT)) {
                Ok(true) => {
                    self.cq.poll(16, |completion| flushed.push(completion)).unwrap();
                }
                ended => {
                    assert_eq!(ended, Err(WaitError::Stopped), "{flushed:?}");
                    return flushed;
                }
            }
        }
    }
}

/// An event source that panics when the lane asks for its descriptor.
#[derive(Debug)]
struct NoDescriptor;

impl AsFd for NoDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("it has no descriptor")
    }
}

impl EventSource for NoDescriptor {
    fn on_readable(&self) -> io::Result<Rearm> {
        Ok(Rearm::Now)
    }
}

/// A lane panics outside of any connection.
#[test]
fn a_lane_that_panics_stops_the_adapter() {
    let ends = Ends::new();
    let events = ends.engine.async_events().unwrap();
    let idle = ends.engine.create_cq(1).unwrap();
    let sleeper = std::thread::spawn(move || idle.wait(None));
    ends.engine.steering().lane(0).unwrap().handle().submit(Command::AddSource(Arc::new(NoDescriptor)));
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::DeviceFatal));
    let flushed = ends.drain_completions();
    assert_eq!(flushed.len(), 2, "{flushed:?}");
    assert!(flushed.iter().all(|completion| completion.status == Status::Flushed), "{flushed:?}");
    // One of the two ends may have received the other's RST before the lane aborted it.
    assert!(flushed.iter().any(|it| it.cause.as_deref() == Some(&QpError::Stopped)), "{flushed:?}");
    assert!(ends.pairs.iter().all(|pair| pair.wait_closed(TIMEOUT)));
    assert_eq!(sleeper.join().unwrap(), Err(WaitError::Stopped));
    // A new connection fails at once, and does not wait for a lane.
    let began = Instant::now();
    let late = QueuePairAttributes::new(ends.engine.device().allocate_domain(), &ends.cq);
    let late = ends.engine.create_qp(late).unwrap();
    ends.engine.connect(&late, ends.listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    late.wait_connected(TIMEOUT).unwrap_err();
    drop(ends);
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
}

/// The program closes all descriptors of its process, as closefrom(3) does, while one thread sleeps and another polls.
/// Calls return errors; nothing panics, aborts or hangs.
#[test]
fn a_program_that_closes_our_descriptors() {
    if !in_child("reactor::tests::a_program_that_closes_our_descriptors") {
        return;
    }
    std::thread::spawn(|| {
        std::thread::sleep(2 * TIMEOUT);
        eprintln!("it hangs");
        std::process::abort();
    });
    let ends = Ends::new();
    let (near, idle) = (Arc::clone(&ends.pairs[0]), ends.engine.create_cq(1).unwrap());
    let sleeper = std::thread::spawn(move || idle.wait(None));
    let events = ends.engine.async_events().unwrap();
    close_all();
    // The program's own files get descriptor numbers that the adapter had. The adapter must not close them.
    let files: Vec<_> = (0..4).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let request = WorkRequest::new(1, Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
    near.post_send([request]).unwrap();
    let flushed = ends.drain_completions();
    assert!(flushed.len() >= 2, "{flushed:?}");
    assert!(ends.pairs.iter().all(|pair| pair.wait_closed(TIMEOUT)));
    assert_eq!(sleeper.join().unwrap(), Err(WaitError::Stopped));
    let began = Instant::now();
    let raised = events.wait(Some(TIMEOUT));
    assert!(matches!(raised, Some(AsyncEvent::DeviceFatal) | None), "{raised:?}");
    assert!(began.elapsed() < TIMEOUT, "it waited for a closed descriptor");
    drop((near, ends, events));
    for file in &files {
        assert!(file.metadata().is_ok(), "a file of the program was closed");
    }
}

/// Reports that a connection was made, and holds the thread that made it until another thread has ended.
#[derive(Debug)]
struct HoldConnected {
    connected: SyncSender<()>,
    until_ended: Thread,
}

impl EventSink<ConnectionEvent> for HoldConnected {
    fn send(&self, event: ConnectionEvent) {
        if let ConnectionEventKind::Connected(_) = event.kind {
            self.connected.send(()).unwrap();
            while self.until_ended.exists() {
                std::thread::yield_now();
            }
        }
    }
}

/// One lane makes a connection while the adapter is closed, and the lane that should serve the connection has already
/// ended.
#[test]
fn a_connection_made_while_the_adapter_closes_is_closed() {
    let far = Engine::new(Config::default()).unwrap();
    let far_cq = far.create_cq(16).unwrap();
    let far_pair = far.create_qp(QueuePairAttributes::new(far.device().allocate_domain(), &far_cq)).unwrap();
    let listener = far.listen("127.0.0.1:0".parse().unwrap()).unwrap();

    let near = Engine::new(Config::default()).unwrap();
    let (cq, handler) = (near.create_cq(16).unwrap(), near.create_handler().unwrap());
    handler.set_class(Class::LowLatency).unwrap();
    cq.set_handler(Some(&handler)); // another lane than those that do handshakes
    let until_ended = near.steering().lane(near.steering().lanes()).unwrap().handle().await_thread();
    let (connected, is_connected) = sync_channel(1);
    let options = QueuePairOptions {
        events: Some(Arc::new(HoldConnected { connected, until_ended })),
        ..QueuePairOptions::default()
    };
    let attributes = QueuePairAttributes::new(near.device().allocate_domain(), &cq);
    let pair = near.create_qp_with(attributes, options).unwrap();
    near.connect(&pair, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(TIMEOUT).unwrap();
    incoming.accept(&far_pair, far.terms(None, None), &[]).unwrap();
    far_pair.wait_connected(TIMEOUT).unwrap();
    is_connected.recv_timeout(TIMEOUT).unwrap();
    drop((pair, cq, handler, near));
    assert!(far_pair.wait_closed(TIMEOUT), "the connection was forgotten");
}
