//! A link that injects faults into the byte stream. It is put between a stream and its real link.

use super::plan::{FaultPlan, RandomDelay};
use super::{Faults, Injected, Pacer, Rng, Sequence, Stream, rng_for};
use crate::host::Span;
use crate::link::{Link, LinkError, Piece, Route, first_pieces, first_spans, replace_link};
use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    lock,
};
use std::sync::Arc;
use std::time::Duration;

/// The errno of a connection that was cut: ECONNABORTED on Linux. Not ECONNRESET, which a manually connected queue pair
/// takes for the close of its peer.
const ECONNABORTED: i32 = 103;

/// A link that passes bytes on to another link, and injects the faults of a plan.
///
/// Each call that transfers bytes uses one random draw. A call that transfers nothing leaves the draw to the next
/// call, so that the faults do not depend on the number of unsuccessful calls. Before a delay, a stall or a cut, one
/// byte is passed on, so that the fault happens in the middle of a transfer.
#[derive(Debug)]
pub struct FaultyLink {
    /// The real link.
    inner: Mutex<Arc<dyn Link>>,
    faults: Arc<Faults>,
    stream: Stream,
    pacer: Arc<dyn Pacer>,
    tx: Mutex<Half>,
    rx: Mutex<Half>,
    /// When the stall of both directions ends, by the pacer's clock. Zero before the first stall.
    stalled_until: Mutex<Duration>,
    /// Whether the connection was cut.
    is_cut: AtomicBool,
}

/// The state of one direction.
#[derive(Debug)]
struct Half {
    /// "sends" or "receives", for the log.
    verb: &'static str,
    /// Number of calls that have transferred bytes.
    calls: u64,
    rng: Rng,
    /// The draw for the next call that transfers bytes.
    next: Draw,
    /// When the delay of this direction ends, by the pacer's clock. Zero before the first delay.
    delayed_until: Duration,
}

/// The random outcome of one call.
#[derive(Debug)]
struct Draw {
    /// The fault to inject. `None` to inject none.
    fault: Option<Injected>,
    /// Draws the number of bytes that a split passes on.
    part: Rng,
}

impl Faults {
    /// Wraps the link of a stream, to inject faults. The seed and the number of the stream determine the faults.
    pub fn wrap_link(
        self: &Arc<Self>,
        stream: impl Into<Stream>,
        inner: Arc<dyn Link>,
        pacer: Arc<dyn Pacer>,
    ) -> Arc<FaultyLink> {
        Arc::new(FaultyLink::new(self, stream.into(), inner, pacer))
    }
}

impl FaultyLink {
    pub(super) fn new(
        faults: &Arc<Faults>,
        stream: Stream,
        inner: Arc<dyn Link>,
        pacer: Arc<dyn Pacer>,
    ) -> Self {
        let half = |verb, which| {
            let mut rng = rng_for(faults.seed, stream.number, which);
            let next = Draw::new(&mut rng, &faults.plan);
            Mutex::new(Half { verb, calls: 0, rng, next, delayed_until: Duration::ZERO })
        };
        Self {
            inner: Mutex::new(inner),
            faults: Arc::clone(faults),
            stream,
            pacer,
            tx: half("sends", Sequence::Send),
            rx: half("receives", Sequence::Recv),
            stalled_until: Mutex::new(Duration::ZERO),
            is_cut: AtomicBool::new(false),
        }
    }

