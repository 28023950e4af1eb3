//! Throughput of Writes, Reads or Sends in one direction, with the given number outstanding. They reuse the same
//! memory, like the workload over bare TCP.

use super::end::{DEPTH, End, Host};
use super::sleeper::Sleeper;
use crate::control::{self, Server, TIMEOUT};
use crate::measure::{Measured, Stopwatch, compare, edges, pattern};
use crate::result::Result;
use crate::turn::{Operation, Turn};
use ironwarp::connection::Listener;
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Runs the server, which has nothing to do for Writes and Reads, and posts receives for Sends.
pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let buffer = match turn.operation {
        Operation::Read => Buffer::copy_of(&pattern(turn.size))?,
        _ => Buffer::new(turn.size)?,
    };
    let end = End::accept(turn, host, listener, host.region(buffer)?, |pair, region| match turn.operation {
        Operation::Send => (0..receives(turn)).try_for_each(|_| post_receive(turn, pair, region)),
        _ => Ok(()),
    })?;
    let sleeper = Sleeper::of(turn, host)?;
    let mut completions = 0;
    if turn.operation == Operation::Send {
        host.cq.moderate(turn.events, HELD)?;
        let next = || sleeper.as_ref().map_or_else(|| host.completion(turn), Sleeper::next);
        // An empty message is the last one.
        while next()?.byte_len > 0 {
            completions += 1;
            post_receive(turn, &end.pair, &end.region)?;
        }
    }
    control::wait_for_query()?;
    let wakes = sleeper.map_or(0, |sleeper| sleeper.handler.stats().wakes);
    control::print_received(&format!("{} {wakes} {completions}", edges(&end.region.to_vec()?)));
    Ok(())
}

/// Maximum time for which moderation holds back an event.
const HELD: Duration = Duration::from_micros(100);

/// Returns the number of posted receives: enough that the sender never waits for one.
fn receives(turn: &Turn) -> usize {
    turn.queued.max(DEPTH)
}

/// Posts a receive.
fn post_receive(turn: &Turn, pair: &QueuePair, region: &MemoryRegion) -> Result {
    Ok(pair.post_receive(0, &[region.slice(..turn.size)?])?)
}

/// Runs the client.
pub(super) fn run(turn: &Turn, server: &mut Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let message = pattern(turn.size);
    let buffer = match turn.operation {
        Operation::Read => Buffer::new(turn.size)?,
        _ => Buffer::copy_of(&message)?,
    };
    let end = End::connect(turn, &host, at, host.region(buffer)?, |_, _| Ok(()))?;
    // Memory for a Read that is posted after all other requests. Its completion means that they have arrived.
    let fence = host.region(Buffer::new(1)?)?;
    run_phase(turn, &end, &fence, turn.warm_up())?;
    let watch = Stopwatch::start(server)?;
    let messages = run_phase(turn, &end, &fence, turn.time())?;
    let measured = watch.stop(server, messages, turn.size)?;
    if turn.operation == Operation::Send {
        end.pair.post_send(WorkRequest::send(0, &[]))?;
        host.completion(turn)?;
    }
    let answer = server.received_edges()?;
    let mut words = answer.rsplitn(3, ' ');
    let (completions, wakes, received) = (words.next(), words.next(), words.next());
    match turn.operation {
        Operation::Read => compare(&edges(&end.region.to_vec()?), &message)?,
        _ => compare(received.unwrap_or_default(), &message)?,
    }
    let number = |word: Option<&str>| word.unwrap_or_default().parse::<f64>();
    Ok(Measured { wakes: number(wakes)? / number(completions)?.max(1.0), ..measured })
}

/// Keeps requests outstanding for the given time, then waits until all have arrived. Returns their number.
fn run_phase(turn: &Turn, end: &End<'_>, fence: &MemoryRegion, time: Duration) -> Result<u64> {
    let list = [end.region.slice(..turn.size)?];
    let request = || match turn.operation {
        Operation::Write => WorkRequest::write(0, &list, end.peer),
        Operation::Read => WorkRequest::read(0, &list, end.peer),
        Operation::Send => WorkRequest::send(0, &list).into(),
    };
    let (mut posted, mut done) = (0, 0);
    let mut completions = Vec::with_capacity(turn.queued);
    let start = Instant::now();
    loop {
        let open = start.elapsed() < time;
        if !open && done == posted {
            break;
        }
        if open {
            // Posts in batches if the turn allows it, instead of one request per free slot.
            while turn.queued - (posted - done) >= turn.batch.div_ceil(2) {
                let room = (turn.queued - (posted - done)).min(turn.batch);
                match room {
                    1 => end.pair.post_send(request())?,
                    _ => end.pair.post_send_all((0..room).map(|_| request()))?,
                }
                posted += room;
            }
        }
        if turn.blocking {
            completions.push(end.host.cq.wait(TIMEOUT)?);
        }
        end.host.cq.poll(&mut completions, turn.queued)?;
        done += completions.len();
        for completion in completions.drain(..) {
            completion.success()?;
        }
    }
    if !turn.acked && turn.operation != Operation::Read {
        end.pair.post_send(WorkRequest::read(0, &[fence.slice(..1)?], end.peer))?;
        end.host.completion(turn)?;
    }
    Ok(posted as u64)
}
