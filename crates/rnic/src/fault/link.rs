//! A link on which things go wrong: between a stream and the link that carries it.

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

/// What a connection that was cut answers with: Linux's number for "connection reset by peer".
const ECONNRESET: i32 = 104;

/// Passes bytes on, and makes the faults of a plan.
///
/// The dice are thrown once for each call that moves bytes. One that finds nothing to move keeps its throw: how often a
/// driver asks in vain changes nothing. Waits and cuts come in the middle of what is moved: one byte is passed first,
/// because a wait while there is nothing to move would pass unnoticed.
#[derive(Debug)]
pub struct FaultyLink {
    inner: Arc<dyn Link>,
    faults: Arc<Faults>,
    stream: u64,
    pacer: Arc<dyn Pacer>,
    tx: Mutex<Half>,
    rx: Mutex<Half>,
    /// Until when both directions wait.
    stalled_until: Mutex<Duration>,
    is_cut: AtomicBool,
}

/// One direction.
#[derive(Debug)]
struct Half {
    /// What its calls do.
    does: &'static str,
    /// How many calls have moved bytes.
    calls: u64,
    rng: Rng,
    /// What happens at the next call that moves bytes.
    next: Throw,
    /// Until when this direction waits.
    delayed_until: Duration,
}

/// What happens at one call.
#[derive(Debug)]
struct Throw {
    fault: Option<Injected>,
    /// How many bytes are passed, if that is a split.
    part: Rng,
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

    /// Lets `pass` move some of the bytes that were offered to it, at most as many as it is told.
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
            return Err(LinkError::WouldBlock); // the pacer was told when it began
        }
        let most = half.next.most_of(offered);
        let moved = pass(most)?;
        half.calls += 1;
        let next = Throw::new(&mut half.rng, &self.faults.plan);
        let fault = std::mem::replace(&mut half.next, next).fault;
        // A split that something else was smaller than is none.
        let Some(fault) = fault.filter(|fault| *fault != Injected::Split || moved == most && most < offered)
        else {
            return Ok(moved);
        };
        self.faults.note(Some(self.stream), fault, format_args!("call {} that {}", half.calls, half.does));
        match fault {
            Injected::Delay(time) => {
                half.delayed_until = now.saturating_add(time);
                self.pacer.call_again(time);
            }
            Injected::Stall(time) => {
                *lock(&self.stalled_until) = now.saturating_add(time);
                self.pacer.call_again(time);
            }
            Injected::Cut => return Err(self.cut()),
            Injected::Split | Injected::WithheldReceive | Injected::FailedRegistration => {}
        }
        Ok(moved)
    }

    fn cut(&self) -> LinkError {
        self.is_cut.store(true, Ordering::Release);
        self.inner.abort();
        self.pacer.call_again(Duration::ZERO); // the other direction has to find out
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
    /// Takes as many numbers whatever comes of them: a plan with one more word meets its other faults at the same calls.
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
    let range = u64::try_from((wait.most - wait.least).as_nanos()).unwrap_or(u64::MAX);
    let more = Duration::from_nanos(rng.below(range.saturating_add(1)));
    rng.hits(wait.chance).then_some(wait.least + more)
}

/// As many of the first bytes of `all` as `left`; `cut` makes one of them no longer than it is told.
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
