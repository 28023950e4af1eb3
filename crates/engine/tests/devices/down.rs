//! Ports that go down: what both ends see, over TCP and shared memory.

use crate::common::{Connected, TIMEOUT, address, config, connect, connect_from, devices, exchange, side};
use ironwarp_engine::gid::Gid;
use ironwarp_engine::logical::{LogicalDevice, PortChange, PortWatcher};
use ironwarp_engine::status;
use ironwarp_engine::{
    BringUpOptions, ConnectError, ConnectOptions, DatagramQueuePair, DatagramQueuePairAttributes, Engine,
    Local, QueuePair, QueuePairAttributes, Remote,
};
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::qp::{Completes, Retries, State};
use ironwarp_rnic::queue::{Completion, Opcode, Operation, ReceiveRequest, Status};
use ironwarp_testkit::child::{Partner, as_root};
use ironwarp_testkit::engine::{SEND, Side, canaries, completions};
use ironwarp_testkit::wait::until;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// How long the requests of these tests wait for the peer: the least that the adapter grants.
const RETRY_TIME: Duration = Duration::from_secs(5);
/// A request fails this much later at most, on a busy machine.
const SLACK: Duration = Duration::from_secs(15);

/// Has requests of both ends fail after [`RETRY_TIME`].
fn limit_retries(pairs: &Connected) {
    for pair in [&pairs.client, &pairs.server] {
        pair.set_retries(Retries::default().timeout(1).retry_count(0));
        assert_eq!(pair.qp().retries().response_timeout(), Some(RETRY_TIME));
    }
}

/// Waits for the next completion. Returns it, and the time since `began`.
fn next(side: &Side, began: Instant) -> (Completion, Duration) {
    (side.next(), began.elapsed())
}

fn check_exceeded((completion, after): (Completion, Duration)) {
    assert_eq!(completion.status, Status::RetryExceeded, "{completion:?} after {after:?}");
    assert!(after >= RETRY_TIME && after < RETRY_TIME + SLACK, "{after:?}");
}

/// The requests of both ends fail when their retries are exceeded. An end without requests sees nothing.
fn check_exceeded_at_both_ends(shm: bool) {
    let config = config("exceeded", "2", shm);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let (busy, idle) = (connect(&client, &server), connect(&client, &server));
    [&busy, &idle].into_iter().for_each(limit_retries);
    assert_eq!(devices[0].set_port(1, false), Ok(true));
    assert_eq!(devices[0].set_port(1, false), Ok(false));
    let began = Instant::now();
    busy.client.post_send([client.request(1, SEND, 64)]).unwrap();
    busy.server.post_send([server.request(2, SEND, 64)]).unwrap();
    std::thread::scope(|scope| {
        for side in [&client, &server] {
            scope.spawn(move || check_exceeded(next(side, began)));
        }
    });
    for pair in [&busy.client, &busy.server] {
        assert!(pair.qp().error().is_some());
    }
    for pair in [&idle.client, &idle.server] {
        assert_eq!(pair.qp().error(), None, "it had no request");
    }
    assert_eq!(devices[0].set_port(1, true), Ok(true));
    exchange(&client, &server, &idle);
    exchange(&client, &server, &connect(&client, &server));
}

#[test]
fn requests_of_both_ends_fail_over_tcp() {
    check_exceeded_at_both_ends(false);
}

#[test]
fn requests_of_both_ends_fail_over_shared_memory() {
    check_exceeded_at_both_ends(true);
}

/// The device with all addresses has one port, which both ends of these connections use.
#[test]
fn the_default_device_goes_down_as_a_whole() {
    let config = config("whole", "all", false);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[0], 4096));
    let pairs = connect(&client, &server);
    devices[0].set_port(1, false).unwrap();
    pairs.client.post_send([client.request(1, SEND, 64)]).unwrap();
    assert!(!server.cq.wait(Some(Duration::from_millis(100))).unwrap());
    devices[0].set_port(1, true).unwrap();
    server.receive(&pairs.server, 2, 0, 64);
    assert_eq!([server.next().status, client.next().status], [Status::Success; 2]);
    limit_retries(&pairs);
    devices[0].set_port(1, false).unwrap();
    let began = Instant::now();
    pairs.client.post_send([client.request(3, SEND, 64)]).unwrap();
    check_exceeded(next(&client, began));
    devices[0].set_port(1, true).unwrap();
}

