//! Thousands of connected queue pairs between two processes: what they cost, and that traffic does not mind them.
//!
//! Prints its figures; run it in release for figures worth printing:
//! `cargo test --release -p ironwarp-engine --test scale -- --nocapture`
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::SEND;
use ironwarp_engine::{ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Status, WorkRequest};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAIRS: usize = 9_000;
const FEW: usize = 10;
/// So many requests are on their way at once.
const OUTSTANDING: usize = 32;
const ROUND_TRIPS: usize = 40_000;
const SIZE: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(60);
/// The other process is this test again, told so.
const SERVER: &str = "IRONWARP_TEST_SCALE_SERVER";

struct Side {
    side: common::Side,
    pairs: Vec<Arc<QueuePair>>,
}

impl Side {
    fn new() -> Self {
        common::raise_descriptor_limit();
        let config = Config { keepalive: Duration::from_secs(600), startup: PATIENCE, ..Config::default() };
        let side = common::Side::new(&Engine::new(config).unwrap(), PAIRS * 4, 4096);
        Self { side, pairs: Vec::new() }
    }

    /// One more, with two receives.
    fn add(&mut self) -> &Arc<QueuePair> {
        let which = self.pairs.len();
        self.pairs.push(self.side.pair(16, Completes::WhenSent));
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

    /// Waits for receives, and hands over which queue pair each was for.
    fn received(&self, mut each: impl FnMut(usize)) {
        let mut found = Vec::new();
        while found.is_empty() {
            assert!(self.side.cq.wait(Some(PATIENCE)).unwrap(), "nothing came");
            self.side.cq.poll(64, |completion| found.push(completion)).unwrap();
        }
        for completion in found {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            assert_eq!(completion.byte_len, SIZE);
            each(usize::try_from(completion.wr_id).unwrap());
        }
    }

    /// Requests and answers on `among` of the queue pairs, at random. Returns how many a second.
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
        // What is still on its way.
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
        let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
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
    // Until the client goes.
    std::io::stdin().lines().for_each(drop);
    std::process::exit(0);
}

fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn nine_thousand_queue_pairs() {
    if std::env::var_os(SERVER).is_some() {
        return serve();
    }
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nine_thousand_queue_pairs", "--nocapture"])
        .env(SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address: SocketAddr = lines
        .by_ref()
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("address ").map(|address| address.parse().unwrap()))
        .unwrap();

    let mut side = Side::new();
    let (memory, threads) = (status("VmRSS:"), status("Threads:"));
    let start = Instant::now();
    let options = ConnectOptions { ird: Some(1), ord: Some(1), ..ConnectOptions::default() };
    for _ in 0..PAIRS {
        let engine = Arc::clone(&side.side.engine);
        engine.connect(side.add(), address, &options).unwrap();
    }
    for pair in &side.pairs {
        pair.wait_connected(PATIENCE).unwrap();
    }
    let setups = PAIRS as f64 / start.elapsed().as_secs_f64();
    let each = (status("VmRSS:") - memory) * 1024 / PAIRS;
    let lanes = side.side.engine.statistics().lanes;
    assert_eq!(status("Threads:"), threads + lanes, "no thread for each queue pair");
    // One with two posted receives has its two queues, its halves, and no buffer.
    assert!(each < 8 << 10, "{each} bytes for an idle queue pair");

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
    writeln!(server.stdin.take().unwrap()).unwrap();
    server.wait().unwrap();
}
