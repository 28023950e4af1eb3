//! A link that makes the choices of the adversary for a stream. It is put between the stream and its real link.
//!
//! Bytes to be sent may wait before the link takes any. So may an FPDU that has arrived, with all that follow it. While
//! they wait, payload of the waiting FPDUs is placed out of order, or other bytes instead of it. Later, the stream
//! processes the FPDUs in their order, and places all their payload again. So everything that the order of the stream
//! promises still holds, and only memory that is indeterminate at that time has other contents meanwhile.
//!
//! Before payload is placed early, its destination passes the same checks as usual, under a guard. So memory that was
//! deregistered is never written.

use crate::adversary::{Adversary, Choice, Sequence};
use crate::context::QpContext;
use crate::fault::{Pacer, Rng};
use crate::host::Span;
use crate::link::{Link, LinkError, Piece, Route, first_spans, replace_link};
use crate::memory::{Domain, Rights, Touch, Translation};
use crate::queue::{Data, Sge};
use crate::sync::{Mutex, lock};
use ironwarp_wire::mpa::{Fpdu, FpduReader, Framing};
use ironwarp_wire::{Dialect, Header, RemoteAddr};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of bytes that are received from the real link at once.
const CHUNK: usize = 64 << 10;
/// Number of calls that send and are not delayed when this end closes: more than acknowledgements and the end need.
const CLOSING_CALLS: u32 = 8;
/// Number of bytes that may wait. The real link keeps the rest.
const MAX_WAITING: usize = 256 << 10;

/// Gives access to the queue pair of a stream.
pub(crate) trait HasContext: Send + Sync + fmt::Debug {
    fn context(&self) -> &QpContext;
}

/// A link that makes the choices of the adversary.
#[derive(Debug)]
pub(crate) struct AdverseLink {
    /// The real link.
    inner: Mutex<Arc<dyn Link>>,
    qp: Weak<dyn HasContext>,
    adversary: Arc<Adversary>,
    pacer: Arc<dyn Pacer>,
    tx: Mutex<Sending>,
    rx: Mutex<Receiving>,
}

/// The state of the sending direction.
#[derive(Debug)]
struct Sending {
    rng: Rng,
    /// What was drawn for the next call that sends bytes.
    delay: Option<Duration>,
    /// When the delay ends, by the pacer's clock. `None` if none was begun.
    until: Option<Duration>,
    /// Number of calls that are not delayed, because this end is about to close.
    unhindered: u32,
}

/// The state of the receiving direction.
#[derive(Debug)]
struct Receiving {
    /// Derives the draws of each FPDU from its number.
    base: u64,
    /// The number of the FPDU at `scanned`.
    number: u64,
    /// How the stream is divided into FPDUs. `None` if that is not known, or not possible any more: then bytes pass
    /// unchanged.
    framing: Option<Framing>,
    /// The bytes that have arrived and were not passed on.
    bytes: Vec<u8>,
    /// Number of `bytes` that may be passed on.
    released: usize,
    /// Number of `bytes` in complete FPDUs that were looked at.
    scanned: usize,
    /// When the waiting FPDUs are released, by the pacer's clock. `None` if none waits.
    until: Option<Duration>,
    /// Number of bytes that do not wait, because this end is about to close.
    unhindered: usize,
    /// The end of the real link, which is reported after all bytes.
    end: Option<LinkError>,
    /// What may be placed early, while FPDUs wait.
    early: Early,
}

/// What may be placed early.
#[derive(Clone, Copy, Debug)]
struct Early {
    /// Writes: not after a waiting Read or atomic operation, which must not see other bytes.
    writes: bool,
    /// The first Send, whose receive is the oldest one.
    send: bool,
    /// The first response, which belongs to the oldest Read.
    response: bool,
}

impl Early {
    const ALL: Self = Self { writes: true, send: true, response: true };
}

