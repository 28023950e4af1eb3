//! Processes that are killed at random moments while messages stream: the other process notices at once, and keeps
//! nothing.

use super::common::{
    End, Held, Host, Random, TIMEOUT, Waits, accept_parent, addr_text, assert_flushed, dial, drain,
    parse_addr,
};
use super::stream::{Messages, Place, Stream};
use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectOptions, QueuePair};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Completion, Status};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::long_form;
use ironwarp_testkit::wait::until;
use ironwarp_wire::RemoteAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PLACE: Place = Place { at: 0, slots: 8, max: 100_000 };
/// Time within which the other process notices, on a busy machine: less than any timeout that would find it later.
const NOTICED: Duration = Duration::from_secs(10);
/// Number of connections between the two processes.
const CONNECTIONS: usize = 3;
const TEST: &str = "kills::a_killed_process_ends_its_connections_at_once";

const fn place(number: usize) -> Place {
    Place { at: number * PLACE.len(), ..PLACE }
}

fn kills() -> u64 {
    if long_form::is_requested() { 1_000 } else { 20 }
}

fn messages(seed: u64) -> Messages {
    Messages { seed, max: PLACE.max }
}

/// Prepares the streams of all connections.
fn streams(ends: &[End], own: u64, others: u64) -> Vec<Stream<'_>> {
    let stream = |(number, end)| Stream::new(end, place(number), messages(own), messages(others));
    ends.iter().enumerate().map(stream).collect()
}

/// Returns the address of the memory to read for the connection with this number.
fn constant(others: RemoteAddr, number: usize) -> RemoteAddr {
    RemoteAddr { offset: others.offset + place(number).constant() as u64, ..others }
}

/// The process that is killed. Streams on all connections until then.
fn victim(role: &str) {
    let config = Config::default().shm(role != "tcp");
    let host = Host::new(config, CONNECTIONS * PLACE.len());
    let ends: Vec<_> = (0..CONNECTIONS).map(|_| host.end(Completes::WhenSent)).collect();
    let first = &ends[0];
    let is_server = role != "client";
    if is_server {
        let listener = host.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        child::tell(&format!("address {}", listener.local_addr().unwrap()));
        for end in &ends {
            let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
            incoming.accept(&end.pair, host.engine.terms(None, None), &[]).unwrap();
        }
    } else {
        let at = child::wait_for("address ").parse().unwrap();
        ends.iter().for_each(|end| dial(end, at));
    }
    ends.iter().for_each(|end| drop(end.pair.wait_connected(TIMEOUT).unwrap()));
    let streams = streams(&ends, 2, 1);
    child::tell(&format!("memory {}", addr_text(first.remote_addr(0))));
    let others = parse_addr(&child::wait_for("memory "));
    std::thread::scope(|scope| {
        for (number, stream) in streams.into_iter().enumerate() {
            scope.spawn(move || drop(stream.reading(constant(others, number)).run(|_| true)));
        }
        child::tell("streams");
        child::wait_for_end();
    });
}

/// What the process that is left has seen of one connection.
struct Noticed {
    /// When it saw the first error.
    at: Instant,
    failed: Completion,
    rest: Vec<Completion>,
}

/// Kills a process after some time, and checks what this process notices.
fn kill_one(host: &Arc<Host>, role: &str, waits: Waits, random: &mut Random) {
    let mut partner = Partner::start(child::command(TEST, role));
    let ends: Vec<_> = (0..CONNECTIONS).map(|_| host.end(Completes::WhenSent).waits(waits)).collect();
    if role == "client" {
        let listener = host.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        partner.tell(&format!("address {}", listener.local_addr().unwrap()));
        for end in &ends {
            let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
            incoming.accept(&end.pair, host.engine.terms(None, None), &[]).unwrap();
        }
    } else {
        let at = partner.wait_for("address ").parse().unwrap();
        let connect =
            |pair: &Arc<QueuePair>| host.engine.connect(pair, at, &ConnectOptions::default()).unwrap();
        ends.iter().for_each(|end| connect(&end.pair));
    }
    ends.iter().for_each(|end| drop(end.pair.wait_connected(TIMEOUT).unwrap()));
    let streams = streams(&ends, 1, 2);
    partner.tell(&format!("memory {}", addr_text(ends[0].remote_addr(0))));
    let others = parse_addr(&partner.wait_for("memory "));
    let (tell, noticed) = mpsc::channel();
    std::thread::scope(|scope| {
        for (number, (stream, end)) in streams.into_iter().zip(&ends).enumerate() {
            let tell = tell.clone();
            scope.spawn(move || {
                let failed = stream.reading(constant(others, number)).run(|_| true).unwrap_err();
                let at = Instant::now();
                tell.send(Noticed { at, failed, rest: drain(end, Duration::from_millis(20)) }).unwrap();
            });
        }
        partner.wait_for("streams");
        // A random moment: often while the memory is being set up.
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        let killed = Instant::now();
        partner.kill();
        for _ in &ends {
            let Noticed { at, failed, rest } = noticed.recv_timeout(TIMEOUT).expect("an end hangs");
            let after = at.saturating_duration_since(killed);
            assert!(after < NOTICED, "noticed after {after:?}");
            assert!(failed.cause.is_some(), "{failed:?}");
            assert_flushed(&failed, &rest);
        }
    });
    assert!(ends.iter().all(|end| end.pair.wait_closed(NOTICED)));
}

