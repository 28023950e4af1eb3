//! Futures that are dropped after a random number of polls: requests go on, nothing is lost or doubled, and all chunks
//! return to their pools.

use super::end::{CHUNK, End, connect_pairs, fill};
use super::run;
use ironwarp::completion::Completion;
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, Chunk, MemoryRegion, RemoteAddr};
use ironwarp::queue::PostError;
use ironwarp::tokio::{Error, Listener, Posted, QueuePair, ReceiveQueue, Refused};
use ironwarp_testkit::long_form;
use ironwarp_testkit::native::{SOON, pattern};
use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;
use tokio::task::{JoinSet, LocalSet, spawn_local, yield_now};

/// Number of futures of the clients that may be dropped, in the short and the long form of the test.
const POINTS: [usize; 2] = [5_000, 50_000];
/// Connections that last as long as the test, each used by a task at each end.
const CONNECTIONS: usize = 4;
/// Receives that the server keeps posted on each of them.
const DEPTH: usize = 4;
/// The client has this many chunks for each connection.
const CLIENT_CHUNKS: usize = 8;
/// Maximum number of polls before a future is dropped.
const MAX_POLLS: u64 = 12;
/// Slots of each connection that the client writes.
const SLOTS: usize = 4;

/// What a future does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Connect,
    Send,
    Receive,
    Write,
    Read,
    Disconnect,
    // These wait for the client: they may be dropped any number of times.
    Listen,
    Accept,
    Recv,
}

/// Number of kinds.
const KINDS: usize = Kind::Recv as usize + 1;

/// Pseudo-random numbers, and what happened to futures.
#[derive(Debug)]
struct Chance {
    state: Cell<u64>,
    /// Number of futures of the clients that are left to be tried.
    points: Cell<usize>,
    /// Number of futures of each kind that were dropped, and that completed.
    dropped: [Cell<usize>; KINDS],
    completed: [Cell<usize>; KINDS],
}

impl Chance {
    fn below(&self, limit: u64) -> u64 {
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        state % limit
    }

    /// Polls a future a random number of times, perhaps never. Returns `None` if it was dropped before it completed.
    async fn attempt<F: Future>(&self, kind: Kind, future: F) -> Option<F::Output> {
        self.poll(kind, future, self.below(MAX_POLLS)).await
    }

    /// Polls a future a random number of times, at least once.
    async fn start<F: Future>(&self, kind: Kind, future: F) -> Option<F::Output> {
        self.poll(kind, future, 1 + self.below(MAX_POLLS)).await
    }

    async fn poll<F: Future>(&self, kind: Kind, future: F, polls: u64) -> Option<F::Output> {
        let mut future = pin!(future);
        if !matches!(kind, Kind::Listen | Kind::Accept | Kind::Recv) {
            self.points.update(|points| points.saturating_sub(1));
        }
        for _ in 0..polls {
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            if let Poll::Ready(output) = polled {
                self.completed[kind as usize].update(|count| count + 1);
                return Some(output);
            }
            yield_now().await;
        }
        self.dropped[kind as usize].update(|count| count + 1);
        None
    }

    /// Panics unless futures of every kind were dropped and completed often. How often depends on the machine: one
    /// future in twelve is never polled.
    fn check(&self, points: usize) {
        let count = |of: &[Cell<usize>; KINDS]| of.each_ref().map(Cell::get);
        let (dropped, completed) = (count(&self.dropped), count(&self.completed));
        println!("dropped {dropped:?}, completed {completed:?}");
        assert!(dropped[..Kind::Listen as usize].iter().sum::<usize>() > points / 20, "{dropped:?}");
        assert!(completed[..Kind::Listen as usize].iter().sum::<usize>() > points / 20, "{completed:?}");
        assert!(
            dropped.iter().chain(&completed).all(|count| *count > points / 1000),
            "{dropped:?} {completed:?}"
        );
    }
}

/// What a message of the client asks for.
const PLAIN: u8 = 0;
const ANSWER: u8 = 1;