/// A queue pair that is closed while its port is down: its peer learns nothing before the port is up.
#[test]
fn a_close_waits_for_the_port() {
    let config = config("closing", "2", false).close(Duration::from_millis(200));
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let [closed, reset] = [(); 2].map(|()| connect(&client, &server));
    devices[0].set_port(1, false).unwrap();
    closed.client.disconnect();
    assert!(closed.client.wait_closed(TIMEOUT), "the time of the settings is over");
    reset.client.modify(State::Reset).unwrap();
    drop(reset.client);
    for pair in [&closed.server, &reset.server] {
        assert_eq!(pair.qp().error(), None);
        assert!(!pair.wait_closed(Duration::from_millis(50)));
    }
    devices[0].set_port(1, true).unwrap();
    for pair in [&closed.server, &reset.server] {
        assert!(pair.wait_closed(TIMEOUT));
    }
}

/// A port that is up again in time loses nothing: Writes and Sends in both directions go on.
fn check_interruption(shm: bool) {
    const LEN: usize = 1 << 20;
    const ROUNDS: u64 = 20;
    let config = config("interrupted", "2", shm);
    let devices = devices(&config);
    let (mut client, mut server) = (side(&config, &devices[0], 2 * LEN), side(&config, &devices[1], 2 * LEN));
    let pairs = connect(&client, &server);
    limit_retries(&pairs);
    client.memory[..LEN].copy_from_slice(&canaries(LEN));
    server.memory[..LEN].iter_mut().zip(canaries(LEN)).for_each(|(to, byte)| *to = !byte);
    for down in [0, 1, 0] {
        let len = u32::try_from(LEN).unwrap();
        for (from, to, pair) in [(&client, &server, &pairs.client), (&server, &client, &pairs.server)] {
            let mut other_half = to.remote_addr();
            other_half.offset += LEN as u64;
            for id in 0..ROUNDS {
                pair.post_send([from.request(id, Operation::Write(other_half), len)]).unwrap();
            }
        }
        assert_eq!(devices[down].set_port(1, false), Ok(true)); // in the middle of a message, usually
        assert!(!devices[down].port(1).unwrap().is_active().unwrap());
        // Both ends still move what is under way, and nothing more.
        std::thread::sleep(Duration::from_millis(100));
        let wakes = || [&client, &server].map(|side| side.engine.statistics().lane_wakes);
        let before = wakes();
        std::thread::sleep(Duration::from_millis(300));
        for (before, now) in before.into_iter().zip(wakes()) {
            assert!(now - before < 50, "a lane woke {} times", now - before);
        }
        assert_eq!(devices[down].set_port(1, true), Ok(true));
        for side in [&client, &server] {
            for completion in completions(&side.cq, usize::try_from(ROUNDS).unwrap(), TIMEOUT) {
                assert_eq!(completion.status, Status::Success, "{completion:?}");
            }
        }
        assert!(client.memory[..LEN] == server.memory[LEN..] && server.memory[..LEN] == client.memory[LEN..]);
        [&mut client, &mut server].into_iter().for_each(|side| side.memory[LEN..].fill(0));
        exchange(&client, &server, &pairs);
        client.memory[..LEN].copy_from_slice(&canaries(LEN));
    }
}

#[test]
fn a_short_interruption_loses_nothing_over_tcp() {
    check_interruption(false);
}

#[test]
fn a_short_interruption_loses_nothing_over_shared_memory() {
    check_interruption(true);
}