impl AdverseLink {
    /// Puts the adversary before `inner`. `number` is that of the stream. `framing` is that of the receiving direction,
    /// which begins now; `None` if the stream has begun elsewhere.
    pub(crate) fn new(
        adversary: &Arc<Adversary>,
        number: u64,
        inner: Arc<dyn Link>,
        qp: Weak<dyn HasContext>,
        framing: Option<Framing>,
        pacer: Arc<dyn Pacer>,
    ) -> Self {
        let mut rng = adversary.sequence(Sequence::Send, number);
        let delay = adversary.draw_delay(&mut rng);
        Self {
            inner: Mutex::new(inner),
            qp,
            adversary: Arc::clone(adversary),
            pacer,
            tx: Mutex::new(Sending { rng, delay, until: None, unhindered: 0 }),
            rx: Mutex::new(Receiving {
                base: adversary.sequence(Sequence::Receive, number).next(),
                number: 0,
                framing: framing.filter(|framing| !framing.markers),
                bytes: Vec::new(),
                released: 0,
                scanned: 0,
                until: None,
                unhindered: 0,
                end: None,
                early: Early::ALL,
            }),
        }
    }

    fn inner(&self) -> Arc<dyn Link> {
        Arc::clone(&lock(&self.inner))
    }

    /// Receives from the real link until it is empty, or enough bytes wait.
    fn pull(&self, rx: &mut Receiving) {
        let inner = self.inner();
        while rx.end.is_none() && rx.bytes.len() < MAX_WAITING {
            let before = rx.bytes.len();
            rx.bytes.resize(before + CHUNK, 0);
            let received = inner.recv(&[], &mut rx.bytes[before..]);
            rx.bytes.truncate(before + received.unwrap_or_default());
            match received {
                Ok(_) => {}
                Err(error @ (LinkError::Ended | LinkError::Lost(_))) => rx.end = Some(error),
                Err(_) => return,
            }
        }
    }

    /// Receives, and decides which bytes the stream gets now. Fails if it gets none.
    fn advance(&self, rx: &mut Receiving) -> Result<(), LinkError> {
        self.pull(rx);
        if let Some(until) = rx.until {
            if self.pacer.now() < until && rx.end.is_none() && rx.unhindered == 0 {
                self.scan(rx);
                return Err(LinkError::WouldBlock); // the pacer was told when the delay began
            }
            rx.until = None;
            rx.released = rx.scanned;
        }
        if rx.released == 0 {
            self.scan(rx);
            if rx.until.is_none() {
                rx.released = rx.scanned;
            }
        }
        if rx.released == 0 && (rx.framing.is_none() || rx.end.is_some()) {
            rx.released = rx.bytes.len(); // the rest, which is no FPDU
        }
        match rx.end {
            _ if rx.released > 0 => Ok(()),
            Some(error) if rx.until.is_none() => Err(error),
            _ => Err(LinkError::WouldBlock),
        }
    }

    /// Looks at the complete FPDUs that were not looked at before. Stops in front of one that is to wait, unless it is the
    /// first of all: what comes before it is processed first. Places payload early if FPDUs wait.
    fn scan(&self, rx: &mut Receiving) {
        let bytes = std::mem::take(&mut rx.bytes);
        while let Some(framing) = rx.framing {
            let mut rest = &bytes[rx.scanned..];
            let (fpdu, payload) = match take_fpdu(framing, &mut rest) {
                Ok(Some(whole)) => whole,
                Ok(None) => break,
                Err(()) => {
                    rx.framing = None; // the stream reports what is wrong
                    break;
                }
            };
            let mut rng = Rng::stream(rx.base, rx.number);
            // Drawn in any case, so that what is placed early does not depend on whether another FPDU waits.
            let drawn = self.adversary.draw_delay(&mut rng);
            if rx.until.is_none()
                && rx.unhindered == 0
                && rx.number > 0
                && rx.end.is_none()
                && let Some(delay) = drawn
            {
                if rx.scanned > 0 {
                    break;
                }
                self.adversary.record(Choice::LateArrival);
                rx.until = Some(self.pacer.now().saturating_add(delay));
                rx.early = Early::ALL;
                self.pacer.schedule(delay);
            }
            rx.number += 1;
            rx.scanned = bytes.len() - rest.len();
            if rx.until.is_some() {
                self.place_early(&mut rx.early, &fpdu, payload, &mut rng);
            }
        }
        rx.bytes = bytes;
    }

