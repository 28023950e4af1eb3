//! [`ShapedLink`], the link of a connection whose device has a rate or a delay. It is put between a stream and its real
//! link.
//!
//! Rate: a call that finds too few tokens in the device's bucket transfers nothing, and the stream is driven again when
//! it has its turn. Delay: everything that has arrived is read at once, so that the sender does not wait for room, and is
//! passed on later.

use crate::logical::shaper::{Bucket, Shaper, Turn};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Pacer;
use ironwarp_rnic::host::{Host, Span};
use ironwarp_rnic::link::{Link, LinkError, Piece, Route, first_pieces, first_spans, replace_link};
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of bytes of a connection that are delayed at a time.
const MAX_HELD: usize = 8 << 20;
/// Maximum number of bytes read ahead in one call.
const MAX_READ: usize = 1 << 20;
/// Length of the buffer to read ahead into.
const READ_LEN: usize = 32 << 10;
/// The smallest page size of Linux; all other page sizes are multiples of it.
const PAGE: u64 = 4096;

/// A link that passes bytes on to another link, no faster than the rate of the device, and received bytes no earlier than
/// its delay.
#[derive(Debug)]
pub(super) struct ShapedLink {
    /// The real link.
    inner: Mutex<Arc<dyn Link>>,
    shaper: Arc<Shaper>,
    device: Arc<Device>,
    /// Has the clock of the shaper.
    pacer: Arc<dyn Pacer>,
    tx: Mutex<Half>,
    rx: Mutex<(Half, Held)>,
}

/// The state of one direction.
#[derive(Debug, Default)]
struct Half {
    turn: Turn,
    /// The time for which the pacer was last told to drive the stream.
    wake: Duration,
}

/// The received bytes that are not passed on yet.
#[derive(Debug, Default)]
struct Held {
    parts: VecDeque<Part>,
    /// Number of bytes in all parts.
    len: usize,
    /// How the link has ended, and when that is to be passed on.
    end: Option<(Duration, LinkError)>,
    /// Buffer to read ahead into. Empty before the first call.
    buffer: Vec<u8>,
}

/// Bytes that arrived at the same time.
#[derive(Debug)]
struct Part {
    /// When they are passed on.
    due: Duration,
    bytes: Vec<u8>,
    /// Number of `bytes` that were passed on.
    done: usize,
}

impl ShapedLink {
    pub(super) fn new(
        inner: Arc<dyn Link>,
        shaper: &Arc<Shaper>,
        device: &Arc<Device>,
        pacer: Arc<dyn Pacer>,
    ) -> Self {
        let (shaper, device) = (Arc::clone(shaper), Arc::clone(device));
        Self { inner: Mutex::new(inner), shaper, device, pacer, tx: Mutex::default(), rx: Mutex::default() }
    }

    /// Has the stream driven at this time, unless that is scheduled already.
    fn wake_at(&self, half: &mut Half, now: Duration, at: Duration) {
        if half.wake <= now || at < half.wake {
            half.wake = at;
            self.pacer.schedule(at.saturating_sub(now));
        }
    }

    /// Receives at most `len` bytes with `pass`, as far as the rate allows.
    fn receive_limited(
        &self,
        half: &mut Half,
        now: Duration,
        len: usize,
        pass: impl FnOnce(usize) -> Result<usize, LinkError>,
    ) -> Result<usize, LinkError> {
        let Some(bucket) = &self.shaper.receive else { return pass(len) };
        // Tokens are not reserved for a call that finds nothing, or only the end of the link. A turn that was reserved is
        // awaited: something has arrived.
        if !half.turn.is_awaited(now) && self.inner().arrived() == 0 {
            let received = pass(len.min(bucket.turn_len()));
            bucket.charge(received.unwrap_or(0));
            return received;
        }
        self.transfer(bucket, half, now, len, pass)
    }

    /// Transfers at most `len` bytes with `pass`, as far as the bucket allows.
    fn transfer(
        &self,
        bucket: &Bucket,
        half: &mut Half,
        now: Duration,
        len: usize,
        pass: impl FnOnce(usize) -> Result<usize, LinkError>,
    ) -> Result<usize, LinkError> {
        match bucket.take(now, &mut half.turn, len) {
            Ok(allowed) => {
                let moved = pass(allowed);
                bucket.settle(allowed - moved.unwrap_or(0));
                moved
            }
            Err(at) => {
                self.wake_at(half, now, at);
                Err(LinkError::WouldBlock)
            }
        }
    }

