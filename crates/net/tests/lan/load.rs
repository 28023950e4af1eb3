//! Processes in containers that keep the LAN busy until they are killed, and count what arrives.

use crate::agent::{Pattern, ping};
use crate::network::Container;
use ironwarp_testkit::child::{Partner, role, tell};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const ROLE: &str = "load";
/// Bytes that are sent at a time.
const CHUNK: usize = 16 << 10;
/// Length of a datagram.
const DATAGRAM: usize = 1400;
const SEED: u64 = 0x1234_5678_9abc_def1;
/// Time limit for bytes to arrive, and for pings.
const LIMIT: Duration = Duration::from_secs(20);
/// Pause between pings.
const BEAT: Duration = Duration::from_millis(20);

/// Verified bytes that have arrived, datagrams' bytes that were sent, or pings that were answered.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The longest time that a ping took, in milliseconds.
static SLOWEST: AtomicU64 = AtomicU64::new(0);

/// Runs the load if this process is one.
pub(crate) fn is_load() -> bool {
    let is_load = role().as_deref() == Some(ROLE);
    if is_load {
        for line in io::stdin().lines() {
            let line = line.unwrap();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["receive", at] => receive(at.parse().unwrap()),
                ["send", to, mbit] => send(to.parse().unwrap(), mbit.parse().unwrap()),
                ["datagrams", at] => receive_datagrams(at.parse().unwrap()),
                ["flood", to, mbit] => flood(to.parse().unwrap(), mbit.parse().unwrap()),
                ["beat", to] => beat(to.parse().unwrap()),
                ["count"] => tell(&format!("counted {}", COUNT.load(Relaxed))),
                ["slowest"] => tell(&format!("slowest {}", SLOWEST.load(Relaxed))),
                ["reach", count] => reach(count.parse().unwrap()),
                _ => panic!("unknown command {line}"),
            }
        }
    }
    is_load
}

/// Starts a process in a container that does nothing yet.
pub(crate) fn start(test: &str, container: &Container) -> Partner {
    container.start_in_role(test, ROLE)
}

/// Returns what a process has counted.
pub(crate) fn count(load: &mut Partner) -> u64 {
    load.tell("count");
    load.wait_for("counted ").parse().unwrap()
}

/// Waits until the count of a process has grown by this number.
pub(crate) fn goes_on(load: &mut Partner, more: u64) {
    let count = count(load) + more;
    wait_for_count(load, count);
}

/// Waits until the count of a process has reached this number.
pub(crate) fn wait_for_count(load: &mut Partner, count: u64) {
    load.tell(&format!("reach {count}"));
    load.wait_for("reached");
}

/// A stream of bytes between two containers, which the receiver verifies. Ends when dropped.
pub(crate) struct Stream {
    pub(crate) receiver: Partner,
    _sender: Partner,
}

impl Stream {
    /// Starts a stream: as fast as possible if `mbit` is 0, or at `mbit` Mbit/s.
    pub(crate) fn start(test: &str, from: &Container, to: &Container, mbit: u64) -> Self {
        let mut receiver = start(test, to);
        receiver.tell(&format!("receive {}", to.addresses()[0]));
        let target = receiver.wait_for("listening at ");
        let mut sender = start(test, from);
        sender.tell(&format!("send {target} {mbit}"));
        Self { receiver, _sender: sender }
    }
}

/// Ends the process: the test notices it the next time that it asks.
fn altered(what: &str) -> ! {
    eprintln!("{what} arrived altered");
    std::process::abort()
}

/// Waits until this number of bytes may have been sent at the given rate.
fn pace(start: Instant, bytes: usize, mbit: u64) {
    if let Some(due) = (bytes as u64 * 8).checked_div(mbit) {
        thread::sleep(Duration::from_micros(due).saturating_sub(start.elapsed()));
    }
}

fn receive(at: IpAddr) {
    let listener = TcpListener::bind((at, 0)).unwrap();
    tell(&format!("listening at {}", listener.local_addr().unwrap()));
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut pattern = Pattern(SEED);
        let (mut found, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
        while stream.read_exact(&mut found).is_ok() {
            pattern.next(&mut expected);
            if found != expected {
                altered("a chunk");
            }
            COUNT.fetch_add(CHUNK as u64, Relaxed);
        }
    });
}

fn send(to: SocketAddr, mbit: u64) {
    thread::spawn(move || {
        let mut stream = TcpStream::connect(to).unwrap();
        let mut pattern = Pattern(SEED);
        let mut bytes = vec![0; CHUNK];
        let start = Instant::now();
        for sent in (0..).step_by(CHUNK) {
            pattern.next(&mut bytes);
            if stream.write_all(&bytes).is_err() {
                return; // the other end was killed
            }
            pace(start, sent, mbit);
        }
    });
}

/// Each datagram starts with its number, from which its other bytes follow.
fn datagram(number: u64, into: &mut [u8]) {
    let (first, rest) = into.split_at_mut(8);
    first.copy_from_slice(&number.to_le_bytes());
    Pattern(number | SEED << 20).next(rest);
}

fn receive_datagrams(at: IpAddr) {
    let socket = UdpSocket::bind((at, 0)).unwrap();
    tell(&format!("listening at {}", socket.local_addr().unwrap()));
    thread::spawn(move || {
        let (mut found, mut expected) = ([0; DATAGRAM], [0; DATAGRAM]);
        while let Ok(len) = socket.recv(&mut found) {
            let number = found.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            datagram(number, &mut expected);
            if found[..len] != expected {
                altered("a datagram");
            }
            COUNT.fetch_add(len as u64, Relaxed);
        }
    });
}

fn flood(to: SocketAddr, mbit: u64) {
    thread::spawn(move || {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        let mut bytes = [0; DATAGRAM];
        let start = Instant::now();
        for number in 0.. {
            datagram(number, &mut bytes);
            // Fails while the interface has no carrier or no room.
            if socket.send_to(&bytes, to).is_ok() {
                COUNT.fetch_add(DATAGRAM as u64, Relaxed);
            }
            pace(start, usize::try_from(number).unwrap() * DATAGRAM, mbit);
        }
    });
}

fn beat(to: IpAddr) {
    thread::spawn(move || {
        loop {
            let start = Instant::now();
            if ping(to, LIMIT).is_err() {
                eprintln!("no answer from {to}");
                std::process::abort();
            }
            SLOWEST.fetch_max(u64::try_from(start.elapsed().as_millis()).unwrap(), Relaxed);
            COUNT.fetch_add(1, Relaxed);
            thread::sleep(BEAT);
        }
    });
}

fn reach(count: u64) {
    let start = Instant::now();
    while COUNT.load(Relaxed) < count {
        assert!(start.elapsed() < LIMIT, "{} of {count}", COUNT.load(Relaxed));
        thread::sleep(Duration::from_millis(1));
    }
    tell("reached");
}
