//! Numbers and tags of two functions never collide.

use super::adapter;
use ironwarp::Adapter;
use ironwarp::function::Quotas;
use ironwarp::memory::Buffer;
use ironwarp_testkit::native::ALL;
use std::any::Any;
use std::collections::HashSet;
use std::thread;

/// Number of objects of each kind, in each function.
const MANY: usize = 300;

/// The numbers of many objects of a function, by kind, and the objects, which have them as long as they exist.
type Numbers = Vec<(&'static str, u32)>;

fn create_many(function: &Adapter) -> (Numbers, Box<dyn Any + Send>) {
    let (cq, domain) = (function.completion_queue(8).unwrap(), function.protection_domain());
    let mut numbers = vec![("cq", cq.id()), ("domain", domain.id())];
    let mut objects: Vec<Box<dyn Any + Send>> = Vec::new();
    for at in 0..MANY {
        let region = domain.register(Buffer::new(8).unwrap(), ALL).unwrap();
        let window = domain.window().unwrap();
        let (pair, manual) =
            (domain.queue_pair(&cq).create().unwrap(), domain.queue_pair(&cq).manual().create().unwrap());
        numbers.extend([("tag", region.tag().0 >> 8), ("tag", window.tag().0 >> 8)]);
        numbers.extend([("qp", pair.id()), ("qp", manual.id())]);
        if at % 10 == 0 {
            let (other_cq, other) = (function.completion_queue(8).unwrap(), function.protection_domain());
            let srq = other.shared_receive_queue(8);
            numbers.extend([("cq", other_cq.id()), ("domain", other.id()), ("srq", srq.id())]);
            objects.push(Box::new((other_cq, srq)));
        }
        objects.push(Box::new((region, window, pair, manual)));
    }
    (numbers, Box::new((objects, cq)))
}

/// The functions create their objects at the same time.
#[test]
fn many_objects_of_functions_have_different_numbers() {
    let adapter = adapter();
    let mut functions: Vec<_> = (0..3).map(|_| adapter.function(Quotas::default()).unwrap()).collect();
    functions.push(adapter);
    let created: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            functions.iter().map(|function| scope.spawn(|| create_many(function))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut seen = HashSet::new();
    for (kind, number) in created.iter().flat_map(|(numbers, _)| numbers) {
        assert!(seen.insert((*kind, *number)), "two objects are {kind} {number}");
    }
}

/// A function leaves the tags that it has not used to others, and no tag that it has used (requirement M4).
#[test]
fn tags_of_a_closed_function_do_not_come_back() {
    let adapter = adapter();
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let function = adapter.function(Quotas::default()).unwrap();
        let domain = function.protection_domain();
        for _ in 0..10 {
            let region = domain.register(Buffer::new(8).unwrap(), ALL).unwrap();
            assert!(seen.insert(region.tag()), "{} was used before", region.tag());
        }
    }
    let left = (1 << 24) - (1 << 18); // less up to two reserved ones
    assert!((left - 2..=left).contains(&adapter.tag_usage().indices), "all took their tags from one slice");
}

/// The adapter gives away only what it has.
#[test]
fn too_many_functions_are_refused() {
    let adapter = adapter();
    let quotas = Quotas::default().parked_bytes(0); // they need nothing else of the adapter
    let functions: Vec<_> = std::iter::from_fn(|| adapter.function(quotas).ok()).collect();
    assert!(functions.len() > 60, "{}", functions.len());
    let error = adapter.function(quotas).unwrap_err().to_string();
    assert!(error.starts_with("too few unused tags for another function"), "{error}");
    let domain = functions[0].protection_domain();
    assert!(domain.register(Buffer::new(8).unwrap(), ALL).is_ok());
    drop((functions, domain));
    assert!(adapter.function(quotas).is_ok());
}
