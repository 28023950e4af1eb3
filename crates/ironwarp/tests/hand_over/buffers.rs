//! Measures what shareable buffers cost while nothing moves: the time of Writes and Reads between buffers in files, next to
//! those between buffers on the heap. Prints numbers, and asserts none:
//! `cargo test -p ironwarp --test hand_over --release -- --ignored --nocapture buffers`.

use ironwarp::prelude::*;
use ironwarp_testkit::native::SOON;
use std::time::{Duration, Instant};

/// Number of measurements of each kind.
const ROUNDS: usize = 101;
/// Number of requests of a measurement, and of those that are outstanding.
const REQUESTS: u64 = 1000;
const DEPTH: u64 = 16;

/// Two connected ends with a buffer each.
struct Ends {
    cq: CompletionQueue,
    qp: QueuePair,
    here: MemoryRegion,
    there: MemoryRegion,
    _adapters: [Adapter; 2],
    _peer: QueuePair,
}

impl Ends {
    fn new(is_shareable: bool, len: usize) -> Self {
        // Over TCP, which copies in the kernel: the more that depends on the buffers.
        let adapters = [(); 2].map(|()| Adapter::open(Config::default().private(false)).unwrap());
        let [(cq, here, qp), (_, there, peer)] = [0, 1].map(|end: usize| {
            let (cq, domain) =
                (adapters[end].completion_queue(64).unwrap(), adapters[end].protection_domain());
            let buffer = match is_shareable {
                true => Buffer::builder().shareable().allocate(len).unwrap(),
                false => Buffer::new(len).unwrap(),
            };
            let region = domain.register(buffer, Access::all()).unwrap();
            region.write(0, &vec![0x5a; len]).unwrap();
            let qp = domain.queue_pair(&cq).create().unwrap();
            (cq, region, qp)
        });
        let listener = adapters[1].listen("127.0.0.1:0".parse().unwrap()).unwrap();
        qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
        listener.accept(SOON).unwrap().accept(&peer, &AcceptOptions::new()).unwrap();
        qp.wait_connected(SOON).unwrap();
        Self { cq, qp, here, there, _adapters: adapters, _peer: peer }
    }

    /// Returns the time of many Writes and Reads.
    fn measure(&self) -> Duration {
        let start = Instant::now();
        let (mut posted, mut completed) = (0, 0);
        while completed < REQUESTS {
            while posted < REQUESTS && posted < completed + DEPTH {
                let (slice, to) = (self.here.slice(..).unwrap(), self.there.remote_addr(0).unwrap());
                let request = match posted % 2 {
                    0 => WorkRequest::write(posted, &[slice], to),
                    _ => WorkRequest::read(posted, &[slice], to),
                };
                self.qp.post_send(request).unwrap();
                posted += 1;
            }
            self.cq.wait(SOON).unwrap().success().unwrap();
            completed += 1;
        }
        start.elapsed()
    }
}

#[test]
#[ignore = "prints times, which depend on the machine"]
fn what_shareable_buffers_cost_is_printed() {
    for len in [64, 4096, 65_536, 1 << 20] {
        let (heap, shareable) = (Ends::new(false, len), Ends::new(true, len));
        let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
        for round in 0..2 * ROUNDS {
            let which = (round + round / 2) % 2; // in turns, and each as often first
            times[which].push([&heap, &shareable][which].measure());
        }
        let [heap, shareable] = times.map(|mut times| {
            times.sort_unstable();
            times
        });
        let ratio = |at: usize| shareable[at].as_secs_f64() / heap[at].as_secs_f64();
        let (half, quarter) = (ROUNDS / 2, ROUNDS / 4);
        println!(
            "{len} bytes: heap {:?}, shareable {:?}, ratio {:.3} (quarters {:.3} and {:.3})",
            heap[half],
            shareable[half],
            ratio(half),
            ratio(quarter),
            ratio(ROUNDS - 1 - quarter)
        );
    }
}
