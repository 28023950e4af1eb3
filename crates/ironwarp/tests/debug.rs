//! The `Debug` output of public types identifies the object, and is short.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::connection::ConnectOptions;
use ironwarp::datagram::{DatagramRequest, Destination};
use ironwarp::memory::{Buffer, Pool};
use ironwarp::queue::WorkRequest;
use ironwarp_testkit::native::{ALL, CASES, End, SOON, pair};
use std::fmt::Debug;

/// Checks that the debug output of an object contains `expected`, and is short, however large the object is.
#[track_caller]
fn expect_short(object: &impl Debug, expected: &str) {
    let text = format!("{object:?}");
    assert!(text.len() < 400, "{} bytes: {text}", text.len());
    assert!(text.contains(expected), "{expected:?} is not in {text}");
}

#[test]
fn debug_output_is_short_and_identifies_the_object() {
    let (client, server) = pair(CASES[0]);
    let End { qp, cq, domain, adapter } = &client;
    expect_short(adapter, "Adapter { lanes: ");
    expect_short(qp, &format!("QueuePair {{ id: {}, state: {:?}", qp.id(), qp.state()));
    expect_short(cq, &format!("CompletionQueue {{ id: {}", cq.id()));
    expect_short(domain, &format!("ProtectionDomain {{ id: {}", domain.id()));
    expect_short(&domain.queue_pair(cq).send_depth(7), "send_depth: 7");

    let many = || (0..1000).map(|_| Buffer::new(10).unwrap()).collect::<Vec<_>>();
    let region = domain.register_list(many(), ALL).unwrap();
    expect_short(&region, &format!("MemoryRegion {{ tag: {:?}, len: 10000", region.tag()));
    let contents: &ironwarp::memory::Contents = &region;
    expect_short(contents, "Contents { len: 10000");
    let fast = domain.allocate_region(many()).unwrap();
    expect_short(&fast, &format!("FastRegion {{ tag: {:?}", fast.tag()));
    let pool = Pool::new(domain.register(Buffer::new(10_000).unwrap(), ALL).unwrap(), 10);
    expect_short(&pool.take().unwrap(), "start: 0, len: 10");
    expect_short(&pool, "chunk_len: 10, available: 1000");
    expect_short(&region.view::<u32>(5).unwrap(), "View { type: \"u32\", at: 5");
    expect_short(&region.array::<u32>(5, 9).unwrap(), "ArrayView { type: \"u32\", at: 5, len: 9");
    let window = domain.window().unwrap();
    expect_short(&window, &format!("Window {{ tag: {:?}", window.tag()));

    let srq = domain.shared_receive_queue(4096);
    (0..1000).for_each(|id| srq.post_receive(id, &[region.slice(..8).unwrap()]).unwrap());
    expect_short(&srq, &format!("SharedReceiveQueue {{ id: {}", srq.id()));
    expect_short(&adapter.xrc_domain(), "XrcDomain");

    let datagrams = domain.datagram_queue_pair(cq);
    expect_short(&datagrams, "DatagramQueuePairBuilder { send_cq: ");
    let datagrams = datagrams.addresses(&["127.0.0.1".parse().unwrap()]).create().unwrap();
    expect_short(&datagrams, &format!("DatagramQueuePair {{ qpn: {}", datagrams.qpn()));
    let address = datagrams.address_handle("127.0.0.1".parse().unwrap()).unwrap();
    let to = Destination { address, qpn: 1, qkey: 0 };
    expect_short(&DatagramRequest::send_inline(5, &[0; 4096], to), "DatagramRequest { id: 5, len: 4096");

    expect_short(&WorkRequest::send_inline(1, &[0; 5000]), "len: 5000");
    expect_short(&WorkRequest::register(2, &fast, ALL), "WorkRequest { id: 2, operation: Register");
    expect_short(&WorkRequest::bind(3, &window, &region, ..8, ALL).unwrap(), "operation: Bind");

    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    expect_short(&listener, &format!("Listener {{ local_addr: Ok({at})"));
    let another = domain.queue_pair(cq).create().unwrap();
    another.start_connect(at, &ConnectOptions::new().private_data(&[7; 400])).unwrap();
    expect_short(&listener.accept(SOON).unwrap(), "Incoming { peer_addr: 127.0.0.1:");
}
