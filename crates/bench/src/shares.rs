//! Measures the shares of bulk handlers (requirement N6): two classes of connections on one overloaded lane.
//! `ironwarp-bench shares [ROUNDS]` prints the throughput of each. The shares change while traffic flows.
//!
//! The lane shares its processor with threads that compute, so that it is slower than the senders.

use crate::control::{self, TIMEOUT};
use crate::neighbour::connect_pairs;
use crate::result::Result;
use ironwarp::completion::{Class, CompletionHandler, CompletionQueue};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{QueuePair, WorkRequest};
use ironwarp::{Adapter, Config};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The pairs of shares to measure.
const SHARES: [[u8; 2]; 4] = [[16, 16], [16, 32], [16, 64], [8, 128]];
/// Duration of each measurement.
const TURN: Duration = Duration::from_millis(500);
/// Time between a change of shares and the measurement.
const SETTLE: Duration = Duration::from_millis(100);
/// Number of threads that compute on the lane's processor.
const BUSY_THREADS: usize = 2;
/// Time until the lane is behind, because the kernel buffers megabytes per connection.
const WARM_UP: Duration = Duration::from_secs(1);
/// Number of connections per class.
const CONNECTIONS: usize = 4;
/// Number of outstanding Writes per connection.
const QUEUED: usize = 8;
/// Payload of a Write in bytes.
const SIZE: usize = 256 << 10;

/// Measures all pairs of shares in turn, and prints a table.
pub(crate) fn run(words: &[String]) -> Result {
    let rounds = match words {
        [] => 5,
        [rounds] => rounds.parse::<NonZero<usize>>()?.get(),
        _ => return Err("usage: ironwarp-bench shares [ROUNDS]".into()),
    };
    let processors = control::processors()?;
    let lanes =
        *processors.get(1).ok_or("two processors are required: one for the senders and one for the lane")?;
    control::prepare(0)?;
    let (client, server) = (Adapter::new()?, Adapter::open(Config::default().lanes(1))?);
    let stop = Arc::new(AtomicBool::new(false));
    let classes = [Group::start(&client, &server, &stop)?, Group::start(&client, &server, &stop)?];
    server.steering().set_processors(0, &[lanes])?;
    for _ in 0..BUSY_THREADS {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            control::pin_to(lanes).expect("a processor of the list");
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
    }
    thread::sleep(WARM_UP);
    let mut ratios: [Vec<f64>; SHARES.len()] = Default::default();
    for _ in 0..rounds {
        for (shares, ratios) in SHARES.iter().zip(&mut ratios) {
            for (class, share) in classes.iter().zip(shares) {
                class.handler.set_class(Class::Bulk(NonZero::new(*share).ok_or("a share of zero")?))?;
            }
            thread::sleep(SETTLE);
            let before = classes.each_ref().map(Group::done);
            thread::sleep(TURN);
            let [first, second] = [0, 1].map(|index| (classes[index].done() - before[index]) as f64);
            ratios.push(second / first);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for class in classes {
        class.sender.join().map_err(|_| "a sender panicked")??;
    }
    println!("| shares | throughput of the second, relative to the first |");
    println!("|---|---|");
    for ([first, second], mut ratios) in SHARES.iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let [low, middle, high] = [0, rounds / 2, rounds - 1].map(|index| ratios[index]);
        println!("| {first} and {second} | {middle:.2} ({low:.2}–{high:.2}) |");
    }
    println!("\nMedian, minimum and maximum of {rounds} rounds.");
    Ok(())
}

/// Connections whose remote ends share a completion handler, and a thread that keeps them busy.
struct Group {
    handler: CompletionHandler,
    /// Number of bytes written so far.
    done: Arc<AtomicU64>,
    sender: JoinHandle<std::result::Result<(), String>>,
    /// The remote ends, which must live as long as the connections.
    _far: (CompletionQueue, Vec<QueuePair>, MemoryRegion),
}

impl Group {
    /// Connects, and keeps the connections busy until `stop` is set.
    fn start(client: &Adapter, server: &Adapter, stop: &Arc<AtomicBool>) -> Result<Self> {
        let handler = server.completion_handler()?;
        let far_cq = server.completion_queue(64)?;
        far_cq.set_handler(&handler);
        let (near, far) = (client.protection_domain(), server.protection_domain());
        let sink = far.register(Buffer::new(SIZE)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let source = near.register(Buffer::new(SIZE)?, Access::LOCAL_READ)?;
        let cq = client.completion_queue(2 * CONNECTIONS * QUEUED)?;
        let listener = server.listen("127.0.0.1:0".parse()?)?;
        let (mut pairs, mut far_pairs) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let pair = near.queue_pair(&cq).send_depth(QUEUED).max_sges(1).create()?;
            let far_pair = far.queue_pair(&far_cq).create()?;
            connect_pairs(&pair, &far_pair, &listener)?;
            pairs.push(pair);
            far_pairs.push(far_pair);
        }
        let (addr, done, stop) = (sink.remote_addr(0)?, Arc::<AtomicU64>::default(), Arc::clone(stop));
        let counter = Arc::clone(&done);
        let sender = thread::spawn(move || {
            keep_busy(&pairs, &cq, &source, addr, &counter, &stop).map_err(|error| error.to_string())
        });
        Ok(Self { handler, done, sender, _far: (far_cq, far_pairs, sink) })
    }

    /// Returns the number of bytes written so far.
    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// Keeps Writes outstanding on all connections, and counts the bytes, until `stop` is set.
fn keep_busy(
    pairs: &[QueuePair],
    cq: &CompletionQueue,
    source: &MemoryRegion,
    addr: RemoteAddr,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result {
    let post = |index: usize| -> Result {
        Ok(pairs[index].post_send(WorkRequest::write(index as u64, &[source.slice(..SIZE)?], addr))?)
    };
    for index in (0..pairs.len()).flat_map(|index| [index; QUEUED]) {
        post(index)?;
    }
    while !stop.load(Ordering::Relaxed) {
        let completion = cq.wait(TIMEOUT)?.success()?;
        done.fetch_add(SIZE as u64, Ordering::Relaxed);
        post(usize::try_from(completion.wr_id)?)?;
    }
    Ok(())
}
