//! Traffic classes (requirement M16), as they are on the wire: dumpcap records the packets that the kernel sends.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::Opcode;
use ironwarp::connection::{AcceptOptions, BringUpOptions, ConnectOptions, Remote};
use ironwarp::datagram::{AddressHandle, DatagramRequest, Destination, Grh};
use ironwarp::memory::Buffer;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::native::{ALL, Completions, End, SOON, pattern};
use ironwarp_testkit::net::ip;
use ironwarp_testkit::packets::Packets;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The traffic classes of client and server: DSCP 46 (expedited forwarding) and DSCP 10.
const CLASSES: [u8; 2] = [0xb8, 0x28];

/// Starts to record, in a network namespace where the addresses of the tests exist.
fn record(name: &str) -> Packets {
    ip("link set lo up");
    ip("addr add fd00::1/128 dev lo");
    ip("addr add fd00::2/128 dev lo");
    Packets::record("lo", &Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
}

/// Returns two ends that use TCP. Their queue pairs are connected manually, or by the connection manager.
fn ends(manual: bool) -> [End; 2] {
    [(); 2].map(|()| {
        let mut end = End::new(Config::default().shm(false), Completes::WhenAcknowledged);
        if manual {
            end.qp = end.domain.queue_pair(&end.cq).manual().create().unwrap();
        }
        end
    })
}

/// Sends a message in both directions.
fn talk(ends: &[End; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (&ends[from], &ends[to]);
        let (source, sink) = (from.region(&pattern(1, 100), ALL), to.region(&[0; 100], ALL));
        to.qp.post_receive(1, &[sink.slice(..100).unwrap()]).unwrap();
        from.qp.post_send(WorkRequest::send(2, &[source.slice(..100).unwrap()])).unwrap();
        from.done(Opcode::Send, 2);
        to.done(Opcode::Receive, 1);
        assert_eq!(sink.to_vec().unwrap(), pattern(1, 100));
    }
}

/// Addresses of client and server, for both IP versions.
fn addresses() -> [[IpAddr; 2]; 2] {
    [["127.0.0.2", "127.0.0.3"], ["fd00::1", "fd00::2"]].map(|pair| pair.map(|it| it.parse().unwrap()))
}

/// Names of the protocol of an address and of the field with the traffic class, as Wireshark has them.
fn fields(of: IpAddr) -> (&'static str, &'static str) {
    if of.is_ipv4() { ("ip", "ip.dsfield") } else { ("ipv6", "ipv6.tclass") }
}

/// Checks that the packets from an address that match the filter, at least `count`, have this traffic class.
fn check(packets: &Packets, (from, class): (IpAddr, u8), filter: &str, count: usize) {
    let (protocol, field) = fields(from);
    let filter = format!("{protocol}.src == {from} && {filter}");
    for found in packets.fields(&filter, &[field], count) {
        let digits = found[0].trim_start_matches("0x");
        let value = u32::from_str_radix(digits, 16).expect("a number");
        assert_eq!(value, class.into(), "{filter}");
    }
}

#[test]
fn packets_of_a_connection_have_the_class_that_each_end_chose() {
    if !in_network("packets_of_a_connection_have_the_class_that_each_end_chose") {
        return;
    }
    let packets = record("connection.pcap");
    for [client_at, server_at] in addresses() {
        let ends = ends(false);
        let [client, server] = &ends;
        let listener = server.adapter.listen(SocketAddr::new(server_at, 0)).unwrap();
        let connect =
            ConnectOptions::new().from_addr(SocketAddr::new(client_at, 0)).traffic_class(CLASSES[0]);
        client.qp.start_connect(listener.local_addr().unwrap(), &connect).unwrap();
        let accept = AcceptOptions::new().traffic_class(CLASSES[1]);
        listener.accept(SOON).unwrap().accept(&server.qp, &accept).unwrap();
        client.qp.wait_connected(SOON).unwrap();
        talk(&ends);
        check(&packets, (client_at, CLASSES[0]), "tcp.flags.syn == 1", 1);
        check(&packets, (client_at, CLASSES[0]), "tcp.len > 0", 2);
        // The kernel answers the SYN before the program of the server has accepted the connection.
        check(&packets, (server_at, CLASSES[1]), "tcp.len > 0", 2);
    }
}

#[test]
fn packets_of_a_manual_connection_have_the_class_that_each_end_chose() {
    if !in_network("packets_of_a_manual_connection_have_the_class_that_each_end_chose") {
        return;
    }
    let packets = record("manual.pcap");
    for at in addresses() {
        let ends = ends(true);
        for (own, other) in [(0, 1), (1, 0)] {
            let options = BringUpOptions::new().gid(at[own].into()).traffic_class(CLASSES[own]);
            let remote = Remote { gid: at[other].into(), qpn: ends[other].qp.id() };
            ends[own].qp.bring_up(remote, &options).unwrap();
        }
        for end in &ends {
            end.qp.wait_connected(SOON).unwrap();
        }
        talk(&ends);
        // Refusals of dials that come too early have no class: these are for no queue pair.
        for own in [0, 1] {
            check(&packets, (at[own], CLASSES[own]), "iwarp_rdma.opcode == 3", 1);
        }
    }
}

/// Datagrams have the class of their address handle, and acknowledgements that of the datagram.
#[test]
fn datagrams_have_the_class_of_their_address_handle() {
    if !in_network("datagrams_have_the_class_of_their_address_handle") {
        return;
    }
    let packets = record("datagrams.pcap");
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let adapter = Adapter::open(Config::default()).unwrap();
        let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
        let region = domain.register(Buffer::new(200).unwrap(), ALL).unwrap();
        for at in addresses() {
            let [from, to] = at.map(|at| {
                let builder = domain.datagram_queue_pair(&cq).completes(completes).qkey(7);
                builder.addresses(&[at]).create().unwrap()
            });
            for class in CLASSES {
                to.post_receive(1, &[region.slice(..200).unwrap()]).unwrap();
                let address = AddressHandle::new(at[0].into(), at[1].into());
                let address = AddressHandle { traffic_class: class, ..address };
                let destination = Destination { address, qpn: to.qpn(), qkey: 7 };
                from.post_send(DatagramRequest::send_inline(2, b"a message", destination)).unwrap();
                for _ in 0..2 {
                    cq.wait(SOON).unwrap().success().unwrap();
                }
                assert_eq!(region.to_vec().unwrap()[Grh::LEN..Grh::LEN + 9], *b"a message");
                let senders = if completes == Completes::WhenAcknowledged { &at[..] } else { &at[..1] };
                for sender in senders {
                    let (protocol, field) = fields(*sender);
                    let filter = format!("udp && {protocol}.src == {sender} && {field} == {class}");
                    packets.fields(&filter, &[field], 1);
                }
            }
        }
    }
}
