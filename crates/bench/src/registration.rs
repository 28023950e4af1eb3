//! Compares registration by call and by control queue (requirement X6): how long it delays the first request of a
//! program, and how much it affects another queue pair. `ironwarp-bench registration [ROUNDS]` prints a table.
//!
//! A program registers all of its memory, whose pages are populated, and then posts a Write from the last region.

use crate::control::TIMEOUT;
use crate::neighbour::{End, Neighbour, connect};
use crate::result::Result;
use ironwarp::Adapter;
use ironwarp::control::ControlQueue;
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::WorkRequest;
use std::time::{Duration, Instant};

/// Number of regions, and length of each in bytes.
const CASES: [(usize, usize); 2] = [(10_000, 64 << 10), (1, 4 << 30)];
/// Duration of the measurement of the neighbour while nothing is registered.
const ALONE: Duration = Duration::from_secs(1);

/// The times of one method.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Time until the first request was posted.
    posted: Duration,
    /// Time until the first request completed.
    done: Duration,
    /// Time until all memory was registered.
    total: Duration,
    /// Median latency of the neighbour.
    median: Duration,
    /// 99th percentile of the neighbour's latency.
    tail: Duration,
}

/// Measures both methods in turn, and prints a table.
pub(crate) fn run(words: &[String]) -> Result {
    let rounds = words.first().map_or(Ok(5), |word| word.parse())?;
    let (client, server) = (Adapter::new()?, Adapter::new()?);
    let neighbour = Neighbour::start(&client, &server)?;
    let (near, far) = connect(&client, &server)?;
    neighbour.start_measuring();
    std::thread::sleep(ALONE);
    let (median, tail) = neighbour.stop_measuring();
    println!(
        "| registered | method | first request posted | completed | all registered | neighbour: median | 99 % |"
    );
    println!("|---|---|---|---|---|---|---|");
    println!("| nothing | | | | | {} | {} |", micros(median), micros(tail));
    for (count, len) in CASES {
        let mut methods = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (queued, times) in methods.iter_mut().enumerate() {
                times.push(measure(&near, &far, &neighbour, (count, len), queued == 1)?);
            }
        }
        for (method, times) in ["call", "control queue"].iter().zip(&methods) {
            let of = |field: fn(&Times) -> Duration| {
                let mut values: Vec<_> = times.iter().map(field).collect();
                values.sort_unstable();
                values[values.len() / 2]
            };
            println!(
                "| {count} × {} | {method} | {} | {} | {} | {} | {} |",
                size(len),
                millis(of(|times| times.posted)),
                millis(of(|times| times.done)),
                millis(of(|times| times.total)),
                micros(of(|times| times.median)),
                micros(of(|times| times.tail)),
            );
        }
    }
    println!("\nMedians of {rounds} rounds, in which the two methods alternate.");
    Ok(())
}

/// Registers all regions, by control queue if `queued`, posts a Write from the last of them, and waits for both.
fn measure(
    near: &End,
    far: &End,
    neighbour: &Neighbour,
    (count, len): (usize, usize),
    queued: bool,
) -> Result<Times> {
    let done = near.adapter.completion_queue(count + 1)?;
    let control = near.adapter.control_queue(&done, count)?;
    let buffers: Vec<_> = (0..count).map(|_| Buffer::new(len)).collect::<std::result::Result<_, _>>()?;
    neighbour.start_measuring();
    let start = Instant::now();
    let regions = buffers
        .into_iter()
        .map(|buffer| register(near, queued.then_some(&control), buffer))
        .collect::<Result<Vec<_>>>()?;
    let last = regions.last().ok_or("nothing to register")?;
    near.pair.post_send(WorkRequest::write(1, &[last.slice(len - 8..)?], far.region.remote_addr(0)?))?;
    let posted = start.elapsed();
    if queued {
        for _ in 0..count {
            done.wait(TIMEOUT)?.success()?;
        }
    }
    // By call, all memory is registered before the request is posted.
    let total = if queued { start.elapsed() } else { posted };
    near.cq.wait(TIMEOUT)?.success()?;
    let all = start.elapsed();
    let (median, tail) = neighbour.stop_measuring();
    Ok(Times { posted, done: all, total, median, tail })
}

/// Registers a buffer through the control queue, or by call if there is none.
fn register(end: &End, control: Option<&ControlQueue>, buffer: Buffer) -> Result<MemoryRegion> {
    Ok(match control {
        Some(control) => control.register_prefaulted(0, &end.domain, buffer, Access::LOCAL_READ)?,
        None => end.domain.register_prefaulted(buffer, Access::LOCAL_READ)?,
    })
}

/// Formats a duration in milliseconds.
fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// Formats a duration in microseconds.
fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

/// Formats a length in bytes.
fn size(len: usize) -> String {
    match len {
        len if len >= 1 << 30 => format!("{} GiB", len >> 30),
        len => format!("{} KiB", len >> 10),
    }
}