    /// Places some of the payload of a waiting FPDU, or other bytes, or nothing.
    fn place_early(&self, early: &mut Early, fpdu: &Fpdu, payload: &[u8], rng: &mut Rng) {
        let Some(qp) = self.qp.upgrade() else { return };
        let qp = qp.context();
        let (bytes, part, choice) = draw_bytes(payload, rng);
        if qp.is_ended() {
            return;
        }
        let placed = match &fpdu.header {
            Header::Write(write) => {
                early.writes
                    && !part.is_empty()
                    && !has_unanswered(qp)
                    && place_write(qp, write.addr, payload.len(), &bytes, part)
            }
            Header::Send(send) => {
                let first = std::mem::take(&mut early.send) && send.offset == 0;
                first && !part.is_empty() && place_send(qp, payload.len(), &bytes, part)
            }
            Header::SendImmediate(_) | Header::Immediate(_) => {
                early.send = false;
                false
            }
            Header::ReadRequest(_) | Header::ReadV2Request(_) | Header::AtomicRequest(_) => {
                early.writes = false;
                false
            }
            Header::ReadResponse(_) | Header::ReadV2Response(_) => {
                let first = std::mem::take(&mut early.response);
                first && !part.is_empty() && place_response(qp, payload.len(), &bytes, part)
            }
            Header::AtomicResponse(_) | Header::Terminate(_) => {
                early.response = false;
                false
            }
        };
        if placed {
            self.adversary.record(choice);
        }
    }
}

/// Takes a complete FPDU off the front of `bytes`. Returns `None` if it is incomplete. Fails if it is invalid.
fn take_fpdu<'b>(framing: Framing, bytes: &mut &'b [u8]) -> Result<Option<(Fpdu, &'b [u8])>, ()> {
    if let Some(whole) = FpduReader::new(framing).take_whole(bytes, Dialect::Ironwarp).map_err(drop)? {
        return Ok(Some(whole));
    }
    // Incomplete or invalid: another reader finds out.
    let (mut reader, mut rest) = (FpduReader::new(framing), *bytes);
    while reader.next(&mut rest, Dialect::Ironwarp).map_err(drop)?.is_some() {}
    Ok(None)
}

/// Draws the bytes to be placed early, and which of them.
fn draw_bytes(payload: &[u8], rng: &mut Rng) -> (Vec<u8>, Range<usize>, Choice) {
    let len = payload.len();
    let (kind, part, flip) = (rng.below(8), rng.part_of(len).min(len), 1 + rng.below(255));
    #[expect(clippy::cast_possible_truncation, reason = "below 256")]
    let others = || payload.iter().map(|byte| byte ^ flip as u8).collect();
    match kind {
        0 | 1 => (Vec::new(), 0..0, Choice::EarlyPlacement),
        2 | 3 => (payload.to_vec(), len - part..len, Choice::EarlyPlacement),
        4 => (payload.to_vec(), 0..part, Choice::EarlyPlacement),
        5 => (payload.to_vec(), 0..len, Choice::EarlyPlacement),
        6 => (others(), len - part..len, Choice::OtherBytes),
        _ => (others(), 0..len, Choice::OtherBytes),
    }
}

/// Returns whether a Read or atomic operation that was received has yet to read its memory. It must not see a later Write.
fn has_unanswered(qp: &QpContext) -> bool {
    // Messages behind one that waits for a receive are not known.
    qp.message_waiting.load(Ordering::Acquire) || !qp.obligations.lock().responses.is_empty()
}

/// Places `part` of the bytes of a Write to `addr`, if the peer may write all `len` bytes.
fn place_write(qp: &QpContext, addr: RemoteAddr, len: usize, bytes: &[u8], part: Range<usize>) -> bool {
    // One-touch memory allows one access, and that is the Write itself.
    if qp.device().table().is_one_touch(addr.tag) {
        return false;
    }
    let at = part.start as u64;
    let write =
        |memory: &Translation, base: u64| memory.write(base + at, qp.device().host(), &bytes[part.clone()]);
    let placed = qp.with_remote(&mut None, addr, len, Rights::REMOTE_WRITE, &mut Touch::default(), write);
    matches!(placed, Ok(Ok(())))
}

/// Places `part` of the first bytes of a Send, of which `len` have arrived, in the oldest receive.
fn place_send(qp: &QpContext, len: usize, bytes: &[u8], part: Range<usize>) -> bool {
    // If a message waits for a receive, the oldest receive is for that one.
    if qp.message_waiting.load(Ordering::Acquire) {
        return false;
    }
    // Locked until the bytes are placed: the receive must not complete before, if the queue pair fails meanwhile.
    let rq = lock(&qp.rq);
    let Some((receive, domain)) = rq.oldest() else { return false };
    receive.buffers.len() >= len as u64
        && receive.buffers.range(part.start as u64, part.len(), placer(qp, domain, bytes, part)).is_ok()
}

