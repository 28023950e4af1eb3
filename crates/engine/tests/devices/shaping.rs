//! Devices with a rate or a delay, over TCP and shared memory.

use crate::common::{Connected, config, connect, devices, exchange, side};
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_testkit::engine::{Side, canaries, completions};
use std::time::{Duration, Instant};

/// 40 MB/s, and the burst of 2 ms.
const RATE: &str = "320m";
const BYTES_PER_SECOND: f64 = 40_000_000.0;
const BURST: f64 = 80_000.0;

/// Number of bytes that the connections of a test move in all: 0.4 s at the rate.
const TOTAL: usize = 16_000_000;
const MESSAGE: usize = 1_000_000;

/// Moves `TOTAL` bytes with Writes over several connections at once, and returns how long that took. Half of the memory
/// of the client is sent again and again. The last Write of each connection leaves the bytes that are verified.
fn move_all(client: &Side, server: &Side, connections: &[Connected]) -> Duration {
    let began = Instant::now();
    for number in 0..TOTAL / MESSAGE {
        let pair = &connections[number % connections.len()].client;
        let request =
            client.request(7, Operation::Write(server.remote_addr()), u32::try_from(MESSAGE).unwrap());
        pair.post_send([request]).unwrap();
    }
    for completion in completions(&client.cq, TOTAL / MESSAGE, Duration::from_secs(60)) {
        assert_eq!(completion.status, Status::Success);
    }
    began.elapsed()
}

/// Tests a rate of the server's or the client's device with this many connections.
fn check_rate(test: &str, limited: usize, shm: bool, count: usize) {
    let mut groups = ["1", "1"].map(str::to_owned);
    groups[limited] += &format!(" rate={RATE}");
    let config = config(test, &groups.join("; "), shm);
    let devices = devices(&config);
    let (mut client, server) = (side(&config, &devices[0], MESSAGE), side(&config, &devices[1], MESSAGE));
    let connections: Vec<Connected> = (0..count).map(|_| connect(&client, &server)).collect();
    client.memory.copy_from_slice(&canaries(MESSAGE));
    let time = move_all(&client, &server, &connections).as_secs_f64();
    assert!(server.memory == client.memory);
    let least = (TOTAL as f64 - BURST) / BYTES_PER_SECOND;
    assert!((least..20.0 * least).contains(&time), "{time} s, expected at least {least} s");
}

#[test]
fn a_rate_limits_what_is_sent_by_tcp() {
    check_rate("sendrate", 0, false, 1);
}

#[test]
fn a_rate_limits_what_is_sent_by_shared_memory() {
    check_rate("sendrate", 0, true, 1);
}

#[test]
fn a_rate_limits_what_is_received_by_tcp() {
    check_rate("recvrate", 1, false, 1);
}

#[test]
fn a_rate_limits_what_is_received_by_shared_memory() {
    check_rate("recvrate", 1, true, 1);
}

#[test]
fn all_connections_of_a_device_share_its_rate() {
    check_rate("sharedrate", 0, false, 4);
    check_rate("sharedrate", 1, true, 4);
}

/// The rate belongs to the device, not to the adapters that have it open.
#[test]
fn all_adapters_of_a_device_share_its_rate() {
    let config = config("twoadapters", &format!("1 rate={RATE}; 1"), false);
    let devices = devices(&config);
    let server = side(&config, &devices[1], MESSAGE);
    let clients = [(); 2].map(|()| side(&config, &devices[0], MESSAGE));
    let connections = clients.each_ref().map(|client| connect(client, &server));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (client, connection) in clients.iter().zip(connections) {
            let server = &server;
            scope.spawn(move || move_all(client, server, &[connection]));
        }
    });
    let (time, least) = (began.elapsed().as_secs_f64(), (2.0 * TOTAL as f64 - BURST) / BYTES_PER_SECOND);
    assert!((least..20.0 * least).contains(&time), "{time} s, expected at least {least} s");
}

/// A round trip takes the delays of both devices at least. The throughput does not depend on them.
fn check_delay(shm: bool) {
    const DELAY: Duration = Duration::from_millis(5);
    const ROUNDS: u32 = 10;
    let config = config("delayed", "2 delay=5ms", shm);
    let devices = devices(&config);
    let (mut client, server) = (side(&config, &devices[0], MESSAGE), side(&config, &devices[1], MESSAGE));
    let connection = connect(&client, &server);
    let began = Instant::now();
    (0..ROUNDS).for_each(|_| exchange(&client, &server, &connection));
    let time = began.elapsed();
    assert!(time >= ROUNDS * 2 * DELAY, "{time:?}");
    client.memory.copy_from_slice(&canaries(MESSAGE));
    let time = move_all(&client, &server, &[connection]);
    assert!(server.memory == client.memory);
    // With the window of a channel in shared memory on the way at a time, it would take 64 delays, 0.3 s.
    assert!(time >= 2 * DELAY && time < Duration::from_secs(3), "{time:?}");
}

#[test]
fn a_delay_adds_to_the_latency_of_tcp() {
    check_delay(false);
}

#[test]
fn a_delay_adds_to_the_latency_of_shared_memory() {
    check_delay(true);
}

/// With both, at a rate at which a delay's worth of bytes exceeds every buffer in between.
#[test]
fn a_device_may_have_both() {
    let config = config("both", &format!("2 rate={RATE} delay=20ms"), false);
    let devices = devices(&config);
    let (mut client, server) = (side(&config, &devices[0], MESSAGE), side(&config, &devices[1], MESSAGE));
    let connection = connect(&client, &server);
    client.memory.copy_from_slice(&canaries(MESSAGE));
    let time = move_all(&client, &server, &[connection]).as_secs_f64();
    assert!(server.memory == client.memory);
    let least = (TOTAL as f64 - BURST) / BYTES_PER_SECOND;
    assert!((least..20.0 * least).contains(&time), "{time} s, expected at least {least} s");
}