/// A request that is posted while the port is down is sent when it is up, and not before.
#[test]
fn nothing_is_sent_while_a_port_is_down() {
    let config = config("silent", "2", false);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let pairs = connect(&client, &server);
    devices[0].set_port(1, false).unwrap();
    server.receive(&pairs.server, 1, 0, 64);
    pairs.client.post_send([client.request(2, SEND, 64)]).unwrap();
    assert!(!server.cq.wait(Some(Duration::from_millis(300))).unwrap());
    devices[0].set_port(1, true).unwrap();
    assert_eq!([server.next().status, client.next().status], [Status::Success; 2]);
}

#[test]
fn new_connections_fail_while_a_port_is_down() {
    let config = config("refused", "2", false).startup(Duration::from_secs(1));
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let listener = server.engine.listen(address(&devices[1], 1)).unwrap();
    let to = listener.local_addr().unwrap();
    let dial = || {
        let pair = client.pair(4, Completes::WhenAcknowledged);
        client.engine.connect(&pair, to, &ConnectOptions::default()).map(|()| pair)
    };
    devices[0].set_port(1, false).unwrap();
    let error = dial().unwrap_err();
    assert!(
        matches!(&error, ConnectError::System(error) if error.kind() == ErrorKind::NetworkDown),
        "{error}"
    );
    assert!(error.to_string().contains("port 1 of device refusedt0 is down"), "{error}");
    devices[0].set_port(1, true).unwrap();
    devices[1].set_port(1, false).unwrap();
    // The listener learns of it on its lane: connections that come before are reset.
    let error = dial().unwrap().wait_connected(TIMEOUT).unwrap_err();
    assert!(
        matches!(error, ConnectError::TimedOut | ConnectError::System(_) | ConnectError::Closed),
        "{error}"
    );
    devices[1].set_port(1, true).unwrap();
    exchange(&client, &server, &connect(&client, &server));
}

/// A port that is down when an adapter opens the device, and when a connection starts.
#[test]
fn later_adapters_find_a_port_down() {
    let config = config("later", "2", false).startup(Duration::from_secs(1));
    let devices = devices(&config);
    devices[1].set_port(1, false).unwrap();
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let listener = server.engine.listen(address(&devices[1], 1)).unwrap();
    let pair = client.pair(4, Completes::WhenAcknowledged);
    client.engine.connect(&pair, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let error = pair.wait_connected(TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut), "{error}");
    devices[1].set_port(1, true).unwrap();
    exchange(&client, &server, &connect(&client, &server));
}

#[derive(Debug)]
struct Teller(Mutex<mpsc::Sender<(u8, PortChange)>>);

impl PortWatcher for Teller {
    fn on_port_change(&self, port: u8, change: PortChange) {
        let _ = self.0.lock().unwrap().send((port, change));
    }
}

#[test]
fn events_are_reported_once_and_in_order() {
    let config = config("events", "1 ports=2", false);
    let devices = devices(&config);
    let engines = [(); 2].map(|()| side(&config, &devices[0], 4096));
    let changes = engines.each_ref().map(|side| {
        let (sender, changes) = mpsc::channel();
        side.engine.watch_port(Arc::new(Teller(Mutex::new(sender)))).unwrap();
        changes
    });
    for (port, up) in [(2, false), (2, false), (1, false), (2, true), (1, true), (1, true)] {
        devices[0].set_port(port, up).unwrap();
        assert_eq!(devices[0].port(port).unwrap().is_active().unwrap(), up);
    }
    let error = devices[0].set_port(3, false).unwrap_err();
    assert_eq!(error.to_string(), "no port 3: device eventst0 has 2");
    for changes in changes {
        let seen: Vec<_> = changes.try_iter().collect();
        let expected = [
            (2, PortChange::Error),
            (1, PortChange::Error),
            (2, PortChange::Active),
            (1, PortChange::Active),
        ];
        assert_eq!(seen, expected);
    }
}