/// The bytes of a message: what it asks for, its number, and a pattern.
fn message(kind: u8, number: usize) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend(pattern(number.to_le_bytes()[0], number * 37 % (CHUNK - 9)));
    bytes
}

/// Takes a chunk, as soon as there is one.
async fn take(end: &End) -> Chunk {
    loop {
        if let Some(chunk) = end.pool.take() {
            return chunk;
        }
        yield_now().await;
    }
}

/// Receives messages until the connection is closed. Panics unless each comes once and in order. Returns their number.
async fn serve(chance: &Chance, qp: &QueuePair, queue: &ReceiveQueue) -> usize {
    let (mut received, mut answers) = (0, 0);
    loop {
        let Some(found) = chance.attempt(Kind::Recv, queue.recv()).await else { continue };
        let Some(mut found) = found.unwrap() else { return received };
        let bytes = found.chunk().to_vec().unwrap();
        assert_eq!(bytes, message(bytes[0], received), "message {received}");
        received += 1;
        if bytes[0] == ANSWER {
            let answer = message(PLAIN, answers);
            found.chunk_mut().set_len(answer.len()).unwrap();
            found.chunk_mut().write(0, &answer).unwrap();
            // The message is posted for another one when it was sent, whether the future is dropped or not.
            if let Some(sent) = chance.attempt(Kind::Send, qp.send(found).unwrap()).await {
                drop(sent.unwrap());
            }
            answers += 1;
        }
    }
}

/// The client's end of a connection.
struct Client {
    end: Rc<End>,
    chance: Rc<Chance>,
    qp: QueuePair,
    sent: usize,
    /// Number of receives that were posted, each for one answer.
    answers: usize,
    /// What the slots contain after the requests so far.
    written: [Vec<u8>; SLOTS],
    remote: RemoteAddr,
}

impl Client {
    /// Posts a request, as soon as there is room for it, and drops its future after some polls. Returns its buffers if
    /// it has completed by then.
    async fn request(
        &self,
        kind: Kind,
        mut chunk: Chunk,
        post: impl Fn(&QueuePair, Chunk) -> Result<Posted<Chunk>, Refused<Chunk>>,
    ) -> Option<Chunk> {
        loop {
            match post(&self.qp, chunk) {
                Ok(posted) => return self.chance.attempt(kind, posted).await.map(|result| result.unwrap().1),
                Err(refused) => {
                    assert!(matches!(refused.error, Error::Post(PostError::Full { .. })), "{refused}");
                    chunk = refused.buffers;
                }
            }
            yield_now().await;
        }
    }

    async fn send(&mut self, kind: u8) {
        let chunk = fill(take(&self.end).await, &message(kind, self.sent));
        self.sent += 1;
        self.request(Kind::Send, chunk, QueuePair::send).await;
    }

    /// Asks for an answer. If the future of its receive is dropped, the answer is lost with it, and the next receive
    /// gets the next answer all the same.
    async fn ask(&mut self) {
        let (number, answer) = self.post_question().await;
        if let Some(answer) = self.chance.attempt(Kind::Receive, answer).await {
            check_answer(number, answer.unwrap());
        }
    }

    /// Asks for an answer, and waits for it. Answers come in order, so the server has sent all of them.
    async fn ask_and_wait(&mut self) {
        let (number, answer) = self.post_question().await;
        check_answer(number, answer.await.unwrap());
    }

    /// Posts a receive and sends a question. Returns the number of the answer, and the future of the receive.
    async fn post_question(&mut self) -> (usize, Posted<Chunk>) {
        // Both chunks first: other tasks take chunks, too, and must not wait for each other.
        let (mut chunk, mut question) = (take(&self.end).await, None);
        while question.is_none() {
            question = self.end.pool.take();
            if question.is_none() {
                drop(chunk);
                yield_now().await;
                chunk = take(&self.end).await;
            }
        }
        chunk.set_len(CHUNK).unwrap();
        let number = self.answers;
        self.answers += 1;
        let answer = self.qp.receive(chunk).unwrap();
        let question = fill(question.unwrap(), &message(ANSWER, self.sent));
        self.sent += 1;
        self.request(Kind::Send, question, QueuePair::send).await;
        (number, answer)
    }

