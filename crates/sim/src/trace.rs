//! The trace of a run: a line for each transfer of a link, each action of a program, and each completion. The same seed
//! yields the same trace.

use crate::clock::Clock;
use crate::lock;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use std::fmt;
use std::sync::{Arc, Mutex};

/// A trace, which discards everything unless it is enabled. Clones share the lines.
#[derive(Clone, Debug)]
pub struct Trace {
    clock: Clock,
    /// The lines so far. `None` if the trace is not enabled.
    lines: Option<Arc<Mutex<Vec<String>>>>,
}

impl Trace {
    /// Creates an empty trace.
    pub(crate) fn new(clock: &Clock, enabled: bool) -> Self {
        Self { clock: clock.clone(), lines: enabled.then(Arc::default) }
    }

    /// Adds a line about an end, with the time.
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

/// A link that records its transfers in a trace.
#[derive(Debug)]
pub(crate) struct TracedLink {
    pub(crate) inner: Arc<dyn Link>,
    pub(crate) trace: Trace,
    /// The number of the end, as it appears in the trace.
    pub(crate) end: usize,
}

impl TracedLink {
    /// Records the result of a transfer, except that it would block, and returns the result.
    fn record_transfer(&self, verb: &str, result: Result<usize, LinkError>) -> Result<usize, LinkError> {
        match result {
            Ok(n) => self.trace.note(self.end, format_args!("{verb} {n} bytes")),
            Err(LinkError::WouldBlock) => {}
            Err(error) => self.trace.note(self.end, format_args!("{verb}: {error:?}")),
        }
        result
    }
}

impl Link for TracedLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        self.record_transfer("sends", self.inner.send(pieces))
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        self.record_transfer("receives", self.inner.recv(host, own))
    }

    fn arrived(&self) -> usize {
        self.inner.arrived()
    }

    fn lost(&self) -> Option<i32> {
        self.inner.lost()
    }

    fn switch_send(&self, route: Route) {
        self.trace.note(self.end, format_args!("sends by {route}"));
        self.inner.switch_send(route);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        self.trace.note(self.end, format_args!("receives by {route}, {} bytes unread", unread.len()));
        self.inner.switch_recv(route, unread)
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
