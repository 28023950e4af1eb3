//! Requests and answers on many queue pairs with one completion queue.

use super::end::Host;
use crate::control::{self, Server, TIMEOUT};
use crate::measure::{Measured, Stopwatch, compare, edges, pattern};
use crate::result::Result;
use crate::scattered::Scattered;
use crate::turn::Turn;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Depth of each queue. A queue pair has at most one outstanding message in each direction.
const DEPTH: usize = 2;

/// Connected queue pairs, with a receive buffer for each in one region.
#[derive(Debug)]
struct Connections<'h> {
    host: &'h Host,
    pairs: Vec<QueuePair>,
    region: MemoryRegion,
    size: usize,
}

impl<'h> Connections<'h> {
    /// Creates memory for all queue pairs of a turn.
    fn new(turn: &Turn, host: &'h Host) -> Result<Self> {
        let region = host.region(Buffer::new(turn.connections * turn.size)?)?;
        Ok(Self { host, pairs: Vec::with_capacity(turn.connections), region, size: turn.size })
    }

    /// Creates a queue pair for the next connection. Its receive is posted before a message can arrive.
    fn next_pair(&self, turn: &Turn) -> Result<QueuePair> {
        let pair = self.host.pair(turn, DEPTH)?;
        post_receive(&pair, &self.region, self.pairs.len(), self.size)?;
        Ok(pair)
    }

    /// Polls the completion queue once, and replaces `completions`.
    fn poll(&self, completions: &mut Vec<ironwarp::completion::Completion>) -> Result {
        completions.clear();
        self.host.cq.poll(completions, MAX_POLLED)?;
        Ok(())
    }
}

/// Maximum number of completions per poll.
const MAX_POLLED: usize = 64;

/// Posts the receive of the connection with index `which`.
fn post_receive(pair: &QueuePair, region: &MemoryRegion, which: usize, size: usize) -> Result {
    Ok(pair.post_receive(which as u64, &[region.slice(which * size..(which + 1) * size)?])?)
}

/// Runs the client.
pub(super) fn run(turn: &Turn, server: &mut Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let mut many = Connections::new(turn, &host)?;
    while many.pairs.len() < turn.connections {
        let pair = many.next_pair(turn)?;
        pair.connect(at, &ConnectOptions::new()).map_err(|error| error.to_string())?;
        many.pairs.push(pair);
    }
    let request = pattern(turn.size);
    exchange(turn, &many, &request, turn.warm_up())?;
    let watch = Stopwatch::start(server)?;
    let messages = exchange(turn, &many, &request, turn.time())?;
    let measured = watch.stop(server, messages, turn.size)?;
    many.pairs[0].post_send(WorkRequest::send(0, &[]).unsignaled())?; // an empty message ends the workload
    compare(&edges(&many.region.to_vec()?[..turn.size]), &request)?;
    compare(&server.received_edges()?, &request)?;
    Ok(measured)
}

/// Sends requests for the given time, on connections that do not wait for an answer, and receives all answers. Returns
/// their number.
fn exchange(turn: &Turn, many: &Connections<'_>, request: &[u8], time: Duration) -> Result<u64> {
    let send_request =
        |which: usize| many.pairs[which].post_send(WorkRequest::send_inline(0, request).unsignaled());
    let start = Instant::now();
    let mut order = Scattered::new(many.pairs.len());
    let (mut outstanding, mut done) = (0, 0);
    for _ in 0..turn.queued.min(many.pairs.len()) {
        send_request(order.next())?;
        outstanding += 1;
    }
    let mut completions = Vec::with_capacity(MAX_POLLED);
    while outstanding > 0 {
        many.poll(&mut completions)?;
        for completion in completions.drain(..) {
            let which = usize::try_from(completion.success()?.wr_id)?;
            post_receive(&many.pairs[which], &many.region, which, many.size)?;
            order.mark_answered(which);
            (outstanding, done) = (outstanding - 1, done + 1);
            if start.elapsed() < time {
                send_request(order.next())?;
                outstanding += 1;
            }
        }
    }
    Ok(done)
}

/// Runs the server.
pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let mut many = Connections::new(turn, host)?;
    while many.pairs.len() < turn.connections {
        let incoming = listener.accept(TIMEOUT)?;
        let pair = many.next_pair(turn)?;
        incoming.accept(&pair, &AcceptOptions::new()).map_err(|error| error.to_string())?;
        many.pairs.push(pair);
    }
    let mut request = vec![0; turn.size];
    let mut completions = Vec::with_capacity(MAX_POLLED);
    loop {
        many.poll(&mut completions)?;
        for completion in completions.drain(..) {
            let completion = completion.success()?;
            if completion.byte_len == 0 {
                control::wait_for_query()?;
                control::print_received(&edges(&request));
                return Ok(());
            }
            let which = usize::try_from(completion.wr_id)?;
            // The answer is a copy of the request, so its buffer can receive the next one.
            many.region.read(which * turn.size, &mut request)?;
            post_receive(&many.pairs[which], &many.region, which, turn.size)?;
            many.pairs[which].post_send(WorkRequest::send_inline(0, &request).unsignaled())?;
        }
    }
}
