//! Several logical devices in one process (requirement X3): they exchange data, and their streams never cross.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::{Opcode, Status};
use ironwarp::connection::{
    AcceptOptions, BringUpError, BringUpOptions, ConnectError, ConnectOptions, Established, Gid, Remote,
};
use ironwarp::datagram::{DatagramRequest, Destination, Grh};
use ironwarp::device::{LogicalDevice, Port};
use ironwarp::memory::Buffer;
use ironwarp::queue::{Completes, CreateError, Retries, WorkRequest};
use ironwarp::{Adapter, Config, WaitError};
use ironwarp_testkit::native::{ALL, Completions, End, SOON, connect, pattern};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// No multiple of a page or of a segment.
const LEN: usize = 300_001;

/// How an end is connected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The connection manager.
    Cm,
    /// The program, with GIDs and queue pair numbers.
    Hand,
}

fn config(devices: &str) -> Config {
    Config::default().devices(devices.parse().unwrap())
}

/// Opens a device of these settings, with a queue pair that is not connected yet.
fn end(config: &Config, device: &str, by: By) -> End {
    let adapter = Adapter::builder().config(config.clone()).device(device).open().unwrap();
    let cq = adapter.completion_queue(64).unwrap();
    let domain = adapter.protection_domain();
    let builder = domain.queue_pair(&cq).completes(Completes::WhenAcknowledged);
    let qp = if by == By::Hand { builder.manual() } else { builder }.create().unwrap();
    End { qp, cq, domain, adapter }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// Starts to connect a queue pair manually to that of another end at this address.
fn bring_up(from: &End, options: &BringUpOptions, to: &End, at: &str) {
    from.qp.bring_up(Remote { gid: gid(at), qpn: to.qp.id() }, options).unwrap();
}

/// Sends, writes and reads between two connected ends, and verifies all bytes.
fn exchange(one: &End, other: &End) {
    for (from, to, seed) in [(one, other, 1), (other, one, 50)] {
        let source = from.region(&pattern(seed, LEN), ALL);
        let (sent, written) = (to.region(&vec![0; LEN], ALL), to.region(&vec![0; LEN], ALL));
        let read = from.region(&vec![0; LEN], ALL);
        let all = source.slice(..LEN).unwrap();
        to.qp.post_receive(1, &[sent.slice(..LEN).unwrap()]).unwrap();
        from.qp.post_send(WorkRequest::send(2, &[all])).unwrap();
        from.done(Opcode::Send, 2);
        to.done(Opcode::Receive, 1);
        from.qp.post_send(WorkRequest::write(3, &[all], written.remote_addr(0).unwrap())).unwrap();
        from.done(Opcode::Write, 3);
        let sink = read.slice(..LEN).unwrap();
        from.qp.post_send(WorkRequest::read(4, &[sink], sent.remote_addr(0).unwrap())).unwrap();
        from.done(Opcode::Read, 4);
        for region in [sent, written, read] {
            assert!(region.to_vec().unwrap() == pattern(seed, LEN), "every byte arrives");
        }
    }
}

#[test]
fn devices_of_one_process_exchange_data_over_the_connection_manager() {
    let config = config("8");
    let (client, server) = (end(&config, "ironwarp2", By::Cm), end(&config, "ironwarp3", By::Cm));
    connect(&client, &server, "127.0.2.4:0".parse().unwrap());
    let Established { local, peer, .. } = client.qp.wait_connected(SOON).unwrap();
    assert_eq!((local.ip(), peer.ip()), (ip("127.0.2.3"), ip("127.0.2.4")), "each has its own address");
    exchange(&client, &server);
}

#[test]
fn devices_of_one_process_exchange_data_after_a_manual_connection() {
    let config = config("8");
    let (one, other) = (end(&config, "ironwarp2", By::Hand), end(&config, "ironwarp3", By::Hand));
    bring_up(&one, &BringUpOptions::new(), &other, "127.0.2.4");
    bring_up(&other, &BringUpOptions::new(), &one, "127.0.2.3");
    let Established { local, peer, .. } = one.qp.wait_connected(SOON).unwrap();
    assert_eq!((local.ip(), peer.ip()), (ip("127.0.2.3"), ip("127.0.2.4")), "each has its own address");
    other.qp.wait_connected(SOON).unwrap();
    exchange(&one, &other);
}

#[test]
fn a_manual_connection_uses_the_selected_port() {
    let config = config("2 ports=2");
    let (one, other) = (end(&config, "ironwarp0", By::Hand), end(&config, "ironwarp1", By::Hand));
    let missing =
        one.qp.bring_up(Remote { gid: gid("127.0.2.4"), qpn: other.qp.id() }, &BringUpOptions::new().port(3));
    assert!(matches!(missing, Err(BringUpError::NoSuchPort(3))), "{missing:?}");
    bring_up(&one, &BringUpOptions::new().port(2), &other, "127.0.2.4");
    bring_up(&other, &BringUpOptions::new().gid_index(0).port(2), &one, "127.0.2.2");
    let Established { local, peer, .. } = one.qp.wait_connected(SOON).unwrap();
    assert_eq!((local.ip(), peer.ip()), (ip("127.0.2.2"), ip("127.0.2.4")));
    exchange(&one, &other);
}

#[test]
fn an_adapter_has_the_gids_of_its_device() {
    let config = config("4 ports=2 numa=5,6; all name=host0");
    let devices = Adapter::devices(&config).unwrap();
    let names: Vec<_> = devices.iter().map(LogicalDevice::name).collect();
    assert_eq!(names, ["ironwarp0", "ironwarp1", "ironwarp2", "ironwarp3", "host0"]);
    let adapter = Adapter::builder().config(config.clone()).device("ironwarp1").open().unwrap();
    let gids: Vec<_> = adapter.gids().unwrap().into_iter().map(|entry| (entry.index, entry.gid)).collect();
    assert_eq!(gids, [(0, gid("127.0.2.3")), (0, gid("127.0.2.4"))]);
    let device = adapter.device();
    assert_eq!((device.name(), device.numa_node()), ("ironwarp1", Some(6)));
    for (port, at) in device.ports().iter().zip(["127.0.2.3", "127.0.2.4"]) {
        assert_eq!(port.gids().unwrap().iter().map(|entry| entry.gid).collect::<Vec<_>>(), [gid(at)]);
        assert!(port.is_active().unwrap());
    }
    assert_eq!(device.ports().iter().map(Port::number).collect::<Vec<_>>(), [1, 2]);
    let first = Adapter::open(config.clone()).unwrap();
    assert_eq!(first.device().name(), "ironwarp0");
    let error = Adapter::builder().config(config).device("mlx5_0").open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// The example of the module is tested.
#[test]
fn the_page_shows_the_example_of_the_module() {
    let (_, block) = include_str!("../../../docs/devices.md").split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let comment: String =
        block.lines().map(|line| format!("//! {line}").trim_end().to_owned() + "\n").collect();
    assert!(include_str!("../src/device.rs").contains(&comment), "docs/devices.md is out of date");
}

// --- Streams never cross ---

/// Creates a queue pair of ironwarp1 that expects one of ironwarp0, which then dials it at this address, and sends it a
/// message. Checks whether the message arrives.
fn dial(config: &Config, at: &str, arrives: bool) {
    let (dialler, target) = (end(config, "ironwarp0", By::Hand), end(config, "ironwarp1", By::Hand));
    let sink = target.region(&[0; 5], ALL);
    target.qp.post_receive(1, &[sink.slice(..).unwrap()]).unwrap();
    // ironwarp0 dials, because its address is smaller.
    bring_up(&target, &BringUpOptions::new(), &dialler, "127.0.2.1");
    bring_up(&dialler, &BringUpOptions::new(), &target, at);
    if arrives {
        dialler.qp.post_send(WorkRequest::send_inline(2, b"hello")).unwrap();
        dialler.done(Opcode::Send, 2);
        target.done(Opcode::Receive, 1);
        assert_eq!(sink.to_vec().unwrap(), b"hello");
    } else {
        dialler.qp.set_retries(Retries::default().timeout(1)); // 5 s, the minimum
        dialler.qp.post_send(WorkRequest::send_inline(2, b"hello")).unwrap();
        dialler.failed(Opcode::Send, 2, Status::RetryExceeded);
        let connected = target.qp.wait_connected(Duration::ZERO);
        assert!(matches!(connected, Err(ConnectError::TimedOut)), "{connected:?}");
        assert_eq!(sink.to_vec().unwrap(), [0; 5]);
    }
}

#[test]
fn a_queue_pair_is_not_reached_at_the_address_of_another_device() {
    let config = config("8");
    dial(&config, "127.0.2.2", true);
    dial(&config, "127.0.2.3", false);
}

/// With `listen_everywhere`, the socket of the queue pair does accept connections to addresses of other devices.
#[test]
fn a_queue_pair_that_listens_everywhere_is_reached_at_all_addresses_of_its_device_only() {
    let config = config("3 ports=2").listen_everywhere(true);
    dial(&config, "127.0.2.3", true); // its own GID
    dial(&config, "127.0.2.4", true); // the other port of its device
    dial(&config, "127.0.2.5", false);
}

#[test]
fn a_listener_at_the_wildcard_address_is_reached_at_the_addresses_of_its_device_only() {
    for (devices, own, others) in [
        ("4 ports=2", &["127.0.2.3", "127.0.2.4"][..], &["127.0.2.2", "127.0.2.5", "127.0.0.1"][..]),
        ("4", &["127.0.2.2"], &["127.0.2.1", "127.0.2.3", "127.0.0.1"]),
    ] {
        let config = config(devices);
        let server = end(&config, "ironwarp1", By::Cm);
        let listener = server.adapter.listen("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for at in others {
            let client = end(&config, "ironwarp0", By::Cm);
            let refused = client.qp.connect(SocketAddr::new(ip(at), port), &ConnectOptions::new());
            assert!(matches!(refused, Err(ConnectError::System(_) | ConnectError::Closed)), "{refused:?}");
            let accepted = listener.accept(Duration::ZERO);
            assert!(matches!(accepted, Err(WaitError::TimedOut)), "{at}: {accepted:?}");
        }
        for at in own {
            let client = end(&config, "ironwarp0", By::Cm);
            client.qp.start_connect(SocketAddr::new(ip(at), port), &ConnectOptions::new()).unwrap();
            let incoming = listener.accept(SOON).unwrap();
            let qp = server.domain.queue_pair(&server.cq).create().unwrap();
            incoming.accept(&qp, &AcceptOptions::new()).unwrap();
            assert_eq!(client.qp.wait_connected(SOON).unwrap().peer.ip(), ip(at));
        }
    }
}

#[test]
fn a_device_does_not_use_the_addresses_of_another() {
    let config = config("8");
    let (two, three) = (end(&config, "ironwarp2", By::Cm), end(&config, "ironwarp3", By::Cm));
    let listener = three.adapter.listen("127.0.2.4:0".parse().unwrap()).unwrap();
    for from in ["127.0.2.4:0", "127.0.0.1:0"] {
        let options = ConnectOptions::new().from_addr(from.parse().unwrap());
        let qp = two.domain.queue_pair(&two.cq).create().unwrap();
        let error = qp.start_connect(listener.local_addr().unwrap(), &options).unwrap_err();
        let ConnectError::System(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{from}");
        let qp = two.domain.queue_pair(&two.cq).create().unwrap();
        let own = ConnectOptions::new().from_addr("127.0.2.3:0".parse().unwrap());
        qp.start_connect(listener.local_addr().unwrap(), &own).unwrap();
        assert_eq!(listener.accept(SOON).unwrap().peer_addr().ip(), ip("127.0.2.3"));
    }
    let error = two.adapter.listen("127.0.2.4:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    let by_hand = end(&config, "ironwarp2", By::Hand);
    let options = BringUpOptions::new().gid(gid("127.0.2.4"));
    let error = by_hand.qp.bring_up(Remote { gid: gid("127.0.2.1"), qpn: by_hand.qp.id() }, &options);
    assert!(matches!(error, Err(BringUpError::OtherDevice(_))), "{error:?}");
}

#[test]
fn a_datagram_queue_pair_is_bound_at_the_addresses_of_its_device_only() {
    let config = config("4 ports=2");
    let [one, two] = ["ironwarp1", "ironwarp2"].map(|name| end(&config, name, By::Cm));
    let create = |end: &End| end.domain.datagram_queue_pair(&end.cq).create().unwrap();
    let (from, to) = (create(&one), create(&two));
    assert_eq!(from.gids(), [gid("127.0.2.3"), gid("127.0.2.4")]);
    assert_eq!(to.gids(), [gid("127.0.2.5"), gid("127.0.2.6")]);
    for other in ["127.0.2.5", "127.0.0.1"] {
        let builder = one.domain.datagram_queue_pair(&one.cq).addresses(&[ip("127.0.2.3"), ip(other)]);
        let Err(CreateError::NoNumber(error)) = builder.create() else { panic!("bound at {other}") };
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }
    let sink = two.domain.register(Buffer::new(Grh::LEN + 1000).unwrap(), ALL).unwrap();
    let source = one.region(&pattern(3, 1000), ALL);
    to.post_receive(1, &[sink.slice(..).unwrap()]).unwrap();
    let address = from.address_handle(gid("127.0.2.6")).unwrap();
    let destination = Destination { address, qpn: to.qpn(), qkey: 0 };
    from.post_send(DatagramRequest::send(2, &[source.slice(..).unwrap()], destination)).unwrap();
    one.done(Opcode::Send, 2);
    two.done(Opcode::Receive, 1);
    assert!(sink.to_vec().unwrap()[Grh::LEN..] == pattern(3, 1000), "every byte arrives");
}