    /// Transfers bytes in one direction with `pass`, and injects a fault if the draw says so. `pass` gets the maximum
    /// number of bytes to transfer, which is at most `offered`, and returns the number transferred.
    fn transfer(
        &self,
        half: &Mutex<Half>,
        offered: usize,
        pass: impl FnOnce(usize) -> Result<usize, LinkError>,
    ) -> Result<usize, LinkError> {
        if self.is_cut.load(Ordering::Acquire) {
            return Err(LinkError::Lost(ECONNABORTED));
        }
        let mut half = lock(half);
        let now = self.pacer.now();
        if now < half.delayed_until || now < *lock(&self.stalled_until) {
            return Err(LinkError::WouldBlock); // the pacer was told when the delay began
        }
        let max_len = half.next.max_len(offered);
        let moved = pass(max_len)?;
        half.calls += 1;
        let next = Draw::new(&mut half.rng, &self.faults.plan);
        let fault = std::mem::replace(&mut half.next, next).fault;
        // Report a split only if it made the transfer shorter.
        let Some(fault) =
            fault.filter(|fault| *fault != Injected::Split || moved == max_len && max_len < offered)
        else {
            return Ok(moved);
        };
        self.faults.record(Some(self.stream), fault, format_args!("call {} that {}", half.calls, half.verb));
        match fault {
            Injected::Delay(time) => {
                half.delayed_until = now.saturating_add(time);
                self.pacer.schedule(time);
            }
            Injected::Stall(time) => {
                *lock(&self.stalled_until) = now.saturating_add(time);
                self.pacer.schedule(time);
            }
            Injected::Cut => return Err(self.cut()),
            Injected::Split | Injected::WithheldReceive | Injected::FailedRegistration => {}
        }
        Ok(moved)
    }

    /// Resets the connection, and returns the error for the call that was cut.
    fn cut(&self) -> LinkError {
        self.is_cut.store(true, Ordering::Release);
        self.inner().abort();
        // Drive both halves of the stream now, so that the half of the other direction fails, too.
        self.pacer.schedule(Duration::ZERO);
        LinkError::Lost(ECONNABORTED)
    }
}

impl FaultyLink {
    fn inner(&self) -> Arc<dyn Link> {
        Arc::clone(&lock(&self.inner))
    }
}

impl Link for FaultyLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let offered = pieces.iter().map(Piece::len).sum();
        self.transfer(&self.tx, offered, |max_len| {
            if max_len == offered {
                return self.inner().send(pieces);
            }
            self.inner().send(&first_pieces(pieces, max_len))
        })
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let in_host: usize = host.iter().map(|span| span.len).sum();
        self.transfer(&self.rx, in_host + own.len(), |max_len| match max_len.checked_sub(in_host) {
            Some(in_own) => self.inner().recv(host, &mut own[..in_own]),
            None => self.inner().recv(&first_spans(host, max_len), &mut []),
        })
    }

    fn arrived(&self) -> usize {
        self.inner().arrived()
    }

    fn switch_send(&self, route: Route) {
        self.inner().switch_send(route);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        self.inner().switch_recv(route, unread)
    }

    fn finish(&self) {
        self.inner().finish();
    }

    fn abort(&self) {
        self.inner().abort();
    }

    fn replace_inner(&self, link: &Arc<dyn Link>) -> bool {
        replace_link(&mut lock(&self.inner), link);
        true
    }

    fn segment_size(&self) -> usize {
        self.inner().segment_size()
    }
}

impl Draw {
    /// Draws the outcome of one call. Uses the same number of random values for every outcome, so that adding a fault to
    /// a plan does not change when its other faults happen.
    fn new(rng: &mut Rng, plan: &FaultPlan) -> Self {
        let part = Rng::new(rng.next());
        let split = rng.hits(plan.split).then_some(Injected::Split);
        let delay = draw_delay(rng, &plan.delay).map(Injected::Delay);
        let stall = draw_delay(rng, &plan.stall).map(Injected::Stall);
        let cut = rng.hits(plan.cut).then_some(Injected::Cut);
        Self { fault: cut.or(stall).or(delay).or(split), part }
    }

    /// Returns how many of the bytes that a call offers may be passed on: all of them without a fault, a random part
    /// for a split, and one byte before any other fault, for the reason given at [`FaultyLink`].
    fn max_len(&self, offered: usize) -> usize {
        match self.fault {
            None => offered,
            Some(Injected::Split) => self.part.clone().part_of(offered),
            Some(_) => offered.min(1),
        }
    }
}

/// Draws whether a delay happens, and its duration.
fn draw_delay(rng: &mut Rng, delay: &RandomDelay) -> Option<Duration> {
    let range = u64::try_from((delay.max - delay.min).as_nanos()).unwrap_or(u64::MAX);
    let more = Duration::from_nanos(rng.below(range.saturating_add(1)));
    rng.hits(delay.chance).then_some(delay.min + more)
}
