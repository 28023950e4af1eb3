//! Several threads that post to one queue pair.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{Engine, QueuePair};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, InlineData, Opcode, Status, WorkRequest};
use ironwarp_testkit::engine::{SEND, Side, connect};
use std::time::Duration;

const THREADS: usize = 4;
/// Number of messages of each thread.
const MESSAGES: u64 = 5_000;
/// Number of posted receives.
const RECEIVES: u64 = 32;
/// Maximum length of a message.
const ROOM: u32 = 1024;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Posts the messages of a thread: short ones that bypass the send queue if it is empty, and in between some that are
/// signaled, and some that are too long for that.
fn post_all(pair: &QueuePair, thread: usize) {
    for number in 0..MESSAGES {
        let mut bytes = [thread.to_le_bytes(), number.to_le_bytes()].concat();
        if number % 11 == 0 {
            bytes.resize(600, 0);
        }
        loop {
            let data = Data::Inline(InlineData::from(&bytes[..]));
            let request = WorkRequest { signaled: number % 7 == 0, ..WorkRequest::new(number, SEND, data) };
            match pair.post_send([request]) {
                Ok(()) => break,
                Err(PostError::Full { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Receives all messages, and checks that those of each thread arrive in the order in which it posted them.
fn receive_all(server: &Side, pair: &QueuePair) {
    let mut next = [0; THREADS];
    while next.iter().sum::<u64>() < MESSAGES * next.len() as u64 {
        let completion = server.next();
        assert_eq!(
            (completion.opcode, completion.status),
            (Opcode::Receive, Status::Success),
            "{completion:?}"
        );
        let place = completion.wr_id * u64::from(ROOM);
        let at = usize::try_from(place).unwrap();
        let word = |at: usize| u64::from_le_bytes(server.memory[at..at + 8].try_into().unwrap());
        let (thread, number) = (word(at), word(at + 8));
        let expected = &mut next[usize::try_from(thread).unwrap()];
        assert_eq!(number, *expected, "thread {thread}");
        *expected += 1;
        server.receive(pair, completion.wr_id, place, ROOM);
    }
}

#[test]
fn messages_of_each_thread_arrive_in_order() {
    for shared_memory in [false, true] {
        let config = Config::default().lanes(1).shm(shared_memory);
        let side = |completions| {
            let memory = usize::try_from(u64::from(ROOM) * RECEIVES).unwrap();
            Side::new(&Engine::new(config.clone()).unwrap(), completions, memory)
        };
        let (client, server) = (side(1 << 16), side(64));
        let [near, far] = [&client, &server].map(|side| side.pair(32, Completes::WhenSent));
        (0..RECEIVES).for_each(|id| server.receive(&far, id, id * u64::from(ROOM), ROOM));
        connect((&client, &near), (&server, &far));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let near = &near;
                scope.spawn(move || post_all(near, thread));
            }
            receive_all(&server, &far);
        });
        let signaled = (0..MESSAGES).filter(|number| number % 7 == 0).count() * THREADS;
        let mut completed = 0;
        while completed < signaled {
            assert!(client.cq.wait(Some(TIMEOUT)).unwrap(), "{completed} of {signaled} requests completed");
            completed += client.cq.poll(signaled, |it| assert_eq!(it.status, Status::Success)).unwrap();
        }
    }
}
