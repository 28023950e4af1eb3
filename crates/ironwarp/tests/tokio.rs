//! The file descriptors of a completion queue, a listener and an event channel with tokio's `AsyncFd`: two tasks of one
//! runtime connect and talk, and each is woken only when there is something to do.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(deprecated, reason = "the replacement of AsyncFd::new in new versions is unsafe, and does the same")]

use ironwarp::Config;
use ironwarp::completion::{Arm, Completion, CompletionQueue, Opcode};
use ironwarp::connection::{
    AcceptOptions, ConnectOptions, ConnectionEvent, ConnectionEventKind, Established, EventChannel, Listener,
};
use ironwarp::memory::MemoryRegion;
use ironwarp::queue::{Completes, QueuePair, WorkRequest};
use ironwarp_testkit::native::{ALL, End, SOON, pattern};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

const ROUNDS: usize = 1000;
const MAX_LEN: usize = 4096;

/// One end, used by a task of the runtime.
struct Task {
    qp: QueuePair,
    cq: AsyncFd<CompletionQueue>,
    events: AsyncFd<Arc<EventChannel<ConnectionEvent>>>,
    /// Send buffer, then receive buffer.
    region: MemoryRegion,
    /// Number of polls, and number of wakeups.
    polls: usize,
    wakes: usize,
}

impl Task {
    fn new(end: &End) -> Self {
        let events = EventChannel::new().unwrap();
        Self {
            qp: end.domain.queue_pair(&end.cq).events(&events).create().unwrap(),
            cq: AsyncFd::new(end.cq.clone()).unwrap(),
            events: AsyncFd::new(events).unwrap(),
            region: end.region(&[0; 2 * MAX_LEN], ALL),
            polls: 0,
            wakes: 0,
        }
    }

    async fn connected(&self) -> Established {
        loop {
            if let Some(event) = self.events.get_ref().try_next() {
                assert_eq!(event.qp, self.qp.id());
                let ConnectionEventKind::Connected(established) = event.kind else { panic!("{event:?}") };
                return established;
            }
            self.events.readable().await.unwrap().clear_ready();
        }
    }

    async fn next(&mut self) -> Completion {
        loop {
            self.polls += 1;
            if let Some(completion) = self.cq.get_ref().poll_one().unwrap() {
                return completion.success().unwrap();
            }
            if !self.cq.get_ref().arm(Arm::Next) {
                let mut ready = self.cq.readable().await.unwrap();
                self.wakes += 1;
                assert!(self.cq.get_ref().take_event(), "woken for nothing");
                ready.clear_ready();
            }
        }
    }

    fn post_receive(&self) {
        self.qp.post_receive(1, &[self.region.slice(MAX_LEN..2 * MAX_LEN).unwrap()]).unwrap();
    }

    fn send(&self, bytes: &[u8]) {
        self.region.write(0, bytes).unwrap();
        let list = [self.region.slice(..bytes.len()).unwrap()];
        self.qp.post_send(WorkRequest::send(2, &list).unsignaled()).unwrap();
    }

    /// Waits for the next message. Panics unless it is the expected one.
    async fn receive(&mut self, expected: &[u8]) {
        let completion = self.next().await;
        assert_eq!((completion.opcode, completion.byte_len as usize), (Opcode::Receive, expected.len()));
        let mut found = vec![0; expected.len()];
        self.region.read(MAX_LEN, &mut found).unwrap();
        assert_eq!(found, expected);
    }

    /// Checks that there was at most one wakeup per message, and at most three polls: before the wakeup, after it, and
    /// once more if the message arrived between polling and arming.
    fn expect_few_polls(&self) {
        assert!(self.wakes <= ROUNDS, "{} wakes for {ROUNDS} messages", self.wakes);
        assert!(self.polls <= 3 * ROUNDS, "{} polls for {ROUNDS} messages", self.polls);
    }
}

fn message(seed: u8, round: usize) -> Vec<u8> {
    pattern(seed.wrapping_add(round.to_le_bytes()[0]), 1 + round * 37 % MAX_LEN)
}

async fn run_server(listener: AsyncFd<Listener>, mut task: Task) -> Task {
    task.post_receive();
    let incoming = loop {
        if let Ok(incoming) = listener.get_ref().accept(Duration::ZERO) {
            break incoming;
        }
        listener.readable().await.unwrap().clear_ready();
    };
    incoming.start_accept(&task.qp, &AcceptOptions::new()).unwrap();
    task.connected().await;
    for round in 0..ROUNDS {
        task.receive(&message(1, round)).await;
        task.post_receive();
        task.send(&message(2, round));
    }
    task
}

async fn run_client(to: std::net::SocketAddr, mut task: Task) -> Task {
    task.qp.start_connect(to, &ConnectOptions::new()).unwrap();
    assert_eq!(task.connected().await.peer, to);
    for round in 0..ROUNDS {
        task.post_receive();
        task.send(&message(1, round));
        task.receive(&message(2, round)).await;
    }
    task
}

#[test]
fn two_tasks_of_a_runtime_talk_without_spurious_wakeups() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, server) = ([(); 2]).map(|()| End::new(Config::default(), Completes::WhenSent)).into();
    runtime.block_on(async {
        let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let serving = tokio::spawn(run_server(AsyncFd::new(listener).unwrap(), Task::new(&server)));
        let asking = tokio::spawn(run_client(to, Task::new(&client)));
        for task in [asking, serving] {
            tokio::time::timeout(6 * SOON, task).await.expect("in time").unwrap().expect_few_polls();
        }
    });
}