    /// Reads what has arrived, as far as the rate allows, and notes when it is to be passed on.
    fn read_ahead(&self, half: &mut Half, held: &mut Held, now: Duration) {
        let mut buffer = std::mem::take(&mut held.buffer);
        buffer.resize(READ_LEN, 0);
        let (due, mut read) = (now + self.shaper.delay, 0);
        while held.end.is_none() && held.len < MAX_HELD && read < MAX_READ {
            let pass = |len: usize| self.inner().recv(&[], &mut buffer[..len]);
            match self.receive_limited(half, now, READ_LEN, pass) {
                Ok(len) => {
                    read += len;
                    held.push(due, &buffer[..len]);
                }
                Err(LinkError::WouldBlock) => break,
                Err(end) => held.end = Some((due, end)),
            }
        }
        held.buffer = buffer;
    }

    /// Receives bytes whose delay is over.
    fn receive_delayed(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let now = self.pacer.now();
        let (half, held) = &mut *lock(&self.rx);
        self.read_ahead(half, held, now);
        let received = held.pass_on(now, host, own, self.device.host());
        // Also if something was received: the stream may not call again before the next bytes are due.
        if let Some(due) = held.next_due() {
            self.wake_at(half, now, due.max(now));
        }
        received
    }
}

impl Drop for ShapedLink {
    fn drop(&mut self) {
        if let Some(bucket) = &self.shaper.send {
            bucket.end_turn(&mut lock(&self.tx).turn);
        }
        if let Some(bucket) = &self.shaper.receive {
            bucket.end_turn(&mut lock(&self.rx).0.turn);
        }
    }
}

impl ShapedLink {
    fn inner(&self) -> Arc<dyn Link> {
        Arc::clone(&lock(&self.inner))
    }
}

