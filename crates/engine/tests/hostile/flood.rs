//! Strangers that open connections and never finish them, against a process with few descriptors: a legitimate peer is served all the
//! same, and the neighbour goes on. Attacker, victim and legitimate peer are processes of their own.
//!
//! `IRON_TEST_FULL=1` (set by `cargo xtask nightly`) opens more connections, and judges the slowest peers and the neighbour's rate as
//! well: that takes a machine with nothing else to do.

use crate::common::PATIENCE;
use crate::common::peer::{Heard, Peer, Way, startup};
use crate::common::victim::Victim;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_wire::mpa::Role;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Which part a process has: this test program again, told its part and what it needs to know.
const PART: &str = "IRON_TEST_FLOOD_PART";
const FULL: &str = "IRON_TEST_FULL";
/// How many descriptors the victim may have.
const DESCRIPTORS: u64 = 256;
/// How many connections an attacker keeps open.
const KEPT: usize = 10_000;
/// How long a legitimate peer waits for its Reply.
const SOON: Duration = Duration::from_millis(100);
/// The test has failed by then.
const FAR_TOO_LONG: Duration = Duration::from_secs(2);
/// By how much the victim may grow: what one address can make an adapter keep (SECURITY.md), and what the heap makes of it.
const MEMORY: u64 = 8 << 20;
/// What the legitimate peer says.
const LEGITIMATE: &[u8] = b"legitimate";
/// A user who owns nothing.
const NOBODY: u32 = 65534;

fn is_full() -> bool {
    std::env::var_os(FULL).is_some()
}

/// What an attacker sends.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Silence,
    HalfRequest,
    /// The victim's program rejects it.
    Request,
}

impl Attack {
    fn bytes(self) -> Vec<u8> {
        let request = startup(Role::Request, Way::default(), b"attacker");
        match self {
            Self::Silence => Vec::new(),
            Self::HalfRequest => request[..request.len() / 2].to_vec(),
            Self::Request => request,
        }
    }
}

/// A process that has a part in this. It ends when it is dropped.
struct Actor {
    process: Child,
    tell: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
}

impl Actor {
    fn start(part: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "flood::part", "--nocapture"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let tell = process.stdin.take();
        let told = BufReader::new(process.stdout.take().unwrap());
        Self { process, tell, told }
    }

    /// The number behind this word, in a line of its own or behind what the test harness prints.
    fn hear(&mut self, word: &str) -> u64 {
        let marker = format!("{word}=");
        loop {
            let mut line = String::new();
            assert_ne!(self.told.read_line(&mut line).unwrap(), 0, "it ended before it told its {word}");
            if let Some((_, number)) = line.split_once(&marker) {
                return number.trim().parse().unwrap();
            }
        }
    }

    fn ask(&mut self, word: &str) -> u64 {
        let tell = self.tell.as_mut().unwrap();
        writeln!(tell, "{word}").unwrap();
        tell.flush().unwrap();
        self.hear(word)
    }

    /// Lets it end, which it must do well.
    fn finish(mut self) {
        drop(self.tell.take());
        for line in (&mut self.told).lines() {
            let line = line.unwrap();
            assert!(!line.contains("FAILED"), "{line}");
        }
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the other processes run; by itself it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
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
    let config = Config { close: Duration::from_millis(200), ..Config::default() };
    let victim = Victim::resting(config, Duration::ZERO);
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
    victim.survives();
}

/// How many bytes of this process are in memory.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Accepts the legitimate peer, and rejects everybody else.
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

/// Opens connections, at least as many as it is told, until it is told to stop: some thousand in a second. It shares its processors with the
/// victim, which would have none left if it went on as fast as it can.
fn attacker(at: SocketAddr, attack: Attack, user: u32, count: usize) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let kept = maximum.map_or(KEPT, |most| usize::try_from(most).unwrap().saturating_sub(64).min(KEPT));
    if user != rustix::process::geteuid().as_raw() {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_uid(user).unwrap(); // of this thread, whose sockets they are
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::io::stdin().lines().for_each(drop);
            over.store(true, Ordering::Relaxed);
        });
        let (mut open, mut opened, mut told) = (VecDeque::new(), 0, false);
        let (bytes, burst) = (attack.bytes(), if is_full() { 5 } else { 1 });
        while opened < count || !over.load(Ordering::Relaxed) {
            if let Ok(mut stream) = TcpStream::connect_timeout(&at, PATIENCE) {
                let _ = stream.write_all(&bytes); // or the victim was faster
                open.push_back(stream);
                opened += 1;
            }
            if open.len() >= kept {
                open.pop_front();
            }
            if opened % burst == 0 {
                std::thread::sleep(Duration::from_millis(1)); // its pace, nothing waits for it
            }
            if !told && opened >= 100 {
                println!("begun={opened}");
                told = true;
            }
        }
        println!("opened={opened}");
    });
}