#[test]
fn ports_of_a_device_are_independent() {
    let config = config("independent", "1 ports=2; 1", false);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let on_port = [1, 2].map(|port| connect_from(&client, address(&devices[0], port), &server));
    devices[0].set_port(2, false).unwrap();
    exchange(&client, &server, &on_port[0]);
    server.receive(&on_port[1].server, 1, 0, 64);
    on_port[1].client.post_send([client.request(2, SEND, 64)]).unwrap();
    assert!(!server.cq.wait(Some(Duration::from_millis(300))).unwrap());
    devices[0].set_port(2, true).unwrap();
    assert_eq!([server.next().status, client.next().status], [Status::Success; 2]);
}

/// Creates a manually connected queue pair with the shortest retries, not connected yet.
fn manual_pair(side: &Side) -> Arc<QueuePair> {
    let attributes = QueuePairAttributes {
        completes: Completes::WhenAcknowledged,
        manual: true,
        ..QueuePairAttributes::new(side.domain, &side.cq)
    };
    let pair = side.engine.create_qp(attributes).unwrap();
    pair.set_retries(Retries::default().timeout(1).retry_count(0));
    pair.modify(State::Init).unwrap();
    pair
}

/// Begins to connect two queue pairs manually, and lets them send.
fn bring_up(sides: [&Side; 2], pairs: [&Arc<QueuePair>; 2]) {
    let gids = sides.map(|side| Gid::from(address(side.engine.logical(), 1).ip()));
    for (end, peer) in [(0, 1), (1, 0)] {
        let options = BringUpOptions { local: Local::Gid(gids[end]), ..BringUpOptions::default() };
        let remote = Remote { gid: gids[peer], qpn: pairs[peer].id() };
        sides[end].engine.bring_up(pairs[end], remote, &options).unwrap();
        pairs[end].modify(State::ReadyToSend).unwrap();
    }
}

/// Queue pairs that are connected manually while a port is down are connected when it is up, or else their requests
/// fail. The end with the smaller GID dials, so that both kinds of ends are tested.
#[test]
fn manual_connections_wait_for_the_port() {
    let config = config("manual", "2", false);
    let devices = devices(&config);
    let (one, other) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    for down in [0, 1] {
        let pairs = [manual_pair(&one), manual_pair(&other)];
        devices[down].set_port(1, false).unwrap();
        bring_up([&one, &other], pairs.each_ref());
        other.receive(&pairs[1], 1, 0, 64);
        pairs[0].post_send([one.request(2, SEND, 64)]).unwrap();
        assert!(!other.cq.wait(Some(Duration::from_millis(100))).unwrap());
        devices[down].set_port(1, true).unwrap();
        one.succeeds(Opcode::Send, 2);
        other.succeeds(Opcode::Receive, 1);
    }
    let pairs = [manual_pair(&one), manual_pair(&other)];
    devices[0].set_port(1, false).unwrap();
    bring_up([&one, &other], pairs.each_ref());
    let began = Instant::now();
    pairs[0].post_send([one.request(3, SEND, 64)]).unwrap();
    pairs[1].post_send([other.request(4, SEND, 64)]).unwrap();
    [&one, &other].into_iter().for_each(|side| check_exceeded(next(side, began)));
    devices[0].set_port(1, true).unwrap();
}

/// A connected manual pair: the end whose port is up is not told that the other has given up.
#[test]
fn manual_connections_time_out() {
    let config = config("manualdown", "2", true);
    let devices = devices(&config);
    let (one, other) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let pairs = [manual_pair(&one), manual_pair(&other)];
    bring_up([&one, &other], pairs.each_ref());
    other.receive(&pairs[1], 1, 0, 64);
    pairs[0].post_send([one.request(2, SEND, 64)]).unwrap();
    one.succeeds(Opcode::Send, 2);
    other.succeeds(Opcode::Receive, 1);
    devices[1].set_port(1, false).unwrap();
    let began = Instant::now();
    pairs[1].post_send([other.request(3, SEND, 64)]).unwrap();
    check_exceeded(next(&other, began));
    assert_eq!(pairs[0].qp().error(), None, "it has no request");
    let began = Instant::now();
    pairs[0].post_send([one.request(4, SEND, 64)]).unwrap();
    check_exceeded(next(&one, began));
    devices[1].set_port(1, true).unwrap();
}

