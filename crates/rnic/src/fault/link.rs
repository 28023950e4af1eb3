//! A link that injects faults, between a stream and its real link.

use super::plan::{FaultPlan, Wait};
use super::{Faults, Injected, Pacer, Rng, Sequence, sequence};
use crate::host::Span;
use crate::link::{Link, LinkError, Piece};
use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    lock,
};
use std::sync::Arc;
use std::time::Duration;

/// The errno of a connection that was cut: ECONNRESET on Linux.
const ECONNRESET: i32 = 104;

/// Passes bytes on, and injects the faults of a plan.
///
/// Each call that transfers bytes draws once. A call that has nothing to transfer keeps its draw, so that the
/// number of unsuccessful calls has no influence. Delays and cuts happen in the middle of a transfer: one byte is
/// passed on first, because a delay would go unnoticed while there is nothing to transfer.
#[derive(Debug)]
pub struct FaultyLink {
    inner: Arc<dyn Link>,
    faults: Arc<Faults>,
    stream: u64,
    pacer: Arc<dyn Pacer>,
    tx: Mutex<Half>,
    rx: Mutex<Half>,
    /// When the delay of both directions ends.
    stalled_until: Mutex<Duration>,
    is_cut: AtomicBool,
}

/// One direction.
#[derive(Debug)]
struct Half {
    /// The name of its calls.
    does: &'static str,
    /// Number of calls that have transferred bytes.
    calls: u64,
    rng: Rng,
    /// What happens at the next call that transfers bytes.
    next: Throw,
    /// When the delay of this direction ends.
    delayed_until: Duration,
}

/// What happens at one call.
#[derive(Debug)]
struct Throw {
    fault: Option<Injected>,
    /// For a split: draws the number of bytes that are passed on.
    part: Rng,
}

impl Faults {
    /// Puts fault injection between a stream and its link. The number of the stream and the seed decide on the
    /// faults.
    pub fn wrap_link(
        self: &Arc<Self>,
        stream: u64,
        inner: Arc<dyn Link>,
        pacer: Arc<dyn Pacer>,
    ) -> Arc<FaultyLink> {
        Arc::new(FaultyLink::new(self, stream, inner, pacer))
    }
}

impl FaultyLink {
    pub(super) fn new(
        faults: &Arc<Faults>,
        stream: u64,
        inner: Arc<dyn Link>,
        pacer: Arc<dyn Pacer>,
    ) -> Self {
        let half = |does, which| {
            let mut rng = sequence(faults.seed, stream, which);
            let next = Throw::new(&mut rng, &faults.plan);
            Mutex::new(Half { does, calls: 0, rng, next, delayed_until: Duration::ZERO })
        };
        Self {
            inner,
            faults: Arc::clone(faults),
            stream,
            pacer,
            tx: half("sends", Sequence::Send),
            rx: half("receives", Sequence::Recv),
            stalled_until: Mutex::new(Duration::ZERO),
            is_cut: AtomicBool::new(false),
        }
    }

    /// Lets `pass` transfer some of the bytes offered, at most the number that it gets.
    fn through(
        &self,
        half: &Mutex<Half>,
        offered: usize,
        pass: impl FnOnce(usize) -> Result<usize, LinkError>,
    ) -> Result<usize, LinkError> {
        if self.is_cut.load(Ordering::Acquire) {
            return Err(LinkError::Lost(ECONNRESET));
        }
        let mut half = lock(half);
        let now = self.pacer.now();
        if now < half.delayed_until || now < *lock(&self.stalled_until) {
            return Err(LinkError::WouldBlock); // the pacer knows since when it began
        }
        let most = half.next.most_of(offered);
        let moved = pass(most)?;
        half.calls += 1;
        let next = Throw::new(&mut half.rng, &self.faults.plan);
        let fault = std::mem::replace(&mut half.next, next).fault;
        // A split beyond the end of a transfer is none.
        let Some(fault) = fault.filter(|fault| *fault != Injected::Split || moved == most && most < offered)
        else {
            return Ok(moved);
        };
        self.faults.note(Some(self.stream), fault, format_args!("call {} that {}", half.calls, half.does));
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

    fn cut(&self) -> LinkError {
        self.is_cut.store(true, Ordering::Release);
        self.inner.abort();
        self.pacer.schedule(Duration::ZERO); // the other direction must notice
        LinkError::Lost(ECONNRESET)
    }
}

impl Link for FaultyLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let offered = pieces.iter().map(Piece::len).sum();
        self.through(&self.tx, offered, |most| {
            if most == offered {
                return self.inner.send(pieces);
            }
            self.inner.send(&first(pieces, most, cut_piece))
        })
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let in_host: usize = host.iter().map(|span| span.len).sum();
        self.through(&self.rx, in_host + own.len(), |most| match most.checked_sub(in_host) {
            Some(in_own) => self.inner.recv(host, &mut own[..in_own]),
            None => self.inner.recv(&first(host, most, cut_span), &mut []),
        })
    }

    fn arrived(&self) -> usize {
        self.inner.arrived()
    }

    fn finish(&self) {
        self.inner.finish();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn segment_size(&self) -> usize {
        self.inner.segment_size()
    }
}

impl Throw {
    /// Draws the same number of values for every outcome, so that adding a fault to a plan does not move its
    /// other faults.
    fn new(rng: &mut Rng, plan: &FaultPlan) -> Self {
        let part = Rng::new(rng.next());
        let split = rng.hits(plan.split).then_some(Injected::Split);
        let delay = wait(rng, &plan.delay).map(Injected::Delay);
        let stall = wait(rng, &plan.stall).map(Injected::Stall);
        let cut = rng.hits(plan.cut).then_some(Injected::Cut);
        Self { fault: cut.or(stall).or(delay).or(split), part }
    }

    fn most_of(&self, offered: usize) -> usize {
        match self.fault {
            None => offered,
            Some(Injected::Split) => self.part.clone().part_of(offered),
            Some(_) => offered.min(1),
        }
    }
}

fn wait(rng: &mut Rng, wait: &Wait) -> Option<Duration> {
    let range = u64::try_from((wait.max - wait.min).as_nanos()).unwrap_or(u64::MAX);
    let more = Duration::from_nanos(rng.below(range.saturating_add(1)));
    rng.hits(wait.chance).then_some(wait.min + more)
}

/// The first `left` bytes of `all`; `cut` shortens an element.
fn first<T: Copy>(all: &[T], mut left: usize, cut: impl Fn(T, usize) -> (T, usize)) -> Vec<T> {
    let mut short = Vec::new();
    for &one in all {
        let (one, len) = cut(one, left);
        short.push(one);
        left -= len;
        if left == 0 {
            break;
        }
    }
    short
}

fn cut_piece(piece: Piece<'_>, most: usize) -> (Piece<'_>, usize) {
    let piece = match piece {
        Piece::Own(bytes) => Piece::Own(&bytes[..bytes.len().min(most)]),
        Piece::Host(span) => Piece::Host(cut_span(span, most).0),
    };
    (piece, piece.len())
}

fn cut_span(span: Span, most: usize) -> (Span, usize) {
    let len = span.len.min(most);
    (Span { len, ..span }, len)
}
