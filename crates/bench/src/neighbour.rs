//! A ping-pong of 8 bytes in the background of another measurement. Both ends sleep while they wait. Its latency shows
//! how much the measured operations affect other queue pairs.

use crate::control::TIMEOUT;
use crate::result::Result;
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One end of a connection, with memory for its peer.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pair: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) domain: ProtectionDomain,
    pub(crate) adapter: Adapter,
}

/// Creates a queue pair of each adapter, and connects them. Returns both ends.
pub(crate) fn connect(client: &Adapter, server: &Adapter) -> Result<(End, End)> {
    let (near, far) = (End::create(client)?, End::create(server)?);
    connect_pairs(&near.pair, &far.pair, &server.listen("127.0.0.1:0".parse()?)?)?;
    Ok((near, far))
}

/// Connects two queue pairs of this process through a listener of the second one's adapter.
pub(crate) fn connect_pairs(near: &QueuePair, far: &QueuePair, listener: &Listener) -> Result {
    near.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    let incoming = listener.accept(TIMEOUT)?;
    incoming.accept(far, &AcceptOptions::new()).map_err(|error| error.to_string())?;
    near.wait_connected(TIMEOUT).map_err(|error| error.to_string())?;
    Ok(())
}

impl End {
    /// Creates a queue pair that is not connected yet, and memory.
    fn create(adapter: &Adapter) -> Result<Self> {
        let (cq, domain) = (adapter.completion_queue(256)?, adapter.protection_domain());
        let region = domain.register(Buffer::new(4096)?, Access::all())?;
        let pair = domain.queue_pair(&cq).create()?;
        Ok(Self { pair, cq, region, domain, adapter: adapter.clone() })
    }
}

/// A ping-pong in the background that runs until dropped.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Tells the threads to end.
    stop: Arc<AtomicBool>,
    /// Round-trip times since the measurement was started.
    pings: Arc<Mutex<Vec<Duration>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts a ping-pong between two new queue pairs of these adapters.
    pub(crate) fn start(client: &Adapter, server: &Adapter) -> Result<Self> {
        let (near, far) = connect(client, server)?;
        let (stop, pings) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Duration>>>::default());
        let (stopped, times) = (Arc::clone(&stop), Arc::clone(&pings));
        let ping = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                if exchange(&near, true).is_err() {
                    break;
                }
                times.lock().unwrap_or_else(PoisonError::into_inner).push(start.elapsed());
            }
            near.pair.disconnect();
        });
        let pong = std::thread::spawn(move || while exchange(&far, false).is_ok() {});
        Ok(Self { stop, pings, threads: vec![ping, pong] })
    }

    /// Starts a measurement: discards earlier round-trip times.
    pub(crate) fn start_measuring(&self) {
        self.pings.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Ends the measurement. Returns the median and the 99th percentile of the latency, which is half of the round-trip
    /// time.
    pub(crate) fn stop_measuring(&self) -> (Duration, Duration) {
        let mut pings = std::mem::take(&mut *self.pings.lock().unwrap_or_else(PoisonError::into_inner));
        pings.sort_unstable();
        let at = |share: usize| pings.get(pings.len() * share / 100).map_or(Duration::ZERO, |ping| *ping / 2);
        (at(50), at(99))
    }
}

/// Exchanges one message in each direction. With `first`, this end sends first; otherwise it receives first.
fn exchange(end: &End, first: bool) -> Result {
    end.pair.post_receive(1, &[end.region.slice(..8)?])?;
    let send = || {
        end.pair
            .post_send(WorkRequest::send(2, &[end.region.slice(64..72)?]).unsignaled())
            .map_err(Into::into)
    };
    let receive = || -> Result {
        end.cq.wait(TIMEOUT)?.success()?;
        Ok(())
    };
    if first {
        send().and_then(|()| receive())
    } else {
        receive()?;
        send()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