/// Places `part` of the next bytes of the response to the oldest Read, of which `len` have arrived.
fn place_response(qp: &QpContext, len: usize, bytes: &[u8], part: Range<usize>) -> bool {
    // Locked until the bytes are placed, as in `place_send`.
    let mut sq = lock(&qp.sq);
    let Some(read) = sq.oldest_read().cloned() else { return false };
    let Some(Data::Memory(sges)) = sq.sink(&read) else { return false };
    let at = u64::from(read.received) + part.start as u64;
    len as u64 <= u64::from(read.len.saturating_sub(read.received)) // an invalid response may exceed it
        && sges.range(at, part.len(), placer(qp, qp.stream().domain, bytes, part)).is_ok()
}

/// Returns a function that places the next of the bytes in an element of a scatter/gather list, from `part.start` on.
fn placer<'b>(
    qp: &'b QpContext,
    domain: Domain,
    bytes: &'b [u8],
    part: Range<usize>,
) -> impl FnMut(Sge) -> Result<(), ()> + 'b {
    let mut rest = &bytes[part];
    move |Sge { tag, addr, len }| {
        let (now, later) = rest.split_at(len as usize);
        rest = later;
        let write = |memory: &Translation, at| memory.write(at, qp.device().host(), now);
        let table = qp.device().table();
        match table.with_local(&mut None, domain, (tag, addr), now.len(), Rights::LOCAL_WRITE, write) {
            Ok(Ok(())) => Ok(()),
            _ => Err(()),
        }
    }
}

impl Link for AdverseLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut tx = lock(&self.tx);
        if let (Some(delay), 0) = (tx.delay, tx.unhindered) {
            let now = self.pacer.now();
            match tx.until {
                Some(until) if now >= until => {}
                Some(_) => return Err(LinkError::WouldBlock), // the pacer was told when the delay began
                None => {
                    self.adversary.record(Choice::LateSend);
                    tx.until = Some(now.saturating_add(delay));
                    self.pacer.schedule(delay);
                    return Err(LinkError::WouldBlock);
                }
            }
        }
        let sent = self.inner().send(pieces)?;
        tx.unhindered = tx.unhindered.saturating_sub(1);
        tx.until = None;
        tx.delay = self.adversary.draw_delay(&mut tx.rng);
        Ok(sent)
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut rx = lock(&self.rx);
        let rx = &mut *rx;
        if rx.framing.is_none() && rx.bytes.is_empty() && rx.end.is_none() {
            return self.inner().recv(host, own);
        }
        if rx.released == 0 {
            self.advance(rx)?;
        }
        let in_host: usize = host.iter().map(|span| span.len).sum();
        let n = rx.released.min(in_host + own.len());
        let (placed, staged) = rx.bytes[..n].split_at(n.min(in_host));
        if !placed.is_empty() {
            let qp = self.qp.upgrade().ok_or(LinkError::WouldBlock)?;
            let placed = qp.context().device().host().scatter(placed, &first_spans(host, placed.len()));
            placed.map_err(|_| LinkError::Unmapped)?;
        }
        own[..staged.len()].copy_from_slice(staged);
        rx.bytes.drain(..n);
        rx.released -= n;
        rx.scanned = rx.scanned.saturating_sub(n);
        rx.unhindered = rx.unhindered.saturating_sub(n);
        if rx.until.is_none() && (!rx.bytes.is_empty() || rx.end.is_some()) {
            self.pacer.schedule(Duration::ZERO); // the real link does not report bytes that are here
        }
        Ok(n)
    }

    /// Returns the number of bytes that have arrived. This end is about to close, so they do not wait any longer, and
    /// neither do their acknowledgements.
    fn arrived(&self) -> usize {
        lock(&self.tx).unhindered = CLOSING_CALLS;
        let mut rx = lock(&self.rx);
        rx.unhindered = rx.bytes.len() + self.inner().arrived();
        rx.unhindered
    }

    fn lost(&self) -> Option<i32> {
        match lock(&self.rx).end {
            Some(LinkError::Lost(errno)) => Some(errno),
            _ => self.inner().lost(),
        }
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