const QKEY: u32 = 7;

/// Creates a connectionless queue pair at port 1 of the device.
fn datagram_pair(side: &Side, device: &LogicalDevice) -> Arc<DatagramQueuePair> {
    let attributes =
        DatagramQueuePairAttributes { qkey: QKEY, ..DatagramQueuePairAttributes::new(side.domain, &side.cq) };
    let udp = side.engine.bind_datagram_port(Some(&[address(device, 1).ip()])).unwrap();
    let pair = side.engine.create_datagram_qp(&attributes, udp).unwrap();
    for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
        pair.qp().modify(state).unwrap();
    }
    pair
}

#[test]
fn datagrams_are_lost_while_a_port_is_down() {
    let config = config("datagrams", "2", false);
    let devices = devices(&config);
    let sides = [0, 1].map(|at| side(&config, &devices[at], 4096));
    let pairs = [0, 1].map(|at| datagram_pair(&sides[at], &devices[at]));
    let gids = [0, 1].map(|at| Gid::from(address(&devices[at], 1).ip()));
    let send = |id: u64| {
        let address = AddressHandle::new(gids[0], gids[1]);
        let destination = Destination { address, qpn: pairs[1].id(), qkey: QKEY };
        let request = sides[0].request(id, SEND, 64);
        pairs[0].qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
        sides[0].succeeds(Opcode::Send, id); // a lost one, too
    };
    // 40 bytes come before the data (the global route header).
    let receive = |id| {
        let buffers = sides[1].sge(0, 128).into();
        pairs[1].qp().post_receive(ReceiveRequest { id, buffers }).unwrap();
    };
    receive(1);
    for down in [0, 1] {
        devices[down].set_port(1, false).unwrap();
        send(2);
        assert!(!sides[1].cq.wait(Some(Duration::from_millis(100))).unwrap());
        devices[down].set_port(1, true).unwrap();
        send(3);
        sides[1].succeeds(Opcode::Receive, 1);
        receive(1);
    }
    devices[1].set_port(1, false).unwrap();
    let late = datagram_pair(&sides[1], &devices[1]);
    let address = AddressHandle::new(gids[0], gids[1]);
    let destination = Destination { address, qpn: late.id(), qkey: QKEY };
    let request = sides[0].request(4, SEND, 64);
    pairs[0].qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
    sides[0].succeeds(Opcode::Send, 4);
    late.qp().post_receive(ReceiveRequest { id: 5, buffers: sides[1].sge(0, 128).into() }).unwrap();
    assert!(!sides[1].cq.wait(Some(Duration::from_millis(100))).unwrap());
    devices[1].set_port(1, true).unwrap();
}

