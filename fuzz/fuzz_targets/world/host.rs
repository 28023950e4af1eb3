//! The program's memory, and the wire that the peer's bytes come from.

use ironwarp_rnic::error::Fault;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::qp::Attendant;
use std::sync::{Arc, Mutex};

/// The program's memory: one page after another, nothing before, nothing behind.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const PAGE: u64 = 0x400;
pub(crate) const CANARY: u8 = 0xa5;
pub(crate) const UNTOUCHED: [u8; PAGE as usize] = [CANARY; PAGE as usize];
/// What each page is for.
pub(crate) const WRITABLE: u64 = BASE;
pub(crate) const READABLE: u64 = BASE + 2 * PAGE;
pub(crate) const RECEIVES: u64 = BASE + 4 * PAGE;
pub(crate) const SINK: u64 = BASE + 6 * PAGE;
pub(crate) const FOREIGN: u64 = BASE + 8 * PAGE;
pub(crate) const WORDS: u64 = BASE + 10 * PAGE;
pub(crate) const END: u64 = BASE + 11 * PAGE;
/// Registered, and not there.
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
        // It was, when it was registered.
        span.addr == GONE || Self::range(&span).is_ok()
    }
}

/// What the peer sent, and how much of it arrives at a time. What is sent to the peer vanishes.
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

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
pub(crate) struct Nobody;
impl Attendant for Nobody {
    fn call_again(&self) {}
    fn opened(&self) {}
    fn ended(&self, _: &Arc<Fault>) {}
    fn closed(&self) {}
    fn peer_not_ready(&self) {}
}
