//! Clients that open connections and never complete them, against a process with few descriptors: legitimate
//! peers are still served, and the neighbour continues. Attacker, victim and legitimate peer are separate
//! processes.
//!
//! The long form (`cargo xtask nightly`) opens more connections, and also checks the slowest
//! peers and the neighbour's rate, which needs an otherwise idle machine.

use crate::common::TIMEOUT;
use crate::common::peer::{Peer, Received, StartupSettings, startup};
use crate::common::victim::Victim;
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::long_form;
use ironwarp_wire::mpa::Role;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of descriptors of the victim.
const DESCRIPTORS: u64 = 256;
/// Number of connections that an attacker keeps open.
const KEPT: usize = 10_000;
/// How long a legitimate peer may wait for its Reply.
const SOON: Duration = Duration::from_millis(100);
/// A wait after which the test has failed.
const FAR_TOO_LONG: Duration = Duration::from_secs(2);
/// Maximum growth of the victim's memory: what one address can make an adapter keep (SECURITY.md), plus
/// overhead of the heap.
const MEMORY: u64 = 8 << 20;
/// The private data of the legitimate peer.
const LEGITIMATE: &[u8] = b"legitimate";
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// What an attacker sends.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Silence,
    HalfRequest,
    /// A complete Request, which the victim's program rejects.
    Request,
}

impl Attack {
    fn bytes(self) -> Vec<u8> {
        let request = startup(Role::Request, StartupSettings::default(), b"attacker");
        match self {
            Self::Silence => Vec::new(),
            Self::HalfRequest => request[..request.len() / 2].to_vec(),
            Self::Request => request,
        }
    }
}

/// Starts another process of the test.
fn start(part: &str) -> Partner {
    Partner::start(child::command("flood::part", part))
}

/// Reads the number after this word from the output of a process.
fn number(process: &mut Partner, word: &str) -> u64 {
    process.wait_for(&format!("{word}=")).trim().parse().unwrap()
}

/// Asks a process for a number.
fn ask(process: &mut Partner, word: &str) -> u64 {
    process.tell(word);
    number(process, word)
}

/// Runs the role of another process. Does nothing in the test itself.
#[test]
fn part() {
    let Some(part) = child::role() else { return };
    let words: Vec<_> = part.split(' ').collect();
    match words[..] {
        ["victim"] => victim(),
        ["exhausted"] => exhausted(),
        ["attacker", at, attack, user, count] => {
            let attack = match attack {
                "Silence" => Attack::Silence,
                "HalfRequest" => Attack::HalfRequest,
                _ => Attack::Request,
            };
            attacker(at.parse().unwrap(), attack, user.parse().unwrap(), count.parse().unwrap());
        }
        _ => unreachable!("{part}"),
    }
}

fn victim() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) }).unwrap();
    let config = Config::default().close(Duration::from_millis(200));
    let victim = Victim::with_pauses(config, Duration::ZERO);
    println!("port={}", victim.addr().port());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&victim, &over));
        for word in std::io::stdin().lines().map(Result::unwrap) {
            let number = if word == "memory" { memory() } else { victim.rounds() };
            println!("{word}={number}");
        }
        over.store(true, Ordering::Relaxed);
    });
    victim.assert_survives();
}

/// Resident memory of this process in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Accepts legitimate peers, and rejects all others.
fn serve(victim: &Victim, over: &AtomicBool) {
    let cq = victim.engine.create_cq(256).unwrap();
    let mut latest = VecDeque::new();
    while !over.load(Ordering::Relaxed) {
        let Some(incoming) = victim.listener().incoming().wait(Duration::from_millis(50)) else { continue };
        if incoming.private_data() == LEGITIMATE {
            let pair = victim.queue_pair_on(&cq, Completes::WhenSent, 0);
            incoming.accept(&pair, victim.engine.terms(None, None), &[]).unwrap();
            latest.push_back(pair);
            if latest.len() > 8 {
                latest.pop_front();
            }
        }
    }
}

/// Opens at least `count` connections until it is told to stop, a few thousand per second. It shares CPUs
/// with the victim, which would get none if it ran unthrottled.
fn attacker(at: SocketAddr, attack: Attack, user: u32, count: usize) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let kept = maximum.map_or(KEPT, |most| usize::try_from(most).unwrap().saturating_sub(64).min(KEPT));
    if user != rustix::process::geteuid().as_raw() {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_uid(user).unwrap(); // only of this thread, which owns the sockets
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::io::stdin().lines().for_each(drop);
            over.store(true, Ordering::Relaxed);
        });
        let (mut open, mut opened, mut told) = (VecDeque::new(), 0, false);
        let (bytes, burst) = (attack.bytes(), if long_form::is_requested() { 5 } else { 1 });
        while opened < count || !over.load(Ordering::Relaxed) {
            if let Ok(mut stream) = TcpStream::connect_timeout(&at, TIMEOUT) {
                let _ = stream.write_all(&bytes); // the victim may have closed already
                open.push_back(stream);
                opened += 1;
            }
            if open.len() >= kept {
                open.pop_front();
            }
            if opened % burst == 0 {
                std::thread::sleep(Duration::from_millis(1)); // its pace, not a synchronisation
            }
            if !told && opened >= 100 {
                println!("begun={opened}");
                told = true;
            }
        }
        println!("opened={opened}");
    });
}

/// Connects as a legitimate peer; returns `None` if it was not served. A peer whose process is delayed
/// between connecting and sending its Request looks like an attacker of the same user, and may be evicted by
/// later connections.
fn served(at: SocketAddr) -> Option<()> {
    let mut peer = Peer::from_stream(TcpStream::connect_timeout(&at, TIMEOUT).ok()?);
    peer.send_bytes(&startup(Role::Request, StartupSettings::default(), LEGITIMATE));
    let reply = peer.try_receive_startup(TIMEOUT)?;
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    peer.reset();
    Some(())
}

