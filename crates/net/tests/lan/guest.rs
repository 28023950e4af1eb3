//! A virtual machine on one host and a container on the other: the siw guest of this repository under QEMU's emulation, with
//! `-netdev stream` at its host. Ignored by default; `cargo xtask interop` builds the guest and runs these tests.

use crate::agent::{is_agent, ping_from, stream};
use crate::network::Network;
use ironwarp_testkit::child::{Partner, in_network_with};
use ironwarp_testkit::wait::until;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a stream: the machine is emulated.
const SHORT: usize = 16 << 20;
/// Bytes that show that a stream is under way.
const UNDER_WAY: u64 = 1 << 20;
/// Longest frame of the LAN with its virtio header. The average of super-packets is above it.
const FRAME: u64 = 1526;
/// Duration of a pause.
const PAUSE: Duration = Duration::from_secs(2);

/// Commands of the guest: it pings the container until there is an answer.
const PING: &str = "ip addr add 10.5.0.1/24 dev eth0 && ping -c 1 -w 20 10.5.0.2 || exit 1\n";
/// Further commands: it receives a stream.
const RECEIVE: &str = "
nc -l -p 7000 </dev/null >/tmp/stream &
until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1B58 0*:0000 0A'; do :; done
echo GUEST LISTENS
wait $!
echo GUEST RECEIVED
";
/// What the container connects to then.
const GUEST: &str = "10.5.0.1:7000";

/// Boots a guest that runs commands.
fn boot(network: &Network, mac: &str, commands: &str) -> Partner {
    let guests = std::env::var_os("IRONWARP_GUESTS").expect("IRONWARP_GUESTS: run `cargo xtask interop`");
    let mut boot = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/boot"));
    boot.arg(PathBuf::from(guests).join("plain")).arg(commands).env("GUEST_MAC", mac);
    boot.env("GUEST_STREAM", network.directory.path("stream"));
    boot.env("GUEST_QMP", network.directory.path("monitor"));
    let mut guest = Partner::start(boot);
    guest.wait_for("GUEST READY");
    guest
}

/// Starts to send a stream to the guest, and waits until super-packets are on their way to it.
fn start_sending(network: &Network, sender: &mut Partner) {
    let before = network.field("left", "bytes_out");
    sender.tell(&format!("send {GUEST} {SHORT}"));
    until(|| network.field("left", "bytes_out") > before + UNDER_WAY);
    let average = network.field("left", "bytes_out") / network.field("left", "frames_out");
    assert!(average > FRAME, "frames of {average} bytes on average");
}

/// Sends a command to the monitor of QEMU, and waits for its answer.
fn ask(monitor: &mut BufReader<UnixStream>, command: &str) {
    writeln!(monitor.get_mut(), r#"{{"execute":"{command}"}}"#).unwrap();
    let mut lines = monitor.lines().map(Result::unwrap);
    let answer = lines.find(|line| line.contains(r#""return""#) || line.contains(r#""error""#)).unwrap();
    assert!(answer.contains(r#""return""#), "{command}: {answer}");
}

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn a_virtual_machine_that_pauses_exchanges_streams_with_a_container() {
    let test = "guest::a_virtual_machine_that_pauses_exchanges_streams_with_a_container";
    if is_agent() || !in_network_with(test, &["--ignored"]) {
        return;
    }
    let network = Network::start(3);
    let (_left, mac) = network.attach_stream("left");
    let _others = [2, 3].map(|number| network.attach(number, &[]));
    let [_, right, middle] = &network.containers[..] else { unreachable!("three containers") };
    let (mut sender, mut receiver, mut other) = (right.agent(test), right.agent(test), middle.agent(test));
    receiver.tell(&format!("receive 10.5.0.2 {SHORT}"));
    let target = receiver.wait_for("listening at ");
    let (address, port) = target.split_once(':').unwrap();
    // It sends back what it has received, so the container verifies every byte of both directions.
    let mut guest = boot(&network, &mac, &format!("{PING}{RECEIVE}nc {address} {port} </tmp/stream\n"));
    guest.wait_for("GUEST LISTENS");
    let mut monitor = BufReader::new(UnixStream::connect(network.directory.path("monitor")).unwrap());
    ask(&mut monitor, "qmp_capabilities");
    start_sending(&network, &mut sender);
    ask(&mut monitor, "stop");
    let paused = Instant::now();
    let mut at_right = right.agent(test);
    ping_from(&mut at_right, &middle.addresses()[0]);
    stream(&mut at_right, &mut other, &middle.addresses()[0]);
    thread::sleep(PAUSE.saturating_sub(paused.elapsed()));
    ask(&mut monitor, "cont");

    sender.wait_for("sent");
    guest.wait_for("GUEST RECEIVED");
    receiver.wait_for("received ");
    guest.wait_for("GUEST EXIT 0");
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    assert_eq!(network.field("left", "refused"), 0);
    [sender, receiver, other, at_right].into_iter().for_each(Partner::finish);
}

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn a_virtual_machine_that_is_killed_starts_again_at_the_same_stream() {
    let test = "guest::a_virtual_machine_that_is_killed_starts_again_at_the_same_stream";
    if is_agent() || !in_network_with(test, &["--ignored"]) {
        return;
    }
    let network = Network::start(2);
    let (_left, mac) = network.attach_stream("left");
    let _right = network.attach(2, &[]);
    let mut sender = network.containers[1].agent(test);
    let mut guest = boot(&network, &mac, &format!("{PING}{RECEIVE}"));
    guest.wait_for("GUEST LISTENS");
    start_sending(&network, &mut sender);
    guest.kill();
    sender.kill();

    let mut guest = boot(&network, &mac, PING);
    guest.wait_for("GUEST EXIT 0");
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
}