    async fn write(&mut self, round: usize) {
        let (slot, bytes) = (round % SLOTS, pattern(round.to_le_bytes()[0], CHUNK));
        let to = self.addr(slot);
        let chunk = fill(take(&self.end).await, &bytes);
        self.written[slot] = bytes;
        self.request(Kind::Write, chunk, |qp, chunk| qp.write(chunk, to)).await;
    }

    async fn read(&mut self, round: usize) {
        let (slot, mut chunk) = (round % SLOTS, take(&self.end).await);
        chunk.set_len(CHUNK).unwrap();
        let from = self.addr(slot);
        if let Some(chunk) = self.request(Kind::Read, chunk, |qp, chunk| qp.read(chunk, from)).await {
            assert_eq!(chunk.to_vec().unwrap(), self.written[slot], "slot {slot} in round {round}");
        }
    }

    fn addr(&self, number: usize) -> RemoteAddr {
        RemoteAddr { offset: self.remote.offset + (number * CHUNK) as u64, ..self.remote }
    }

    /// Posts requests of all kinds, disconnects, and returns the number of messages that were sent.
    async fn run(mut self, to: SocketAddr) -> usize {
        let mut round = 0;
        let mut others = 0;
        while self.chance.points.get() > 0 {
            match self.chance.below(9) {
                0 | 1 => self.send(PLAIN).await,
                2 | 3 => self.ask().await,
                4 | 5 => self.write(round).await,
                6 | 7 => self.read(round).await,
                _ => others += connect_briefly(&self.chance, &self.end, to).await,
            }
            round += 1;
        }
        // The last Read shows that all Writes before it have arrived.
        for slot in 0..SLOTS {
            let mut chunk = take(&self.end).await;
            chunk.set_len(CHUNK).unwrap();
            let (_, chunk) = self.qp.read(chunk, self.addr(slot)).unwrap().await.unwrap();
            assert_eq!(chunk.to_vec().unwrap(), self.written[slot], "slot {slot} at the end");
        }
        // An answer that the server has not sent when the connection is closed would be flushed.
        self.ask_and_wait().await;
        self.chance.attempt(Kind::Disconnect, self.qp.disconnect()).await;
        self.qp.disconnect().await;
        self.sent + others
    }
}

/// Panics unless a receive has got this answer.
fn check_answer(number: usize, (completion, mut chunk): (Completion, Chunk)) {
    chunk.set_len(completion.byte_len as usize).unwrap();
    assert_eq!(chunk.to_vec().unwrap(), message(PLAIN, number), "answer {number}");
}

/// Connects a queue pair, sends a message if that succeeds, and disconnects it. Returns the number of messages.
async fn connect_briefly(chance: &Chance, end: &End, to: SocketAddr) -> usize {
    let (qp, options) = (end.queue_pair(), ConnectOptions::new());
    if chance.below(MAX_POLLS) == 0 {
        drop(qp.connect(to, &options));
        return 0;
    }
    let connected = match chance.start(Kind::Connect, qp.connect(to, &options)).await {
        Some(connected) => connected.is_ok(),
        // The attempt goes on. Give it up, or wait for it.
        None if chance.below(2) == 0 => return 0,
        None => qp.connected().await.is_ok(),
    };
    if !connected {
        return 0;
    }
    chance.attempt(Kind::Send, qp.send_inline(&message(PLAIN, 0)).unwrap()).await;
    if chance.below(2) == 0 {
        chance.attempt(Kind::Disconnect, qp.disconnect()).await;
    }
    1
}

