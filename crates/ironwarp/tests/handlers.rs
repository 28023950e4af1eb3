//! Registration of completion handlers, and completion queues that are created with one.
#![allow(clippy::unwrap_used, reason = "tests")]

use ironwarp::completion::{Arm, CompletionHandler, CompletionQueue, HandlerId};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::queue::{QueuePair, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{ALL, CASES, End, SOON, pattern};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::SocketAddr;

fn adapter() -> Adapter {
    Adapter::open(Config::default().lanes(1)).unwrap()
}

fn unique(ids: impl IntoIterator<Item = HandlerId>) -> HashSet<HandlerId> {
    ids.into_iter().fold(HashSet::new(), |mut seen, id| {
        assert!(seen.insert(id), "{id:?} was given twice");
        seen
    })
}

fn connect(near: &QueuePair, far: &QueuePair, adapter: &Adapter, at: SocketAddr) {
    let listener = adapter.listen(at).unwrap();
    near.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().accept(far, &AcceptOptions::new()).unwrap();
    near.wait_connected(SOON).unwrap();
}

/// Requirement N1: the number that the query returns, and no other, is the number of handlers that can be registered.
#[test]
fn as_many_handlers_can_be_registered_as_the_query_says() {
    let adapter = adapter();
    let max = adapter.query().completion_handlers;
    let mut handlers: Vec<_> = (0..max).map(|_| adapter.completion_handler().unwrap()).collect();
    let ids = unique(handlers.iter().map(CompletionHandler::id));
    let refused = adapter.completion_handler().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    assert!(refused.to_string().contains(&format!("the maximum is {max}")), "{refused}");
    assert_eq!(adapter.query().completion_handlers, max, "the query returns the maximum, not what is left");

    // Neither private handlers nor those of lanes count.
    let (own, lane) = (adapter.completion_queue(1).unwrap(), adapter.lane_handler(0).unwrap());
    assert!(!ids.contains(&own.own_handler().id()) && !ids.contains(&lane.id()));
    handlers.pop();
    assert!(ids.contains(&adapter.completion_handler().unwrap().id()), "dropping a handler frees its place");
}

/// Requirement N2: several handlers in one call, each with an identifier that no other handler has, private ones and
/// those of lanes included.
#[test]
fn one_call_registers_several_handlers_with_unique_identifiers() {
    let adapter = adapter();
    let lone = adapter.completion_handler().unwrap();
    let first = adapter.completion_handlers(5).unwrap();
    let second = adapter.completion_handlers(60).unwrap();
    let queues: Vec<_> = (0..70).map(|_| adapter.completion_queue(1).unwrap()).collect();
    let lane = adapter.lane_handler(0).unwrap();
    assert_eq!((first.len(), second.len()), (5, 60));
    let all = first.iter().chain(&second).chain([&lone, &lane]);
    let ids = unique(all.chain(queues.iter().map(CompletionQueue::own_handler)).map(CompletionHandler::id));
    assert_eq!(ids.len(), 5 + 60 + 2 + 70);
    assert!(queues.iter().all(|cq| cq.handler() == Some(cq.own_handler().id())));
    assert!(adapter.completion_handlers(0).unwrap().is_empty());

    // Numbers that became free need not be next to each other.
    let freed: Vec<_> = second.iter().step_by(7).map(CompletionHandler::id).collect();
    let kept: Vec<_> = second.into_iter().enumerate().filter(|(index, _)| index % 7 != 0).collect();
    let again = adapter.completion_handlers(freed.len()).unwrap();
    assert_eq!(again.iter().map(CompletionHandler::id).collect::<Vec<_>>(), freed);
    drop(kept);
}

/// Requirement N2: if not all handlers can be registered, none is.
#[test]
fn handlers_are_registered_all_or_none() {
    let adapter = adapter();
    let max = adapter.query().completion_handlers;
    for count in [max + 1, usize::MAX] {
        assert_eq!(adapter.completion_handlers(count).unwrap_err().kind(), ErrorKind::QuotaExceeded);
    }
    let most = adapter.completion_handlers(max - 3).unwrap();
    assert_eq!(adapter.completion_handlers(4).unwrap_err().kind(), ErrorKind::QuotaExceeded);
    let rest = adapter.completion_handlers(3).expect("the refused call took no place");
    unique(most.iter().chain(&rest).map(CompletionHandler::id));
    assert!(adapter.completion_handler().is_err());
}

/// Requirement N3: the queue reports to the handler that it was created with, from its first event on. A handler serves
/// many queues, a queue has one handler.
#[test]
fn a_queue_reports_to_the_handler_that_it_was_created_with() {
    const QUEUES: u8 = 3;
    for case in CASES {
        let client = End::new(Config::default(), case.completes);
        let server = End::new(Config::default(), case.completes);
        let handlers = server.adapter.completion_handlers(2).unwrap();
        let created = |index: u8| {
            let builder = server.adapter.completion_queue_builder(16);
            match index {
                0 => builder.handler(&handlers[1]).lane(0),
                _ => builder.handler(&handlers[0]),
            }
        };
        let mut pairs = Vec::new();
        for index in 0..QUEUES {
            let cq = created(index).create().unwrap();
            assert_eq!(cq.handler(), Some(handlers[usize::from(index == 0)].id()));
            let near = client.domain.queue_pair(&client.cq).completes(case.completes).create().unwrap();
            let far = server.domain.queue_pair(&cq).create().unwrap();
            let sink = server.region(&[0; 64], ALL);
            far.post_receive(u64::from(index), &[sink.slice(..).unwrap()]).unwrap();
            connect(&near, &far, &server.adapter, case.at.parse().unwrap());
            assert!(!cq.arm(Arm::Next));
            pairs.push((near, far, cq, sink));
        }
        for (index, (near, _, cq, sink)) in (0..QUEUES).zip(&pairs) {
            let message = pattern(index, 64);
            let source = client.region(&message, ALL);
            near.post_send(WorkRequest::send(u64::from(index), &[source.slice(..).unwrap()])).unwrap();
            let event = handlers[usize::from(index == 0)].wait(SOON).unwrap();
            assert_eq!(event.cq, cq.id());
            let completion = cq.poll_one().unwrap().expect("the completion is there before its event");
            assert_eq!(completion.success().unwrap().wr_id, u64::from(index));
            assert_eq!(sink.to_vec().unwrap(), message);
            assert!(handlers.iter().all(|handler| handler.try_next().is_none()) && !cq.take_event());
            client.cq.wait(SOON).unwrap().success().unwrap();
        }
    }
}

/// Requirement N3: without a handler, the event of a queue waits for one. A handler of another adapter is refused.
#[test]
fn a_queue_is_created_without_a_handler_but_not_with_a_foreign_one() {
    let (adapter, another) = (adapter(), adapter());
    let cq = adapter.completion_queue_builder(4).handler(None).create().unwrap();
    assert_eq!(cq.handler(), None);
    let foreign = another.completion_handler().unwrap();
    let refused = adapter.completion_queue_builder(4).handler(&foreign).create().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
}
