//! Registration of completion handlers.
#![allow(clippy::unwrap_used, reason = "tests")]

use ironwarp::completion::{CompletionHandler, CompletionQueue, HandlerId};
use ironwarp::{Adapter, Config};
use std::collections::HashSet;
use std::io::ErrorKind;

fn adapter() -> Adapter {
    Adapter::open(Config::default().lanes(1)).unwrap()
}

fn unique(ids: impl IntoIterator<Item = HandlerId>) -> HashSet<HandlerId> {
    ids.into_iter().fold(HashSet::new(), |mut seen, id| {
        assert!(seen.insert(id), "{id:?} was given twice");
        seen
    })
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
