//! Functions of an adapter (requirement X1): a function fails alone, an adapter with all of its functions, and
//! `ironwarp show` lists the objects of all.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::status::{self, Row};
use ironwarp_engine::{Class, Engine, QueuePair};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::{AsyncEvent, Sizes};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sges, Status, WorkRequest};
use ironwarp_rnic::quota::Quotas;
use ironwarp_testkit::engine::{Side, connect};
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

fn adapter() -> Arc<Engine> {
    Engine::new(Config::default().lanes(1)).unwrap()
}

/// One end of a connection to a peer with an adapter of its own.
struct Connected {
    end: Side,
    qp: Arc<QueuePair>,
    peer: Side,
    peers_qp: Arc<QueuePair>,
    _peers: Arc<Engine>,
}

impl Connected {
    fn new(engine: &Arc<Engine>) -> Self {
        let peers = adapter();
        let (end, peer) = (Side::new(engine, 8, 64), Side::new(&peers, 8, 64));
        let (qp, peers_qp) =
            (end.pair(4, Completes::WhenAcknowledged), peer.pair(4, Completes::WhenAcknowledged));
        connect((&peer, &peers_qp), (&end, &qp));
        Self { end, qp, peer, peers_qp, _peers: peers }
    }

    fn post_receive(&self) {
        self.qp.post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
    }

    /// Waits for the completion of a receive.
    fn received(&self) -> (Status, Option<Arc<QpError>>) {
        assert_eq!(self.end.cq.wait(Some(TIMEOUT)), Ok(true));
        let mut found = None;
        assert_eq!(self.end.cq.poll(1, |done| found = Some((done.status, done.cause))), Ok(1));
        found.unwrap()
    }

    fn assert_works(&self) {
        self.post_receive();
        let send = WorkRequest::new(8, Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
        self.peers_qp.post_send([send]).unwrap();
        assert_eq!(self.received().0, Status::Success);
        assert_eq!(self.peer.cq.wait(Some(TIMEOUT)), Ok(true));
        assert_eq!(self.peer.cq.poll(8, drop), Ok(1));
    }

    fn assert_stopped(&self) {
        let (status, cause) = self.received();
        assert_eq!((status, cause.as_deref()), (Status::Flushed, Some(&QpError::Stopped)));
        assert!(self.qp.wait_closed(TIMEOUT));
    }
}

/// Requirement I5: a function whose event queue overflows stops, and its neighbours do not.
#[test]
fn a_function_whose_event_queue_overflows_stops_alone() {
    let adapter = adapter();
    let [failing, other] = [(); 2].map(|()| adapter.create_function(Quotas::default()).unwrap());
    let [failing_end, other_end, own_end] = [&failing, &other, &adapter].map(Connected::new);
    let queue = failing.async_events().unwrap();
    failing_end.post_receive();
    let mut raised = 0;
    while !failing.device().events().is_stopped() {
        failing.device().raise(AsyncEvent::GidChange(1));
        raised += 1;
        assert!(raised <= 2 * Sizes::default().max, "the event queue is bounded");
    }
    failing_end.assert_stopped();
    assert_eq!(std::iter::from_fn(|| queue.try_next()).last(), Some(AsyncEvent::EventQueueOverflow(0)));
    for (engine, end) in [(&other, &other_end), (&adapter, &own_end)] {
        assert!(!engine.device().events().is_stopped());
        end.assert_works();
    }
}

/// A failure of the adapter, for example of a lane, ends all of its functions, also those that are created later.
#[test]
fn a_failed_adapter_stops_its_functions() {
    let adapter = adapter();
    let function = adapter.create_function(Quotas::default()).unwrap();
    let end = Connected::new(&function);
    let events = function.async_events().unwrap();
    end.post_receive();
    adapter.device().events().fail(&"a test stops it");
    end.assert_stopped();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::DeviceFatal));
    let late = adapter.create_function(Quotas::default()).unwrap();
    assert!(late.device().events().is_stopped());
}

/// The status of the adapter of this process that has this row.
fn rows_with(is_wanted: impl Fn(&Row) -> bool) -> Vec<Row> {
    let process = Some(std::process::id().cast_signed());
    let names = status::adapters().unwrap();
    let mut mine = names.iter().filter_map(|name| status::request(name, process).ok()?.read().ok());
    mine.find(|adapter| adapter.rows.iter().any(&is_wanted)).expect("the adapter answers").rows
}

#[test]
fn objects_of_all_functions_are_shown() {
    let adapter = adapter();
    let functions =
        [10, 20].map(|quota| adapter.create_function(Quotas::default().queue_pairs(quota)).unwrap());
    let ends = [&functions[0], &functions[1], &adapter].map(Connected::new);
    let handler = functions[1].create_handler().unwrap();
    handler.set_class(Class::LowLatency).unwrap();
    handler.set_consumer("tenant");

    let rows = rows_with(|row| row.kind() == "function" && row.number("max_queue_pairs") == 20);
    let of_kind = |kind: &str| rows.iter().filter(|row| row.kind() == kind).collect::<Vec<_>>();
    for end in &ends {
        let shown =
            |kind, number: u32| of_kind(kind).iter().any(|row| row.number("number") == u64::from(number));
        assert!(shown("qp", end.qp.id()) && shown("cq", end.end.cq.cq().id()));
    }
    let shown: Vec<_> = of_kind("function")
        .iter()
        .map(|row| (row.number("number"), row.number("queue_pairs"), row.number("max_queue_pairs")))
        .collect();
    assert_eq!(shown, [(1, 1, 10), (2, 1, 20)]);
    let number = format!("2:{}", handler.id().0);
    let queues = of_kind("event queue");
    let queue = queues.iter().find(|row| row.text("number") == number).expect("the handler of a function");
    assert!(queue.text("of").ends_with("consumer tenant"), "{queue}");
}
