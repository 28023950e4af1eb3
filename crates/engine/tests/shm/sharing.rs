//! Many queue pairs share the memory of two adapters, and none of them blocks the others.

use super::common::{End, Host, SHARED, Waits, begin_sharing, check, connect, ends, pattern, rings_mapped};
use super::stream::{Messages, Place, Stream};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation, Status};
use ironwarp_testkit::child;
use ironwarp_testkit::wait::until;
use std::sync::Arc;
use std::time::Duration;

/// Number of queue pairs, of completion queues, and of threads at each end.
const PAIRS: usize = 64;
const QUEUES: usize = 4;
/// Number of messages on each queue pair, in each direction.
const MESSAGES: u64 = 40;
const MAX: usize = 40_000;
const SLOTS: usize = 4;
/// Memory after the places of all queue pairs, for other messages.
const FREE: usize = place(PAIRS).at;
const FREE_LEN: usize = 2 << 20;
const SEND: Operation = Operation::Send { invalidate: None };

const fn place(number: usize) -> Place {
    let place = Place { at: 0, slots: SLOTS, max: MAX };
    Place { at: number * place.len(), ..place }
}

/// Two adapters, and connected queue pairs on `QUEUES` completion queues of each.
fn connected(config: &Config) -> Vec<(End, End)> {
    let hosts = [(); 2].map(|()| Host::new(config.clone(), FREE + FREE_LEN));
    let queues = hosts.each_ref().map(|host| [(); QUEUES].map(|()| host.engine.create_cq(4096).unwrap()));
    let completes = |number| if number % 2 == 0 { Completes::WhenSent } else { Completes::WhenAcknowledged };
    let new = |of: usize, number: usize| hosts[of].end_on(&queues[of][number % QUEUES], completes(number));
    let pairs: Vec<_> = (0..PAIRS).map(|number| (new(0, number), new(1, number))).collect();
    pairs.iter().for_each(|(client, server)| connect(client, server));
    pairs
}

/// Streams on all of these queue pairs, whose numbers are given, one thread after another for those of one completion
/// queue: a thread drives its queue pair, and with it the others.
fn stream_on(pairs: &[(usize, &(End, End))]) {
    let messages = |seed| Messages { seed, max: MAX };
    std::thread::scope(|scope| {
        for queue in 0..QUEUES {
            let of_queue: Vec<_> = pairs.iter().filter(|(number, _)| number % QUEUES == queue).collect();
            for is_client in [true, false] {
                let of_queue = of_queue.clone();
                scope.spawn(move || {
                    for (number, (client, server)) in of_queue {
                        let end = if is_client { client } else { server };
                        let seeds = [2 * *number as u64 + 1, 2 * *number as u64 + 2];
                        let [own, others] = if is_client { seeds } else { [seeds[1], seeds[0]] };
                        let mut stream = Stream::new(end, place(*number), messages(own), messages(others));
                        stream.run(|sent| sent < MESSAGES).unwrap_or_else(|failed| panic!("{failed:?}"));
                    }
                });
            }
        }
    });
}

#[test]
fn queue_pairs_of_several_completion_queues_and_threads_share_memory() {
    if !child::in_child("sharing::queue_pairs_of_several_completion_queues_and_threads_share_memory") {
        return;
    }
    let config = Config::default().shm(true);
    let pairs = connected(&config);
    stream_on(&pairs.iter().enumerate().collect::<Vec<_>>());
    until(|| pairs.iter().all(|(client, server)| client.routes() == SHARED && server.routes() == SHARED));
    // Each pair of lanes has one, which both adapters of this process have mapped.
    let lanes = pairs[0].0.host.engine.statistics().lanes;
    assert!(rings_mapped() <= 2 * lanes * lanes, "{} mappings, {lanes} lanes", rings_mapped());
    drop(pairs);
    until(|| rings_mapped() == 0);
}

/// Sends messages until nothing more leaves, for a moment. Returns their number.
fn fill(end: &End, len: usize) -> u64 {
    for number in 0.. {
        end.host.memory.write(FREE, &pattern(number, len));
        end.post(number, SEND, FREE, len);
        match end.next_within(Duration::from_millis(200)) {
            Some(completion) => {
                assert_eq!((completion.opcode, completion.status), (Opcode::Send, Status::Success));
            }
            None => return number + 1,
        }
    }
    unreachable!()
}