/// Accepts connections, and serves each of them by a task of its own. Returns the number of messages.
async fn accept(chance: Rc<Chance>, end: Rc<End>, listener: Listener, stop: Rc<Cell<bool>>) -> usize {
    let mut serving = JoinSet::new();
    while !stop.get() {
        let Some(incoming) = chance.attempt(Kind::Listen, listener.accept()).await else { continue };
        let (chance, end, qp) = (Rc::clone(&chance), Rc::clone(&end), end.queue_pair());
        serving.spawn_local(async move {
            let (queue, options) = (qp.receive_queue([take(&end).await]).unwrap(), AcceptOptions::new());
            let accepting = incoming.unwrap().accept(&qp, &options);
            if chance.below(MAX_POLLS) == 0 {
                drop(accepting); // never polled: the request is rejected
                return 0;
            }
            let accepted = match chance.start(Kind::Accept, accepting).await {
                Some(accepted) => accepted,
                None => qp.connected().await,
            };
            // The client may have given up.
            if accepted.is_ok() { serve(&chance, &qp, &queue).await } else { 0 }
        });
    }
    serving.join_all().await.into_iter().sum()
}

fn region(end: &End) -> MemoryRegion {
    end.domain.register(Buffer::new(SLOTS * CHUNK).unwrap(), Access::all()).unwrap()
}

#[test]
fn dropped_futures_lose_and_double_nothing() {
    run(cancel_randomly(0x9e37_79b9_7f4a_7c15));
}

/// The drivers' tasks run on other threads than the futures: completions arrive while futures are dropped.
#[test]
fn dropped_futures_lose_and_double_nothing_with_drivers_on_other_threads() {
    let drivers = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _drivers = drivers.enter();
    // The runtime of `block_on` would be the current one for the drivers, too.
    let ends = ends();
    runtime.block_on(async {
        tokio::time::timeout(6 * SOON, cancel(0x1234_5678_9abc_def1, ends)).await.expect("in time");
    });
    let deadline = Instant::now() + SOON;
    while drivers.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "the drivers do not end");
        std::thread::yield_now();
    }
}

/// Creates the client's and the server's end.
fn ends() -> [Rc<End>; 2] {
    // The server has up to as many short connections as accepting and closing take time, each with one chunk.
    [CONNECTIONS * CLIENT_CHUNKS, CONNECTIONS * DEPTH + 64].map(|chunks| Rc::new(End::new(chunks)))
}

async fn cancel_randomly(seed: u64) {
    cancel(seed, ends()).await;
}

async fn cancel(seed: u64, [client, server]: [Rc<End>; 2]) {
    LocalSet::new().run_until(cancel_locally(seed, client, server)).await;
}

async fn cancel_locally(seed: u64, client: Rc<End>, server: Rc<End>) {
    let points = POINTS[usize::from(long_form::is_requested())];
    let counts = || std::array::from_fn(|_| Cell::new(0));
    let chance = Rc::new(Chance {
        state: Cell::new(seed),
        points: Cell::new(points),
        dropped: counts(),
        completed: counts(),
    });
    let (listener, stop) = (server.listen(), Rc::new(Cell::new(false)));
    let to = listener.local_addr().unwrap();
    let accepting = spawn_local(accept(Rc::clone(&chance), Rc::clone(&server), listener, Rc::clone(&stop)));
    let (mut clients, mut servers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..CONNECTIONS {
        let (near, far, region) = (client.queue_pair(), server.queue_pair(), region(&server));
        let queue = far.receive_queue(server.take(DEPTH)).unwrap();
        connect_pairs(&near, &far, &server).await;
        let one = Client {
            end: Rc::clone(&client),
            chance: Rc::clone(&chance),
            qp: near,
            sent: 0,
            answers: 0,
            written: std::array::from_fn(|_| vec![0; CHUNK]),
            remote: region.remote_addr(0).unwrap(),
        };
        clients.spawn_local(one.run(to));
        let chance = Rc::clone(&chance);
        servers.spawn_local(async move {
            let received = serve(&chance, &far, &queue).await;
            far.disconnect().await;
            drop(region);
            received
        });
    }
    let sent: usize = clients.join_all().await.into_iter().sum();
    let received: usize = servers.join_all().await.into_iter().sum();
    stop.set(true);
    let received = received + accepting.await.unwrap();
    assert_eq!(received, sent, "every message arrived once");
    chance.check(points);
    // Connections that were given up close in the background.
    while (client.pool.available(), server.pool.available()) != (client.chunks, server.chunks) {
        yield_now().await;
    }
}