/// Connects as a legitimate peer does; `None`: it was not served. One whose process has to wait for a processor between connecting and
/// sending its Request looks like an attacker of the same user, and may be evicted by those that come after it.
fn served(at: SocketAddr) -> Option<()> {
    let mut peer = Peer::on(TcpStream::connect_timeout(&at, PATIENCE).ok()?);
    peer.raw(&startup(Role::Request, Way::default(), LEGITIMATE));
    let reply = peer.try_hear_startup(PATIENCE)?;
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    peer.reset();
    Some(())
}

/// How long legitimate peers waited, and how many rounds the neighbour did in a second meanwhile.
#[derive(Debug, Default)]
struct Measured {
    waited: Vec<Duration>,
    /// How often a peer had to connect again.
    again: usize,
    rounds: f64,
    seconds: f64,
}

impl Measured {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    fn take(&mut self, victim: &mut Actor, at: SocketAddr, peers: usize) {
        let (before, begin) = (victim.ask("rounds"), Instant::now());
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
            std::thread::sleep(Duration::from_millis(2)); // the pace of the peers, nothing waits for it
        }
        self.rounds += (victim.ask("rounds") - before) as f64;
        self.seconds += begin.elapsed().as_secs_f64();
    }

    fn rate(&self) -> f64 {
        self.rounds / self.seconds
    }

    /// How long this percentage of peers waited at most.
    fn percentile(&mut self, percent: usize) -> Duration {
        self.waited.sort();
        self.waited[(self.waited.len() * percent / 100).min(self.waited.len() - 1)]
    }
}

fn flood(attack: Attack, user: u32) {
    let me = rustix::process::geteuid();
    if user != me.as_raw() && !me.is_root() {
        return; // only root can be somebody else
    }
    let (connections, turns) = if is_full() { (10_000, 4) } else { (500, 1) };
    let mut victim = Actor::start("victim");
    let at = SocketAddr::from(([127, 0, 0, 1], u16::try_from(victim.hear("port")).unwrap()));
    let (mut calm, mut flooded, mut opened) = (Measured::default(), Measured::default(), 0);
    let mut grown = 0;
    for _ in 0..turns {
        calm.take(&mut victim, at, 100);
        let before = victim.ask("memory");
        let mut attacker = Actor::start(&format!("attacker {at} {attack:?} {user} {}", connections / turns));
        attacker.hear("begun");
        flooded.take(&mut victim, at, 100);
        grown = grown.max(victim.ask("memory").saturating_sub(before));
        drop(attacker.tell.take());
        opened += attacker.hear("opened");
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
    assert!(kept > 0.0, "{attack:?}: the neighbour stood still");
    assert!(grown < MEMORY, "{attack:?}: the victim has {grown} bytes more");
    // Beside other tests, processes wait for a processor for as long.
    if is_full() {
        assert!(slow < SOON, "{attack:?}: one of a hundred peers waited for {slow:?}");
        assert!(kept >= 0.5, "{attack:?}: the neighbour kept {kept:.2} of its rate");
    }
}

/// The program has taken all descriptors. A peer is told so at once, and the next one is served as soon as there are some.
#[test]
fn no_descriptors() {
    let mut victim = Actor::start("exhausted");
    let at = SocketAddr::from(([127, 0, 0, 1], u16::try_from(victim.hear("port")).unwrap()));
    for _ in 0..3 {
        let mut peer = Peer::dial(at);
        peer.request(Way::default());
        let heard = peer.hear();
        assert!(matches!(heard, Heard::Reset | Heard::End), "{heard:?}");
    }
    assert_eq!(victim.ask("free"), 1);
    let mut peer = Peer::dial(at);
    peer.request(Way::default());
    assert_eq!(&peer.hear_startup()[..16], b"MPA ID Rep Frame");
    victim.finish();
}

fn exhausted() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) }).unwrap();
    let victim = Victim::with(Config::default());
    // The lane has accepted once, and has all that it needs for it. No descriptor is closed from here on.
    let _attacked = victim.attacked();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    println!("port={}", victim.addr().port());
    for word in std::io::stdin().lines().map(Result::unwrap) {
        taken.clear();
        println!("{word}=1");
        let incoming = victim.listener().incoming().wait(PATIENCE).unwrap();
        drop(incoming); // rejected, which is an answer
    }
    victim.survives();
}

#[test]
fn silent_strangers() {
    flood(Attack::Silence, rustix::process::geteuid().as_raw());
}

#[test]
fn silent_strangers_of_another_user() {
    flood(Attack::Silence, NOBODY);
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
    flood(Attack::Request, NOBODY);
}