#[test]
fn a_killed_process_ends_its_connections_at_once() {
    match child::role().as_deref() {
        None => return assert!(!child::in_child(TEST)),
        Some("child") => {}
        Some(role) => return victim(role),
    }
    let host = Host::new(Config::default().shm(true), CONNECTIONS * PLACE.len());
    let mut random = Random(u64::from(std::process::id()));
    let waits = [Waits::Sleeping, Waits::Polling, Waits::ForEvents];
    let mut before = None;
    for number in 0..kills() {
        let role = if number % 2 == 0 { "server" } else { "client" };
        kill_one(&host, role, waits[usize::try_from(number % 3).unwrap()], &mut random);
        // What the first ones allocate once stays.
        if number == 5 {
            until(|| Held::now().rings == 0);
            before = Some(Held::now());
        }
    }
    assert_nothing_is_left(before.unwrap());
}

/// Waits until this process holds no shared memory, and no more descriptors than before.
fn assert_nothing_is_left(before: Held) {
    let start = Instant::now();
    while Held::now().rings > 0 || Held::now().descriptors > before.descriptors {
        let open = || super::common::descriptors().join(", ");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{before:?} before, {:?} now: {}",
            Held::now(),
            open()
        );
        std::thread::yield_now();
    }
}

/// The same over TCP, which the statuses above are compared with.
#[test]
fn a_killed_process_ends_its_connections_over_tcp() {
    match child::role().as_deref() {
        None => {}
        Some(role) => return victim(role),
    }
    let host = Host::new(Config::default().shm(false), CONNECTIONS * PLACE.len());
    let mut random = Random(7);
    for waits in [Waits::Sleeping, Waits::Polling, Waits::ForEvents] {
        kill_one(&host, "tcp", waits, &mut random);
    }
}

/// A process that is killed while this one waits for room in the ring, which it never gets.
#[test]
fn a_killed_process_ends_a_sender_that_waits_for_room() {
    const WAITS: &str = "kills::a_killed_process_ends_a_sender_that_waits_for_room";
    match child::role().as_deref() {
        None => return assert!(!child::in_child(WAITS)),
        Some("child") => {}
        Some(_) => {
            // Stops when it is told, with all its threads, so that nobody reads the ring.
            let end = Host::new(Config::default().shm(true), PLACE.len()).end(Completes::WhenSent);
            accept_parent(&end);
            end.receive(0, 0, PLACE.max);
            end.next();
            end.post(0, ironwarp_rnic::queue::Operation::Send { invalidate: None }, 0, 0);
            child::wait_for_end();
            return;
        }
    }
    let host = Host::new(Config::default().shm(true), PLACE.len());
    let mut before = None;
    for number in 0..6 {
        let mut partner = Partner::start(child::command(WAITS, "stops"));
        let end = host.end(Completes::WhenSent);
        dial(&end, partner.wait_for("address ").parse().unwrap());
        end.pair.wait_connected(TIMEOUT).unwrap();
        let send = || ironwarp_rnic::queue::Operation::Send { invalidate: None };
        end.receive(0, 0, 0);
        end.post(0, send(), 0, 0);
        end.next();
        end.next();
        until(|| end.routes() == super::common::SHARED);
        let process = rustix::process::Pid::from_raw(i32::try_from(partner.id()).unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        // More than the ring and all credit.
        (1..=20).for_each(|id| end.post(id, send(), 0, PLACE.max));
        let sent = drain(&end, Duration::from_millis(50)).len();
        assert!(sent < 20, "all messages left");
        let killed = Instant::now();
        partner.kill();
        let rest: Vec<_> = (sent..20).map(|_| end.next()).collect();
        assert!(killed.elapsed() < NOTICED, "{:?}", killed.elapsed());
        assert!(rest.iter().all(|it| it.status != Status::Success), "{rest:?}");
        assert!(end.pair.wait_closed(NOTICED));
        drop(end);
        if number == 2 {
            until(|| Held::now().rings == 0);
            before = Some(Held::now());
        }
    }
    assert_nothing_is_left(before.unwrap());
}