/// One queue pair posts no receives until its peer cannot send any more.
#[test]
fn a_stalled_queue_pair_does_not_block_those_that_share_its_memory() {
    let config = Config::default().shm(true).lanes(1);
    let pairs = connected(&config);
    let ((client, server), others) = pairs.split_first().unwrap();
    begin_sharing(client, server);
    let len = 10_000;
    // Its own completion queue, so that no other thread takes its completions.
    let (stalled, receiver) = (client.host.end(Completes::WhenSent), server.host.end(Completes::WhenSent));
    connect(&stalled, &receiver);
    begin_sharing(&stalled, &receiver);
    let sent = fill(&stalled, len);
    assert!(sent > 10, "{sent} messages left");

    stream_on(&others.iter().enumerate().map(|(number, pair)| (number + 1, pair)).collect::<Vec<_>>());

    // It goes on as soon as it posts receives.
    for number in 0..sent {
        receiver.receive(number, FREE, len);
        assert_eq!(receiver.succeeds(Opcode::Receive, number).byte_len as usize, len);
        if number + 1 < sent {
            check(&receiver.host.memory.read(FREE, len), number, "a message that waited");
        }
    }
    assert_eq!(stalled.succeeds(Opcode::Send, sent - 1).wr_id, sent - 1);
    assert_eq!(receiver.routes(), SHARED);
}

/// The program of one end posts receives and never polls: its lane receives.
#[test]
fn a_program_that_never_polls_does_not_block_those_that_share_its_memory() {
    let config = Config::default().shm(true).lanes(1);
    let pairs = connected(&config);
    let ((client, server), others) = pairs.split_first().unwrap();
    let new = |host: &Arc<Host>| host.end(Completes::WhenAcknowledged);
    let (sender, silent) = (new(&client.host), new(&server.host));
    connect(&sender, &silent);
    let (len, count) = (30_000, 40);
    for number in 0..count {
        silent.receive(number as u64, FREE + number * len, len);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stream_on(
                &others.iter().enumerate().map(|(number, pair)| (number + 1, pair)).collect::<Vec<_>>(),
            );
        });
        for number in 0..count as u64 {
            let at = FREE + usize::try_from(number).unwrap() * len;
            sender.host.memory.write(at, &pattern(number, len));
            sender.post(number, SEND, at, len);
            sender.succeeds(Opcode::Send, number);
        }
    });
    until(|| sender.routes() == SHARED && silent.routes() == SHARED);
    for number in 0..count {
        check(
            &silent.host.memory.read(FREE + number * len, len),
            number as u64,
            "a message that nobody polled for",
        );
    }
}

/// All waiting methods at once, at both ends of one carrier.
#[test]
fn threads_that_poll_sleep_and_wait_for_events_share_memory() {
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true).lanes(1), place(PAIRS).at));
    let waits = [Waits::Polling, Waits::Sleeping, Waits::ForEvents];
    let pairs: Vec<_> = (0..9)
        .map(|number| {
            let new = |of: usize, waits| hosts[of].end(Completes::WhenAcknowledged).waits(waits);
            let pair = (new(0, waits[number % 3]), new(1, waits[number / 3]));
            connect(&pair.0, &pair.1);
            pair
        })
        .collect();
    std::thread::scope(|scope| {
        for (number, (client, server)) in pairs.iter().enumerate() {
            for (end, own, others) in [(client, 1, 2), (server, 2, 1)] {
                let messages = |seed: u64| Messages { seed: seed + 10 * number as u64, max: MAX };
                let mut stream = Stream::new(end, place(number), messages(own), messages(others));
                scope.spawn(move || {
                    stream.run(|sent| sent < MESSAGES).unwrap_or_else(|failed| panic!("{failed:?}"));
                });
            }
        }
    });
    until(|| pairs.iter().all(|(client, server)| client.routes() == SHARED && server.routes() == SHARED));
}

/// Requirement N10: a connection in shared memory has the ports of its TCP connection.
#[test]
fn the_ports_of_a_connection_stay_when_it_moves_to_shared_memory() {
    let (client, server) = ends(&Config::default(), Completes::WhenAcknowledged, 4096);
    let before = client.pair.addresses().unwrap();
    begin_sharing(&client, &server);
    assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
    assert_eq!(client.pair.addresses(), Some(before));
    assert_eq!(server.pair.addresses(), Some((before.1, before.0)));
}
