//! A function that exhausts a quota gets an error that names it, and others notice nothing.

use super::{adapter, assert_works, function, peer_of};
use ironwarp::function::{Quotas, Resource};
use ironwarp::memory::{Buffer, RegisterError};
use ironwarp::queue::WorkRequest;
use ironwarp::{Adapter, ProtectionDomain};
use ironwarp_testkit::native::{ALL, Completions, End};
use ironwarp_testkit::wait::until;
use std::any::Any;
use std::error::Error;

/// What a function may have of each kind, besides what the test itself needs.
const QUOTA: u64 = 5;

type Object = Box<dyn Any>;
type Creation = Result<Object, Box<dyn Error>>;

fn boxed<T: Any, E: Error + 'static>(created: Result<T, E>) -> Creation {
    match created {
        Ok(object) => Ok(Box::new(object)),
        Err(error) => Err(error.into()),
    }
}

/// Creates an object of this kind, in one of the ways that there are.
fn create(resource: Resource, way: u64, function: &Adapter, domain: &ProtectionDomain) -> Creation {
    let cq = || function.completion_queue(8).unwrap();
    match (resource, way % 3) {
        (Resource::QueuePairs, 0) => boxed(domain.queue_pair(&cq()).create()),
        (Resource::QueuePairs, 1) => boxed(domain.datagram_queue_pair(&cq()).create()),
        (Resource::QueuePairs, _) => boxed(function.control_queue(&cq(), 8)),
        (Resource::CompletionQueues, _) => boxed(function.completion_queue(8)),
        (Resource::SharedReceiveQueues, 0) => {
            boxed(domain.try_xrc_receive_queue(&function.xrc_domain(), &cq(), 8))
        }
        (Resource::SharedReceiveQueues, _) => boxed(domain.try_shared_receive_queue(8)),
        (Resource::ProtectionDomains, _) => boxed(function.try_protection_domain()),
        (Resource::Tags, 0) => boxed(domain.window()),
        (Resource::Tags, 1) => boxed(domain.allocate_region([Buffer::new(8).unwrap()])),
        (Resource::Tags, _) | (Resource::RegisteredBytes, _) => {
            boxed(domain.register(Buffer::new(1).unwrap(), ALL))
        }
        (Resource::CompletionHandlers, 0) => boxed(function.completion_handlers(1)),
        (Resource::CompletionHandlers, _) => boxed(function.completion_handler()),
        (Resource::EventQueues, _) => boxed(function.event_queue()),
        (other, _) => panic!("{other} is not an object"),
    }
}

#[test]
fn each_quota_is_enforced_and_names_itself() {
    let adapter = adapter();
    let neighbour = function(&adapter, Quotas::default());
    let neighbours_peer = peer_of(&neighbour);
    for resource in Resource::ALL {
        if resource == Resource::ParkedBytes {
            continue; // it is reached by peers: see `parking.rs`
        }
        // A domain for the other objects, and the completion queues that they need.
        let needed = u64::from(resource == Resource::ProtectionDomains);
        let tenant = adapter.function(Quotas::default().with(resource, QUOTA + needed)).unwrap();
        let domain = tenant.protection_domain();
        let mut objects: Vec<_> =
            (0..QUOTA).map(|way| create(resource, way, &tenant, &domain).unwrap()).collect();
        assert_eq!(tenant.used(resource), QUOTA + needed);
        for way in 0..3 {
            let error = create(resource, way, &tenant, &domain).unwrap_err().to_string();
            let (function, limit) = (tenant.function_number(), QUOTA + needed);
            let expected = format!(
                "function {function} has reached its quota of {limit} {resource}: release some, or create the function with a \
                 larger quota"
            );
            assert_eq!(error, expected);
        }
        assert_eq!(tenant.used(resource), QUOTA + needed, "what was refused does not count");

        // The neighbour creates the same objects, and its connection works.
        let own: Vec<_> = (0..2 * QUOTA)
            .map(|way| create(resource, way, &neighbour.adapter, &neighbour.domain).unwrap())
            .collect();
        assert_works(&neighbours_peer, &neighbour);
        drop(own);

        // A dropped object gives its place back, for one other object.
        objects.pop();
        objects.push(create(resource, 0, &tenant, &domain).unwrap());
        assert!(create(resource, 1, &tenant, &domain).is_err());
        drop(objects);
        assert_eq!(tenant.used(resource), needed);
    }
}

/// All handlers of one call count, or none.
#[test]
fn handlers_that_do_not_fit_together_are_not_created() {
    let adapter = adapter();
    let tenant = adapter.function(Quotas::default().completion_handlers(3)).unwrap();
    assert_eq!(tenant.query().completion_handlers, 3);
    assert!(tenant.completion_handlers(4).is_err());
    assert_eq!(tenant.used(Resource::CompletionHandlers), 0);
    assert_eq!(tenant.completion_handlers(3).unwrap().len(), 3);
}

/// Bytes are counted once for each registration, by call and by request.
#[test]
fn registered_bytes_count_until_they_are_invalidated() {
    let adapter = adapter();
    let tenant = function(&adapter, Quotas::default().registered_bytes(100));
    let _peer = peer_of(&tenant);
    let used = || tenant.adapter.used(Resource::RegisteredBytes);
    let region = tenant.region(&[0; 60], ALL);
    let fast = tenant.domain.allocate_region([Buffer::new(40).unwrap()]).unwrap();
    tenant.qp.post_send(WorkRequest::register(1, &fast, ALL)).unwrap();
    assert_eq!(tenant.next().success().unwrap().wr_id, 1);
    assert_eq!(used(), 100);
    let exceeded = region.share(ALL).unwrap_err();
    let RegisterError::Quota(exceeded) = exceeded else { panic!("{exceeded}") };
    let (function, resource, limit) = (exceeded.function, exceeded.resource, exceeded.limit);
    assert_eq!((function, resource, limit), (1, Resource::RegisteredBytes, 100));
    tenant.qp.post_send(WorkRequest::invalidate_region(2, &fast)).unwrap();
    assert_eq!(tenant.next().success().unwrap().wr_id, 2);
    assert_eq!(used(), 60);
    drop(region);
    assert_eq!(used(), 0);
    // A registration by request that exceeds the quota fails, as any that the adapter refuses.
    let _rest = tenant.region(&[0; 61], ALL);
    tenant.qp.post_send(WorkRequest::register(3, &fast, ALL)).unwrap();
    let failed = tenant.next();
    assert!(failed.cause.unwrap().to_string().contains("quota of 100 bytes of registered memory"));
    assert_eq!(used(), 61);
}

/// A connected queue pair counts until its connection is closed.
#[test]
fn a_connected_queue_pair_gives_its_place_back() {
    let adapter = adapter();
    let tenant = function(&adapter, Quotas::default().queue_pairs(1));
    let peer = peer_of(&tenant);
    assert!(tenant.domain.queue_pair(&tenant.cq).create().is_err());
    let End { qp, cq, domain, adapter: tenant } = tenant;
    drop((qp, peer));
    until(|| tenant.used(Resource::QueuePairs) == 0);
    assert!(domain.queue_pair(&cq).create().is_ok());
}
