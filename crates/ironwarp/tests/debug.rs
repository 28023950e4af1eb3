//! The `Debug` output of public types identifies the object, and is short.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::{Buffer, ConnectOptions, DatagramRequest, Destination, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, End, SOON, pair};
use std::fmt::Debug;

/// The output contains `says`, and is short however large the object is.
#[track_caller]
fn short(thing: &impl Debug, says: &str) {
    let text = format!("{thing:?}");
    assert!(text.len() < 400, "{} bytes: {text}", text.len());
    assert!(text.contains(says), "{says:?} is not in {text}");
}

#[test]
fn debug_output_is_short_and_identifies_the_object() {
    let (client, server) = pair(CASES[0]);
    let End { qp, cq, domain, adapter } = &client;
    short(adapter, "Adapter { lanes: ");
    short(qp, &format!("QueuePair {{ id: {}, state: {:?}", qp.id(), qp.state()));
    short(cq, &format!("CompletionQueue {{ id: {}", cq.id()));
    short(domain, &format!("ProtectionDomain {{ id: {}", domain.id()));
    short(&domain.queue_pair(cq).send_depth(7), "send_depth: 7");

    let many = || (0..1000).map(|_| Buffer::new(10).unwrap()).collect::<Vec<_>>();
    let region = domain.register_list(many(), ALL).unwrap();
    short(&region, &format!("MemoryRegion {{ tag: {:?}, len: 10000", region.tag()));
    let contents: &ironwarp::Contents = &region;
    short(contents, "Contents { len: 10000");
    let fast = domain.allocate_region(many()).unwrap();
    short(&fast, &format!("FastRegion {{ tag: {:?}", fast.tag()));
    let window = domain.window().unwrap();
    short(&window, &format!("Window {{ tag: {:?}", window.tag()));

    let srq = domain.shared_receive_queue(4096);
    (0..1000).for_each(|id| srq.post_receive(id, &[region.slice(0, 8).unwrap()]).unwrap());
    short(&srq, &format!("SharedReceiveQueue {{ id: {}", srq.id()));
    short(&adapter.xrc_domain(), "XrcDomain");

    let datagrams = domain.datagram_queue_pair(cq);
    short(&datagrams, "DatagramQueuePairBuilder { send_cq: ");
    let datagrams = datagrams.addresses(&["127.0.0.1".parse().unwrap()]).create().unwrap();
    short(&datagrams, &format!("DatagramQueuePair {{ qpn: {}", datagrams.qpn()));
    let address = datagrams.address_handle("127.0.0.1".parse().unwrap()).unwrap();
    let to = Destination { address, qpn: 1, qkey: 0 };
    short(&DatagramRequest::send_inline(5, &[0; 4096], to), "DatagramRequest { id: 5, len: 4096");

    short(&WorkRequest::send_inline(1, &[0; 5000]), "len: 5000");
    short(&WorkRequest::register(2, &fast, ALL), "WorkRequest { id: 2, operation: Register");
    short(&WorkRequest::bind(3, &window, &region, 0, 8, ALL).unwrap(), "operation: Bind");

    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    short(&listener, &format!("Listener {{ local_addr: Ok({at})"));
    let another = domain.queue_pair(cq).create().unwrap();
    another.start_connect(at, &ConnectOptions::new().private_data(&[7; 400])).unwrap();
    short(&listener.accept(SOON).unwrap(), "Incoming { peer_addr: 127.0.0.1:");
}
