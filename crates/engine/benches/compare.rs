//! Ironwarp next to bare TCP: the same bytes over the same kind of socket, in turns, between two processes that have a
//! processor each. Prints ratios, because the machine is shared: medians over the rounds, with quartiles.
//!
//! `cargo bench -p ironwarp-engine --bench compare [-- ROUNDS]`

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a measurement that fails may panic"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{SEND, Side};
use ironwarp_engine::{ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Completion, Data, Operation, Status, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PINGS: usize = 5_000;
const LARGE: usize = 1 << 20;
const LARGE_COUNT: usize = 300;
const SMALL_COUNT: usize = 100_000;
const QUEUED: usize = 64;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(),
        rounds => client(rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(7)),
    }
}

fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

// --- Bare TCP ---

fn options(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
}

fn read_busily(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut got = 0;
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => panic!("closed"),
            Ok(n) => got += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn write_busily(stream: &mut TcpStream, buffer: &[u8]) {
    let mut sent = 0;
    while sent < buffer.len() {
        match stream.write(&buffer[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

// --- Ironwarp ---

struct End {
    side: Side,
    pair: Arc<QueuePair>,
}

fn end(engine: &Arc<Engine>, completes: Completes) -> End {
    let side = Side::new(engine, 1024, 2 * LARGE);
    End { pair: side.pair(256, completes), side }
}

impl End {
    fn receive(&self) {
        self.side.receive(&self.pair, 1, 0, 64);
    }

    fn post(&self, operation: Operation, len: u32, signaled: bool) {
        let request = WorkRequest { signaled, ..self.side.request(2, operation, len) };
        self.pair.qp().post_send(vec![request]).unwrap();
    }

    /// A Send of 8 bytes, inline as latency tests do it.
    fn ping(&self) {
        let data = Data::Inline(Arc::from(*b"8 bytes!"));
        let request = WorkRequest { signaled: false, ..WorkRequest::new(2, SEND, data) };
        self.pair.qp().post_send(vec![request]).unwrap();
    }

    fn one(&self) -> Completion {
        let mut completion = None;
        while completion.is_none() {
            self.side.cq.poll(1, |found| completion = Some(found)).unwrap();
        }
        let completion = completion.unwrap();
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }
}

fn config(crc: bool) -> Config {
    Config { crc, ..Config::default() }
}

/// The server does what the client says on its standard input.
fn serve() {
    pin(1);
    let bare = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", bare.local_addr().unwrap());
    let (mut stream, _) = bare.accept().unwrap();
    options(&stream);
    let mut large = vec![0; LARGE];
    let engines = [Engine::new(config(true)).unwrap(), Engine::new(config(false)).unwrap()];
    let listeners = engines.each_ref().map(|engine| engine.listen("127.0.0.1:0".parse().unwrap()).unwrap());
    for listener in &listeners {
        println!("{}", listener.local_addr().unwrap());
    }
    let mut ends = Vec::new();
    for command in std::io::stdin().lock().lines() {
        let command = command.unwrap();
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            ["connect", crc, completes] => {
                let which = usize::from(crc == "plain");
                let completes =
                    if completes == "sent" { Completes::WhenSent } else { Completes::WhenAcknowledged };
                let end = end(&engines[which], completes);
                let incoming = listeners[which].incoming().wait(PATIENCE).unwrap();
                for _ in 0..8 {
                    end.receive();
                }
                incoming.accept(&end.pair, end.side.engine.terms(None, None), &[]).unwrap();
                end.pair.wait_connected(PATIENCE.unwrap()).unwrap();
                println!("{} {}", end.side.tag.0, end.side.place().offset);
                ends.push(end);
            }
            ["bare-ping"] => {
                let mut word = [0; 8];
                for _ in 0..PINGS {
                    read_busily(&mut stream, &mut word);
                    write_busily(&mut stream, &word);
                }
            }
            ["bare-large"] => {
                for _ in 0..LARGE_COUNT {
                    read_busily(&mut stream, &mut large);
                }
                write_busily(&mut stream, &[1]);
            }
            ["bare-small"] => {
                for _ in 0..SMALL_COUNT / QUEUED {
                    read_busily(&mut stream, &mut large[..QUEUED * 32]);
                }
                write_busily(&mut stream, &[1]);
            }
            ["ping", which] => {
                let end: &End = &ends[which.parse::<usize>().unwrap()];
                let wakes = end.side.engine.statistics().lane_wakes;
                for _ in 0..PINGS {
                    end.one();
                    end.ping();
                    end.receive();
                }
                println!("{}", end.side.engine.statistics().lane_wakes - wakes);
            }
            _ => panic!("{command}"),
        }
    }
}

struct Server {
    to: std::process::ChildStdin,
    from: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn say(&mut self, words: &str) {
        writeln!(self.to, "{words}").unwrap();
    }
}

fn client(rounds: usize) {
    pin(0);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server =
        Server { to: child.stdin.take().unwrap(), from: BufReader::new(child.stdout.take().unwrap()) };
    let bare: SocketAddr = server.line().parse().unwrap();
    let mut stream = TcpStream::connect(bare).unwrap();
    options(&stream);
    let addresses: [SocketAddr; 2] = [server.line().parse().unwrap(), server.line().parse().unwrap()];
    let engines = [Engine::new(config(true)).unwrap(), Engine::new(config(false)).unwrap()];
    let mut ends = Vec::new();
    for (which, crc) in ["crc", "plain"].into_iter().enumerate() {
        for (word, completes) in [("sent", Completes::WhenSent), ("acked", Completes::WhenAcknowledged)] {
            let end = end(&engines[which], completes);
            for _ in 0..8 {
                end.receive();
            }
            server.say(&format!("connect {crc} {word}"));
            end.side.engine.connect(&end.pair, addresses[which], &ConnectOptions::default()).unwrap();
            end.pair.wait_connected(PATIENCE.unwrap()).unwrap();
            let line = server.line();
            let (tag, addr) = line.split_once(' ').unwrap();
            let place = Place { tag: Tag(tag.parse().unwrap()), offset: addr.parse().unwrap() };
            ends.push((format!("{crc}, {word}"), end, place));
        }
    }
    let mut table: Vec<(String, Vec<f64>)> = Vec::new();
    for _ in 0..rounds {
        round(&mut server, &mut stream, &ends, &mut table);
    }
    println!("{:<44}{:>10}{:>10}{:>10}", "", "median", "quartile", "quartile");
    for (name, mut values) in table {
        values.sort_by(f64::total_cmp);
        let at = |q: usize| values[(values.len() - 1) * q / 4];
        println!("{name:<44}{:>10.3}{:>10.3}{:>10.3}", at(2), at(1), at(3));
    }
    drop(server);
    child.wait().unwrap();
}

fn record(table: &mut Vec<(String, Vec<f64>)>, name: String, value: f64) {
    match table.iter_mut().find(|(known, _)| *known == name) {
        Some((_, values)) => values.push(value),
        None => table.push((name, vec![value])),
    }
}

fn round(
    server: &mut Server,
    stream: &mut TcpStream,
    ends: &[(String, End, Place)],
    table: &mut Vec<(String, Vec<f64>)>,
) {
    server.say("bare-ping");
    let mut word = [0; 8];
    let start = Instant::now();
    for _ in 0..PINGS {
        write_busily(stream, &word);
        read_busily(stream, &mut word);
    }
    let bare = start.elapsed().as_secs_f64() / PINGS as f64 / 2.0;
    record(table, "8 B bare, µs half a round trip".into(), bare * 1e6);
    for (which, (name, end, _)) in ends.iter().enumerate() {
        server.say(&format!("ping {which}"));
        let wakes = end.side.engine.statistics().lane_wakes;
        let start = Instant::now();
        for _ in 0..PINGS {
            end.ping();
            end.one();
            end.receive();
        }
        let time = start.elapsed().as_secs_f64() / PINGS as f64 / 2.0;
        let wakes = end.side.engine.statistics().lane_wakes - wakes;
        let theirs: u64 = server.line().parse().unwrap();
        record(table, format!("8 B Send ÷ bare ({name})"), time / bare);
        record(
            table,
            format!("   lane wakes per 1000 pings ({name})"),
            (wakes + theirs) as f64 * 1e3 / PINGS as f64,
        );
    }
    let large = vec![7; LARGE];
    server.say("bare-large");
    let start = Instant::now();
    for _ in 0..LARGE_COUNT {
        write_busily(stream, &large);
    }
    read_busily(stream, &mut word[..1]);
    let bare = start.elapsed().as_secs_f64();
    record(table, "1 MiB bare, GB/s".into(), (LARGE * LARGE_COUNT) as f64 / bare / 1e9);
    for (name, end, place) in ends {
        let start = Instant::now();
        stream_of(end, Operation::Write(*place), LARGE as u32, LARGE_COUNT, 4);
        record(table, format!("1 MiB Write × bare ({name})"), bare / start.elapsed().as_secs_f64());
    }
    server.say("bare-small");
    let frames = vec![7; QUEUED * 32];
    let start = Instant::now();
    for _ in 0..SMALL_COUNT / QUEUED {
        write_busily(stream, &frames);
    }
    read_busily(stream, &mut word[..1]);
    let bare = start.elapsed().as_secs_f64();
    record(table, "8 B bare, 64 frames a call, M/s".into(), SMALL_COUNT as f64 / bare / 1e6);
    for (name, end, place) in ends {
        let start = Instant::now();
        stream_of(end, Operation::Write(*place), 8, SMALL_COUNT, QUEUED);
        let time = start.elapsed().as_secs_f64();
        record(table, format!("8 B Write rate × bare ({name})"), bare / time);
        record(table, format!("   8 B Writes, M/s ({name})"), SMALL_COUNT as f64 / time / 1e6);
    }
}

/// Keeps `queued` requests posted until `count` are done, then makes sure by a Read that all have arrived.
fn stream_of(end: &End, operation: Operation, len: u32, count: usize, queued: usize) {
    let request = || end.side.request(2, operation.clone(), len);
    let (mut posted, mut done) = (0, 0);
    while done < count {
        let room = (queued - (posted - done)).min(count - posted);
        if room > 0 && (room >= queued / 2 || posted == 0 || count - posted <= room) {
            end.pair.qp().post_send((0..room).map(|_| request()).collect()).unwrap();
            posted += room;
        }
        done += end
            .side
            .cq
            .poll(QUEUED, |completion| assert_eq!(completion.status, Status::Success, "{completion:?}"))
            .unwrap();
    }
    let Operation::Write(place) = operation else { return };
    end.post(Operation::Read(place), 1, true);
    end.one();
}
