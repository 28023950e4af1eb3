//! Thousands of connected queue pairs between two processes: their cost, and that they do not slow down
//! traffic.
//!
//! Prints its results; run it in release mode for meaningful ones:
//! `cargo test --release -p ironwarp-engine --test scale -- --nocapture`
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Status, WorkRequest};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::engine::{self, SEND};
use ironwarp_testkit::limits::{raise_descriptor_limit, status};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAIRS: usize = 9_000;
const FEW: usize = 10;
/// Number of outstanding requests.
const OUTSTANDING: usize = 32;
const ROUND_TRIPS: usize = 40_000;
const SIZE: u32 = 64;
/// Maximum number of connections in progress: the server resets those of a client that begins too many (`admission.rs`).
const MAX_CONNECTING: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(60);

struct Side {
    side: engine::Side,
    pairs: Vec<Arc<QueuePair>>,
}

impl Side {
    fn new() -> Self {
        raise_descriptor_limit();
        let config = Config::default().keepalive(Duration::from_secs(600)).startup(TIMEOUT);
        let side = engine::Side::new(&Engine::new(config).unwrap(), PAIRS * 4, 4096);
        Self { side, pairs: Vec::new() }
    }

    /// Adds a queue pair with two posted receives.
    fn add(&mut self) -> &Arc<QueuePair> {
        let which = self.pairs.len();
        // Room for all outstanding requests, and for as many whose replies have come before a busy thread has removed them.
        self.pairs.push(self.side.pair(2 * OUTSTANDING, Completes::WhenSent));
        self.receive(which);
        self.receive(which);
        &self.pairs[which]
    }

    fn receive(&self, which: usize) {
        self.side.receive(&self.pairs[which], which as u64, 0, SIZE);
    }

    fn send(&self, which: usize) {
        let request = self.side.request(which as u64, SEND, SIZE);
        self.pairs[which].qp().post_send(vec![WorkRequest { signaled: false, ..request }]).unwrap();
    }

    /// Waits for receives, and calls `each` with the queue pair of each.
    fn received(&self, mut each: impl FnMut(usize)) {
        let mut found = Vec::new();
        while found.is_empty() {
            assert!(self.side.cq.wait(Some(TIMEOUT)).unwrap(), "nothing came");
            self.side.cq.poll(64, |completion| found.push(completion)).unwrap();
        }
        for completion in found {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            assert_eq!(completion.byte_len, SIZE);
            each(usize::try_from(completion.wr_id).unwrap());
        }
    }

    /// Exchanges requests and replies on `among` random queue pairs. Returns the rate per second.
    fn traffic(&self, among: usize) -> f64 {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % among
        };
        let start = Instant::now();
        for _ in 0..OUTSTANDING {
            self.send(next());
        }
        let mut done = 0;
        while done < ROUND_TRIPS {
            self.received(|which| {
                self.receive(which);
                self.send(next());
                done += 1;
            });
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        // Wait for the outstanding requests.
        let mut left = OUTSTANDING;
        while left > 0 {
            self.received(|which| {
                self.receive(which);
                left -= 1;
            });
        }
        rate
    }
}

fn serve() {
    let mut side = Side::new();
    let listener = side.side.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    println!("\naddress {}", listener.local_addr().unwrap());
    for _ in 0..PAIRS {
        let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
        let terms = side.side.engine.terms(Some(1), Some(1));
        incoming.accept(side.add(), terms, &[]).unwrap();
    }
    let side = Arc::new(side);
    let serving = Arc::clone(&side);
    std::thread::spawn(move || {
        loop {
            serving.received(|which| {
                serving.receive(which);
                serving.send(which);
            });
        }
    });
    child::wait_for_end();
    std::process::exit(0);
}

#[test]
fn nine_thousand_queue_pairs() {
    if child::role().is_some() {
        return serve();
    }
    let mut server = Partner::start(child::command("nine_thousand_queue_pairs", "server"));
    let address: SocketAddr = server.wait_for("address ").parse().unwrap();

    let mut side = Side::new();
    let (memory, threads) = (status("VmRSS:"), status("Threads:"));
    let start = Instant::now();
    let options = ConnectOptions { ird: Some(1), ord: Some(1), ..ConnectOptions::default() };
    for _ in 0..PAIRS {
        let engine = Arc::clone(&side.side.engine);
        engine.connect(side.add(), address, &options).unwrap();
        if let Some(earlier) = side.pairs.len().checked_sub(MAX_CONNECTING) {
            side.pairs[earlier].wait_connected(TIMEOUT).unwrap();
        }
    }
    for pair in &side.pairs {
        pair.wait_connected(TIMEOUT).unwrap();
    }
    let setups = PAIRS as f64 / start.elapsed().as_secs_f64();
    let each = (status("VmRSS:") - memory) * 1024 / PAIRS;
    let lanes = side.side.engine.statistics().lanes;
    assert_eq!(status("Threads:"), threads + lanes, "the number of threads does not depend on queue pairs");
    // A queue pair with two posted receives has its two queues and halves, and no buffer.
    assert!(each < 8 << 10, "{each} bytes per idle queue pair");

    let (mut few, mut many) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        few.push(side.traffic(FEW));
        many.push(side.traffic(PAIRS));
    }
    few.sort_by(f64::total_cmp);
    many.sort_by(f64::total_cmp);
    println!(
        "{PAIRS} queue pairs: {setups:.0} set up a second, {each} bytes each on top of the kernel's socket"
    );
    println!(
        "round trips a second, {OUTSTANDING} outstanding: {:.0} on {FEW}, {:.0} on {PAIRS}, {:.2} of that",
        few[1],
        many[1],
        many[1] / few[1]
    );
    server.finish();
}
