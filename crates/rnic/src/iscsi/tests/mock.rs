//! Mocks of what a queue pair in iSCSI mode works with: its link, the program's memory, and its driver.

use super::{BASE, LEN};
use crate::host::{Host, Span, Unmapped};
use crate::iscsi::IscsiDriver;
use crate::link::{Link, LinkError, Piece};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The program's memory: `LEN` bytes at `BASE`.
#[derive(Debug)]
pub(super) struct MockHost(Mutex<Vec<u8>>);

impl MockHost {
    pub(super) fn new() -> Self {
        Self(Mutex::new(vec![0xee; LEN]))
    }

    /// Returns the contents of the memory.
    pub(super) fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    /// Returns the part of the memory that `span` names.
    fn range(span: &Span) -> Result<Range<usize>, Unmapped> {
        let start = usize::try_from(span.addr.checked_sub(BASE).ok_or(Unmapped)?).unwrap();
        if start + span.len > LEN { Err(Unmapped) } else { Ok(start..start + span.len) }
    }
}

impl Host for MockHost {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&self.bytes()[Self::range(span)?]);
            into = rest;
        }
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        for span in to {
            let (front, rest) = from.split_at(span.len);
            self.bytes()[Self::range(span)?].copy_from_slice(front);
            from = rest;
        }
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

/// A link that records what is sent, and delivers the bytes of the test.
#[derive(Debug)]
pub(super) struct MockLink {
    host: Arc<MockHost>,
    arriving: Mutex<VecDeque<u8>>,
    sent: Mutex<Vec<u8>>,
    /// Number of bytes that are taken before there is no room. `None` for no limit.
    room: Mutex<Option<usize>>,
    /// Maximum number of bytes that one call receives.
    pub(super) max_recv: AtomicUsize,
    /// The error after the last byte that has arrived.
    end: Mutex<Option<LinkError>>,
    /// Whether the link is empty after a short read, as TCP is.
    pub(super) tells_empty: AtomicBool,
    pub(super) aborted: AtomicBool,
    /// Number of calls to `recv`.
    pub(super) recvs: AtomicUsize,
    /// Number of bytes that were received directly into the program's memory.
    pub(super) direct: AtomicUsize,
}

impl MockLink {
    pub(super) fn new(host: &Arc<MockHost>) -> Self {
        Self {
            host: Arc::clone(host),
            arriving: Mutex::default(),
            sent: Mutex::default(),
            room: Mutex::default(),
            max_recv: AtomicUsize::new(usize::MAX),
            end: Mutex::default(),
            tells_empty: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            recvs: AtomicUsize::new(0),
            direct: AtomicUsize::new(0),
        }
    }

    /// Adds bytes to receive.
    pub(super) fn arrive(&self, bytes: &[u8]) {
        self.arriving.lock().unwrap().extend(bytes);
    }

    /// Returns the number of bytes that were not received.
    pub(super) fn unread(&self) -> usize {
        self.arriving.lock().unwrap().len()
    }

    /// Makes calls fail, once everything that has arrived was received.
    pub(super) fn end(&self, error: LinkError) {
        *self.end.lock().unwrap() = Some(error);
    }

    /// Limits the room to zero bytes.
    pub(super) fn block(&self) {
        *self.room.lock().unwrap() = Some(0);
    }

    /// Adds to the room of a link that was blocked.
    pub(super) fn give_room(&self, bytes: usize) {
        let mut room = self.room.lock().unwrap();
        *room = room.map(|room| room.saturating_add(bytes));
    }

    /// Takes the bytes that were sent.
    pub(super) fn sent(&self) -> Vec<u8> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// Returns bytes that were taken, and are the beginning of a PDU.
    pub(super) fn put_back(&self, bytes: &[u8]) {
        self.sent.lock().unwrap().splice(..0, bytes.iter().copied());
    }

    fn is_lost(&self) -> Option<LinkError> {
        if self.aborted.load(Ordering::Relaxed) { Some(LinkError::Lost(104)) } else { None }
    }
}

impl Link for MockLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        if let Some(error) = self.is_lost() {
            return Err(error);
        }
        if let Some(LinkError::Lost(errno)) = *self.end.lock().unwrap() {
            return Err(LinkError::Lost(errno));
        }
        let (mut room, mut taken) = (self.room.lock().unwrap(), 0);
        for piece in pieces {
            let len = piece.len().min(room.unwrap_or(usize::MAX));
            let mut bytes = vec![0; len];
            match piece {
                Piece::Own(own) => bytes.copy_from_slice(&own[..len]),
                Piece::Host(span) if self.host.gather(&[Span { len, ..*span }], &mut bytes).is_err() => {
                    return if taken > 0 { Ok(taken) } else { Err(LinkError::Unmapped) };
                }
                Piece::Host(_) => {}
            }
            self.sent.lock().unwrap().extend(bytes);
            taken += len;
            if let Some(room) = &mut *room {
                *room -= len;
            }
        }
        if taken > 0 { Ok(taken) } else { Err(LinkError::WouldBlock) }
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        self.recvs.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = self.is_lost() {
            return Err(error);
        }
        let mut arriving = self.arriving.lock().unwrap();
        if arriving.is_empty() {
            return Err(self.end.lock().unwrap().unwrap_or(LinkError::WouldBlock));
        }
        let most = self.max_recv.load(Ordering::Relaxed);
        let mut received = 0;
        for span in host {
            let len = span.len.min(arriving.len()).min(most - received);
            let bytes: Vec<u8> = arriving.iter().take(len).copied().collect();
            if self.host.scatter(&bytes, &[Span { len, ..*span }]).is_err() {
                return if received > 0 { Ok(received) } else { Err(LinkError::Unmapped) };
            }
            arriving.drain(..len);
            received += len;
            self.direct.fetch_add(len, Ordering::Relaxed);
        }
        let len = own.len().min(arriving.len()).min(most - received);
        own[..len].iter_mut().zip(arriving.drain(..len)).for_each(|(to, from)| *to = from);
        Ok(received + len)
    }

    fn arrived(&self) -> usize {
        self.unread()
    }

    fn lost(&self) -> Option<i32> {
        match *self.end.lock().unwrap() {
            Some(LinkError::Lost(errno)) => Some(errno),
            _ => None,
        }
    }

    fn is_empty_after_short_recv(&self) -> bool {
        self.tells_empty.load(Ordering::Relaxed) && self.unread() == 0
    }

    fn finish(&self) {}

    fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    fn segment_size(&self) -> usize {
        1460
    }
}

/// A driver that counts the calls to `schedule`.
#[derive(Debug, Default)]
pub(super) struct MockDriver(AtomicUsize);

impl MockDriver {
    /// Returns whether the queue pair was scheduled since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) > 0
    }
}

impl IscsiDriver for MockDriver {
    fn schedule(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