impl Link for ShapedLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let Some(bucket) = &self.shaper.send else { return self.inner().send(pieces) };
        let offered = pieces.iter().map(Piece::len).sum();
        let half = &mut *lock(&self.tx);
        self.transfer(bucket, half, self.pacer.now(), offered, |allowed| match allowed < offered {
            true => self.inner().send(&first_pieces(pieces, allowed)),
            false => self.inner().send(pieces),
        })
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        if !self.shaper.delay.is_zero() {
            return self.receive_delayed(host, own);
        }
        let in_host: usize = host.iter().map(|span| span.len).sum();
        let (half, _) = &mut *lock(&self.rx);
        self.receive_limited(half, self.pacer.now(), in_host + own.len(), |allowed| {
            match allowed.checked_sub(in_host) {
                Some(in_own) => self.inner().recv(host, &mut own[..in_own]),
                None => self.inner().recv(&first_spans(host, allowed), &mut []),
            }
        })
    }

    fn arrived(&self) -> usize {
        lock(&self.rx).1.len + self.inner().arrived()
    }

    fn lost(&self) -> Option<i32> {
        self.inner().lost()
    }

    // Not `is_empty_after_short_recv`: more may have arrived than was passed on.

    fn switch_send(&self, route: Route) {
        self.inner().switch_send(route);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        // What was read ahead comes after `unread`, by the former route. An end that was found there is not the end of
        // the stream: the real link finds it again.
        let held = std::mem::take(&mut lock(&self.rx).1);
        let mut unread = unread.to_vec();
        held.parts.iter().for_each(|part| unread.extend_from_slice(&part.bytes[part.done..]));
        self.inner().switch_recv(route, &unread)
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

impl Held {
    /// Adds bytes that have arrived.
    fn push(&mut self, due: Duration, bytes: &[u8]) {
        self.len += bytes.len();
        match self.parts.back_mut() {
            Some(last) if last.due == due => last.bytes.extend_from_slice(bytes),
            _ => self.parts.push_back(Part { due, bytes: bytes.to_vec(), done: 0 }),
        }
    }

    /// Returns when the first bytes, or the end of the link, are to be passed on; `None` if nothing is held.
    fn next_due(&self) -> Option<Duration> {
        let end = self.end.map(|(due, _)| due);
        self.parts.front().map(|part| part.due).or(end)
    }

    /// Passes bytes that are due on to `host`, span after span, and then to `own`, as [`Link::recv`] does.
    fn pass_on(
        &mut self,
        now: Duration,
        host: &[Span],
        own: &mut [u8],
        memory: &dyn Host,
    ) -> Result<usize, LinkError> {
        let mut passed = 0;
        for span in host {
            let mut done = 0;
            while done < span.len {
                let Some(bytes) = self.front(now) else { return self.result(now, passed) };
                let len = bytes.len().min(span.len - done);
                let to = Span { addr: span.addr.saturating_add(done as u64), len, ..*span };
                match scatter(memory, &bytes[..len], to) {
                    Some(len) => {
                        self.consume(len);
                        (done, passed) = (done + len, passed + len);
                    }
                    None if passed > 0 => return Ok(passed),
                    None => return Err(LinkError::Unmapped),
                }
            }
        }
        let mut done = 0;
        while done < own.len() {
            let Some(bytes) = self.front(now) else { break };
            let len = bytes.len().min(own.len() - done);
            own[done..done + len].copy_from_slice(&bytes[..len]);
            self.consume(len);
            done += len;
        }
        self.result(now, passed + done)
    }

    /// Returns the result of a call that has passed on this many bytes.
    fn result(&self, now: Duration, passed: usize) -> Result<usize, LinkError> {
        match self.end {
            _ if passed > 0 => Ok(passed),
            Some((due, end)) if due <= now && self.parts.is_empty() => Err(end),
            _ => Err(LinkError::WouldBlock),
        }
    }

    /// Returns the first bytes, if they are due.
    fn front(&self, now: Duration) -> Option<&[u8]> {
        self.parts.front().filter(|part| part.due <= now).map(|part| &part.bytes[part.done..])
    }

    /// Removes bytes of the first part.
    fn consume(&mut self, len: usize) {
        self.len -= len;
        if let Some(part) = self.parts.front_mut() {
            part.done += len;
            if part.done == part.bytes.len() {
                self.parts.pop_front();
            }
        }
    }
}

/// Copies bytes to the program's memory. Returns the number of bytes copied: all, or those on the first page if memory
/// after it is not mapped; `None` if the first byte is not mapped.
fn scatter(memory: &dyn Host, from: &[u8], to: Span) -> Option<usize> {
    let first_page = usize::try_from(PAGE - to.addr % PAGE).ok()?.min(from.len());
    let copy = |len: &usize| memory.scatter(&from[..*len], &[Span { len: *len, ..to }]).is_ok();
    [from.len(), first_page].into_iter().find(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_rnic::config::DeviceConfig;
    use ironwarp_rnic::host::Unmapped;
    use ironwarp_rnic::memory::TagCipher;

    const DELAY: Duration = Duration::from_millis(10);

    fn millis(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// A link whose peer is the test, and its clock.
    #[derive(Debug, Default)]
    struct Peer {
        now: Mutex<Duration>,
        /// The times at which the stream is to be driven.
        scheduled: Mutex<Vec<Duration>>,
        arrived: Mutex<VecDeque<u8>>,
        ended: Mutex<bool>,
        sent: Mutex<Vec<u8>>,
        unread: Mutex<Vec<u8>>,
    }

    impl Pacer for Peer {
        fn now(&self) -> Duration {
            *lock(&self.now)
        }

        fn schedule(&self, after: Duration) {
            lock(&self.scheduled).push(self.now() + after);
        }
    }

    impl Link for Peer {
        fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
            let mut sent = lock(&self.sent);
            let before = sent.len();
            for piece in pieces {
                let Piece::Own(bytes) = piece else { panic!("memory of a program") };
                sent.extend_from_slice(bytes);
            }
            Ok(sent.len() - before)
        }

        fn recv(&self, _: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
            let mut arrived = lock(&self.arrived);
            let len = own.len().min(arrived.len());
            own.iter_mut().zip(arrived.drain(..len)).for_each(|(to, byte)| *to = byte);
            match len {
                0 if *lock(&self.ended) => Err(LinkError::Ended),
                0 => Err(LinkError::WouldBlock),
                len => Ok(len),
            }
        }

        fn arrived(&self) -> usize {
            lock(&self.arrived).len()
        }

        fn switch_recv(&self, _: Route, unread: &[u8]) -> bool {
            lock(&self.unread).extend_from_slice(unread);
            true
        }

        fn finish(&self) {}

        fn abort(&self) {}

        fn segment_size(&self) -> usize {
            1460
        }
    }

    /// A program without memory.
    #[derive(Debug)]
    struct NoMemory;

    impl Host for NoMemory {
        fn gather(&self, _: &[Span], _: &mut [u8]) -> Result<(), Unmapped> {
            Err(Unmapped)
        }

        fn scatter(&self, _: &[u8], _: &[Span]) -> Result<(), Unmapped> {
            Err(Unmapped)
        }

        fn is_mapped(&self, _: Span) -> bool {
            false
        }
    }

    fn link(rate: Option<u64>, delay: Duration) -> (Arc<Peer>, ShapedLink) {
        let peer = Arc::new(Peer::default());
        let device = Device::new(DeviceConfig::default(), Arc::new(NoMemory), TagCipher::new([0; 16]));
        let shaper = Arc::new(Shaper::new(rate, delay));
        let link = ShapedLink::new(Arc::<Peer>::clone(&peer), &shaper, &device, Arc::<Peer>::clone(&peer));
        (peer, link)
    }

    impl Peer {
        fn arrive(&self, bytes: &[u8]) {
            lock(&self.arrived).extend(bytes);
        }

        fn set_time(&self, now: Duration) {
            *lock(&self.now) = now;
        }

        fn take_scheduled(&self) -> Vec<Duration> {
            std::mem::take(&mut lock(&self.scheduled))
        }
    }

    /// Receives at most 64 bytes.
    fn recv(link: &ShapedLink) -> Result<Vec<u8>, LinkError> {
        let mut buffer = [0; 64];
        link.recv(&[], &mut buffer).map(|len| buffer[..len].to_vec())
    }

    #[test]
    fn bytes_are_passed_on_when_their_delay_is_over() {
        let (peer, link) = link(None, DELAY);
        assert_eq!(recv(&link), Err(LinkError::WouldBlock));
        assert_eq!(peer.take_scheduled(), []);
        peer.arrive(b"first");
        assert_eq!(recv(&link), Err(LinkError::WouldBlock));
        assert_eq!(peer.take_scheduled(), [DELAY]);
        peer.set_time(millis(4));
        peer.arrive(b"second");
        *lock(&peer.ended) = true;
        assert_eq!(recv(&link), Err(LinkError::WouldBlock));
        assert_eq!((peer.take_scheduled(), link.arrived()), (vec![], 11));
        peer.set_time(millis(10));
        assert_eq!(recv(&link), Ok(b"first".to_vec()));
        assert_eq!(peer.take_scheduled(), [millis(14)], "the stream may not call again");
        assert_eq!(recv(&link), Err(LinkError::WouldBlock));
        peer.set_time(millis(14));
        assert_eq!(recv(&link), Ok(b"second".to_vec()));
        assert_eq!(recv(&link), Err(LinkError::Ended), "after all bytes");
    }

    #[test]
    fn a_switch_gives_back_what_was_read_ahead() {
        let (peer, link) = link(None, DELAY);
        peer.arrive(b"signal and more");
        *lock(&peer.ended) = true;
        let _ = recv(&link);
        peer.set_time(DELAY);
        let mut signal = [0; 6];
        assert_eq!(link.recv(&[], &mut signal), Ok(6));
        assert!(link.switch_recv(Route::SharedMemory, b"unread,"));
        assert_eq!(*lock(&peer.unread), b"unread, and more");
        assert_eq!(link.arrived(), 0);
        *lock(&peer.ended) = false;
        assert_eq!(recv(&link), Err(LinkError::WouldBlock), "the end belonged to the former route");
    }

    #[test]
    fn memory_that_is_not_mapped_is_reported() {
        let (peer, link) = link(None, DELAY);
        peer.arrive(&[7; 10]);
        let _ = recv(&link);
        peer.set_time(DELAY);
        assert_eq!(link.recv(&[Span::new(4096, 10)], &mut []), Err(LinkError::Unmapped));
        assert_eq!(link.arrived(), 10, "nothing was transferred");
    }

    /// 8 Mb/s: one byte in a microsecond.
    #[test]
    fn both_directions_are_limited() {
        const BURST: usize = 64 << 10;
        const TURN: Duration = Duration::from_micros(16 << 10);
        let (peer, link) = link(Some(8_000_000), Duration::ZERO);
        let start = Duration::from_secs(1);
        peer.set_time(start);
        let data = vec![1; 2 * BURST];
        let pieces = [Piece::Own(&data[..100]), Piece::Own(&data[100..])];
        assert_eq!(link.send(&pieces), Ok(BURST));
        assert_eq!(link.send(&pieces), Err(LinkError::WouldBlock));
        assert_eq!(link.send(&pieces), Err(LinkError::WouldBlock));
        assert_eq!(peer.take_scheduled(), [start + TURN]);
        peer.arrive(&data);
        let mut buffer = vec![0; data.len()];
        assert_eq!(link.recv(&[], &mut buffer), Ok(BURST));
        assert_eq!(link.recv(&[], &mut buffer), Err(LinkError::WouldBlock));
        assert_eq!(peer.take_scheduled(), [start + TURN]);
        peer.set_time(start + TURN);
        assert_eq!(link.send(&pieces), Ok(16 << 10));
        assert_eq!(link.recv(&[], &mut buffer), Ok(16 << 10));
        assert_eq!(lock(&peer.sent).len(), BURST + (16 << 10));
    }

    #[test]
    fn an_empty_link_is_asked_without_tokens() {
        let (peer, link) = link(Some(8_000_000), Duration::ZERO);
        assert_eq!(link.send(&[Piece::Own(&[1])]), Err(LinkError::WouldBlock), "nothing is saved up yet");
        assert_eq!(recv(&link), Err(LinkError::WouldBlock));
        *lock(&peer.ended) = true;
        assert_eq!(recv(&link), Err(LinkError::Ended));
        assert_eq!(peer.take_scheduled(), [Duration::from_micros(1)], "for the send");
    }
}