/// Returns the names of the status sockets of this process.
fn status_sockets() -> Vec<String> {
    let prefix = format!("ironwarp/{}/", std::process::id());
    status::adapters().unwrap().into_iter().filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn a_port_is_taken_down_from_outside() {
    let config = config("outside", "2 ports=2", false);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let pairs = connect(&client, &server);
    // Any adapter of the process will do. Its lane creates the socket soon after it has started.
    until(|| !status_sockets().is_empty());
    let name = status_sockets().remove(0);
    let set =
        |device, port, up| status::set_port(&name, device, port, up).map(|set| (set.ports, set.changed));
    assert_eq!(set("outsidet1", Some(1), false).unwrap(), (1, 1));
    assert!(devices[1].port(1).unwrap().is_down() && !devices[1].port(2).unwrap().is_down());
    server.receive(&pairs.server, 1, 0, 64);
    pairs.client.post_send([client.request(2, SEND, 64)]).unwrap();
    assert!(!server.cq.wait(Some(Duration::from_millis(100))).unwrap());
    assert_eq!(set("outsidet1", None, false).unwrap(), (2, 1));
    let states = |device: &str| -> Vec<String> {
        let adapters =
            status_sockets().into_iter().filter_map(|name| status::request(&name, None).ok()?.read().ok());
        let rows =
            adapters.map(|adapter| adapter.rows).find(|rows| rows[0].text("device") == device).unwrap();
        let ports = rows.iter().filter(|row| row.kind() == "port");
        ports.map(|row| ["number", "state", "address"].map(|field| row.text(field)).join(" ")).collect()
    };
    assert_eq!(states("outsidet0"), ["1 active 127.0.2.1", "2 active 127.0.2.2"]);
    assert_eq!(states("outsidet1"), ["1 down 127.0.2.3", "2 down 127.0.2.4"]);
    assert_eq!(set("outsidet1", None, true).unwrap(), (2, 2));
    assert_eq!([server.next().status, client.next().status], [Status::Success; 2]);
    assert_eq!(set("outsidet1", None, true).unwrap(), (2, 0));
    let error = set("outsidet2", None, false).unwrap_err();
    assert_eq!(error.to_string(), "the process has no device `outsidet2`");
    let error = set("outsidet1", Some(3), false).unwrap_err();
    assert_eq!(error.to_string(), "no port 3: device outsidet1 has 2");
}

#[test]
fn a_plan_takes_ports_down_and_up() {
    let plan = "planst1:2 down@2s up@2500ms; planst0 down@2200ms";
    let config = config("plans", "2 ports=2", false).port_plan(plan.parse().unwrap());
    let devices = devices(&config);
    let watch = |side: &Side| {
        let (sender, changes) = mpsc::channel();
        side.engine.watch_port(Arc::new(Teller(Mutex::new(sender)))).unwrap();
        changes
    };
    let began = Instant::now();
    // The second adapter of the device does not begin the plan again.
    let sides = [0, 1, 1].map(|at| side(&config, &devices[at], 4096));
    let changes = sides.each_ref().map(watch);
    let next = |at: usize| changes[at].recv_timeout(TIMEOUT).unwrap();
    for adapter in [1, 2] {
        assert_eq!(next(adapter), (2, PortChange::Error));
        assert!(began.elapsed() >= Duration::from_secs(2));
        assert_eq!(next(adapter), (2, PortChange::Active));
        assert!(began.elapsed() >= Duration::from_millis(2500));
    }
    assert_eq!([next(0), next(0)], [(1, PortChange::Error), (2, PortChange::Error)]);
    assert!(changes.iter().all(|changes| changes.try_recv().is_err()));
    let wrong = config.port_plan("planst7 down@1s".parse().unwrap());
    let error = Engine::open(wrong, &devices[0]).unwrap_err();
    assert!(error.to_string().starts_with("no device `planst7`"), "{error}");
}

/// Asks a process to take a port down. Prints the number of bytes of the answer.
const STRANGER: &str = r#"
import socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.bind("\0ironwarp-ask/1/1/" + sys.argv[2])
client.connect("\0" + sys.argv[1])
print(len(client.recv(1)), flush=True)
"#;

#[test]
fn another_user_cannot_take_a_port_down() {
    if !as_root("down::another_user_cannot_take_a_port_down") {
        return;
    }
    let config = config("foreign", "2", false);
    let devices = devices(&config);
    let (client, server) = (side(&config, &devices[0], 4096), side(&config, &devices[1], 4096));
    let _pairs = connect(&client, &server);
    until(|| !status_sockets().is_empty());
    let ask = |user| {
        let mut command = Command::new("python3");
        command.args(["-c", STRANGER, &status_sockets()[0], "port foreignt0 down"]).uid(user).gid(user);
        Partner::start(command).line()
    };
    assert_eq!(ask(65534), "0");
    assert!(!devices[0].port(1).unwrap().is_down());
    assert_eq!(ask(0), "1");
    assert!(devices[0].port(1).unwrap().is_down());
    devices[0].set_port(1, true).unwrap(); // the adapters would wait for the port to close their connections
}