/// How long legitimate peers waited, and the rate of the neighbour meanwhile.
#[derive(Debug, Default)]
struct Measured {
    waited: Vec<Duration>,
    /// Number of times that a peer had to connect again.
    again: usize,
    rounds: f64,
    seconds: f64,
}

impl Measured {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    fn take(&mut self, victim: &mut Partner, at: SocketAddr, peers: usize) {
        let (before, begin) = (ask(victim, "rounds"), Instant::now());
        for _ in 0..peers {
            let begin = Instant::now();
            while served(at).is_none() && begin.elapsed() < FAR_TOO_LONG {
                self.again += 1;
            }
            let waited = begin.elapsed();
            self.waited.push(waited);
            if waited >= FAR_TOO_LONG {
                break; // the others would wait as long
            }
            std::thread::sleep(Duration::from_millis(2)); // the pace of the peers, not a synchronisation
        }
        self.rounds += (ask(victim, "rounds") - before) as f64;
        self.seconds += begin.elapsed().as_secs_f64();
    }

    fn rate(&self) -> f64 {
        self.rounds / self.seconds
    }

    /// The wait that this percentage of peers did not exceed.
    fn percentile(&mut self, percent: usize) -> Duration {
        self.waited.sort();
        self.waited[(self.waited.len() * percent / 100).min(self.waited.len() - 1)]
    }
}

fn flood(attack: Attack, user: u32) {
    let (connections, turns) = if long_form::is_requested() { (10_000, 4) } else { (500, 1) };
    let mut victim = start("victim");
    let at = SocketAddr::from(([127, 0, 0, 1], u16::try_from(number(&mut victim, "port")).unwrap()));
    let (mut calm, mut flooded, mut opened) = (Measured::default(), Measured::default(), 0);
    let mut grown = 0;
    for _ in 0..turns {
        calm.take(&mut victim, at, 100);
        let before = ask(&mut victim, "memory");
        let mut attacker = start(&format!("attacker {at} {attack:?} {user} {}", connections / turns));
        number(&mut attacker, "begun");
        flooded.take(&mut victim, at, 100);
        grown = grown.max(ask(&mut victim, "memory").saturating_sub(before));
        attacker.close_input();
        opened += number(&mut attacker, "opened");
        attacker.finish();
    }
    victim.finish();
    let (median, slow, slowest) = (flooded.percentile(50), flooded.percentile(99), flooded.percentile(100));
    let kept = flooded.rate() / calm.rate();
    println!(
        "{attack:?} by {user}: {opened} connections; waited {median:?}, p99 {slow:?}, at most {slowest:?}, {} connected again; \
         {:.0} rounds/s, {kept:.2} of it under the flood; {grown} bytes more",
        flooded.again,
        calm.rate()
    );
    assert!(median < SOON, "{attack:?}: half of the peers waited for {median:?}");
    assert!(kept > 0.0, "{attack:?}: the neighbour made no progress");
    assert!(grown < MEMORY, "{attack:?}: the victim has {grown} bytes more");
    // Next to other tests, processes may wait that long for a CPU.
    if long_form::is_requested() {
        assert!(slow < SOON, "{attack:?}: one of a hundred peers waited for {slow:?}");
        assert!(kept >= 0.5, "{attack:?}: the neighbour kept {kept:.2} of its rate");
    }
}

/// The program has used up all descriptors. Peers are refused at once, and served again as soon as
/// descriptors are available.
#[test]
fn no_descriptors() {
    let mut victim = start("exhausted");
    let at = SocketAddr::from(([127, 0, 0, 1], u16::try_from(number(&mut victim, "port")).unwrap()));
    for _ in 0..3 {
        let mut peer = Peer::dial(at);
        peer.request(StartupSettings::default());
        let received = peer.receive_next();
        assert!(matches!(received, Received::Reset | Received::End), "{received:?}");
    }
    assert_eq!(ask(&mut victim, "free"), 1);
    let mut peer = Peer::dial(at);
    peer.request(StartupSettings::default());
    assert_eq!(&peer.receive_startup()[..16], b"MPA ID Rep Frame");
    victim.finish();
}

fn exhausted() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) }).unwrap();
    // Setting up shared memory opens and closes descriptors in the background.
    let victim = Victim::with(Config::default().shm(false));
    // The lane has accepted a connection before, so it has everything that it needs. No descriptor is closed
    // from here on.
    let _attacked = victim.connect_peer();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    println!("port={}", victim.addr().port());
    for word in std::io::stdin().lines().map(Result::unwrap) {
        taken.clear();
        println!("{word}=1");
        let incoming = victim.listener().incoming().wait(TIMEOUT).unwrap();
        drop(incoming); // rejects it, which sends a Reply
    }
    victim.assert_survives();
}

#[test]
fn silent_strangers() {
    flood(Attack::Silence, rustix::process::geteuid().as_raw());
}

#[test]
fn silent_strangers_of_another_user() {
    if child::as_root("flood::silent_strangers_of_another_user") {
        flood(Attack::Silence, NOBODY);
    }
}

#[test]
fn strangers_that_stop_in_the_middle_of_the_request() {
    flood(Attack::HalfRequest, rustix::process::geteuid().as_raw());
}

#[test]
fn strangers_that_send_requests() {
    flood(Attack::Request, rustix::process::geteuid().as_raw());
}

#[test]
fn strangers_of_another_user_that_send_requests() {
    if child::as_root("flood::strangers_of_another_user_that_send_requests") {
        flood(Attack::Request, NOBODY);
    }
}
