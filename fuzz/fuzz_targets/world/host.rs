//! The memory of the program, and the link from which the peer's bytes arrive.

use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use ironwarp_rnic::qp::StreamDriver;
use std::sync::{Arc, Mutex};

/// Number of regions registered before the script begins. The tags after them name nothing.
pub(crate) const REGIONS: usize = 7;
pub(crate) const TAGS: usize = REGIONS + 2;
/// The memory of the program: contiguous pages with nothing before or after them.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const PAGE: u64 = 0x400;
pub(crate) const CANARY: u8 = 0xa5;
pub(crate) const UNTOUCHED: [u8; PAGE as usize] = [CANARY; PAGE as usize];
/// The purpose of each page.
pub(crate) const WRITABLE: u64 = BASE;
pub(crate) const READABLE: u64 = BASE + 2 * PAGE;
pub(crate) const RECEIVES: u64 = BASE + 4 * PAGE;
pub(crate) const SINK: u64 = BASE + 6 * PAGE;
pub(crate) const FOREIGN: u64 = BASE + 8 * PAGE;
pub(crate) const WORDS: u64 = BASE + 10 * PAGE;
pub(crate) const END: u64 = BASE + 11 * PAGE;
/// Registered, but not mapped.
pub(crate) const GONE: u64 = BASE + 100 * PAGE;

#[derive(Debug)]
pub(crate) struct Arena(pub(crate) Mutex<Vec<u8>>);

impl Arena {
    fn range(span: &Span) -> Result<std::ops::Range<usize>, Unmapped> {
        let start = span.addr.checked_sub(BASE).ok_or(Unmapped)? as usize;
        let end = start.checked_add(span.len).ok_or(Unmapped)?;
        if end > (END - BASE) as usize { Err(Unmapped) } else { Ok(start..end) }
    }
}

impl Host for Arena {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        let memory = self.0.lock().unwrap();
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&memory[Self::range(span)?]);
            into = rest;
        }
        assert!(into.is_empty());
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let mut memory = self.0.lock().unwrap();
        for span in to {
            let (front, rest) = from.split_at(span.len);
            memory[Self::range(span)?].copy_from_slice(front);
            from = rest;
        }
        assert!(from.is_empty());
        Ok(())
    }

    fn is_mapped(&self, span: Span) -> bool {
        // It was mapped when it was registered.
        span.addr == GONE || Self::range(&span).is_ok()
    }
}

/// The bytes that the peer sent, and how many arrive at a time. Bytes sent to the peer are discarded.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) arena: Arc<Arena>,
    pub(crate) state: Mutex<(Vec<u8>, usize, usize)>,
}

impl Link for Wire {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        Ok(pieces.iter().map(Piece::len).sum())
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut state = self.state.lock().unwrap();
        let (bytes, at, chunk) = &mut *state;
        let room = own.len() + host.iter().map(|span| span.len).sum::<usize>();
        let n = room.min(*chunk).min(bytes.len() - *at);
        if n == 0 {
            return Err(LinkError::WouldBlock);
        }
        let mut data = &bytes[*at..*at + n];
        for span in host {
            let len = span.len.min(data.len());
            if self.arena.scatter(&data[..len], &[Span { len, ..*span }]).is_err() {
                return Err(LinkError::Unmapped);
            }
            data = &data[len..];
        }
        own[..data.len()].copy_from_slice(data);
        *at += n;
        Ok(n)
    }

    fn arrived(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.0.len() - state.1
    }

    /// Accepts every route. All of them have the same bytes.
    fn switch_recv(&self, _: Route, unread: &[u8]) -> bool {
        self.state.lock().unwrap().1 -= unread.len();
        true
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
pub(crate) struct Nobody;
impl StreamDriver for Nobody {
    fn schedule(&self) {}
    fn on_first_message(&self) {}
    fn on_stream_ended(&self, _: &Arc<QpError>) {}
    fn on_link_closed(&self) {}
    fn on_peer_not_ready(&self) {}
}
