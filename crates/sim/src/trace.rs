//! The trace of a run: what the links moved, what the programs did, what completed. The same seed yields the same trace.

use crate::clock::Clock;
use crate::lock;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use std::fmt;
use std::sync::{Arc, Mutex};

/// A trace, or a placeholder that discards everything.
#[derive(Clone, Debug)]
pub struct Trace {
    clock: Clock,
    lines: Option<Arc<Mutex<Vec<String>>>>,
}

impl Trace {
    pub(crate) fn new(clock: &Clock, wanted: bool) -> Self {
        Self { clock: clock.clone(), lines: wanted.then(Arc::default) }
    }

    /// Adds a line.
    pub(crate) fn note(&self, end: usize, what: fmt::Arguments<'_>) {
        if let Some(lines) = &self.lines {
            let time = self.clock.now().as_nanos();
            lock(lines).push(format!("{time:>12} ns  {end}  {what}"));
        }
    }

    /// Returns all lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.as_ref().map_or_else(Vec::new, |lines| lock(lines).clone())
    }
}

/// A link that records what it moves.
#[derive(Debug)]
pub(crate) struct TracedLink {
    pub(crate) inner: Arc<dyn Link>,
    pub(crate) trace: Trace,
    pub(crate) end: usize,
}

impl TracedLink {
    fn moved(&self, how: &str, moved: Result<usize, LinkError>) -> Result<usize, LinkError> {
        match moved {
            Ok(n) => self.trace.note(self.end, format_args!("{how} {n} bytes")),
            Err(LinkError::WouldBlock) => {}
            Err(error) => self.trace.note(self.end, format_args!("{how}: {error:?}")),
        }
        moved
    }
}

impl Link for TracedLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        self.moved("sends", self.inner.send(pieces))
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        self.moved("receives", self.inner.recv(host, own))
    }

    fn arrived(&self) -> usize {
        self.inner.arrived()
    }

    fn lost(&self) -> Option<i32> {
        self.inner.lost()
    }

    fn finish(&self) {
        self.trace.note(self.end, format_args!("finishes"));
        self.inner.finish();
    }

    fn abort(&self) {
        self.trace.note(self.end, format_args!("aborts"));
        self.inner.abort();
    }

    fn segment_size(&self) -> usize {
        self.inner.segment_size()
    }
}
