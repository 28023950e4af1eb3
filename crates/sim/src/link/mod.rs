//! A simulated connection with a pipe in each direction. It behaves like TCP on a non-blocking socket.

mod pipe;
#[cfg(test)]
mod tests;

use crate::arena::{Arena, total};
use crate::clock::Clock;
use crate::lock;
use ironwarp_rnic::fault::{Chance, Rng};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use pipe::{End, Pipe};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Error numbers of Linux.
const EPIPE: i32 = 32;
const ECONNABORTED: i32 = 103;
const ECONNRESET: i32 = 104;

/// The path between the ends.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Maximum number of bytes in each direction that were sent but not received.
    pub capacity: usize,
    /// One-way latency.
    pub latency: Duration,
    /// Probability that a receive returns only part of the available bytes.
    pub split: Chance,
    /// The value of [`Link::segment_size`].
    pub segment_size: usize,
}

/// One end of a connection.
///
/// Like edge-triggered epoll, it reports once when a call that would have blocked can be retried. A driver that loses this report
/// makes no further progress, which a test notices. Nothing else is reported: a receive of fewer bytes than there was room for is
/// not a `WouldBlock`.
#[derive(Debug)]
pub struct SimLink {
    path: Path,
    clock: Clock,
    arena: Arc<Arena>,
    connection: Arc<Mutex<Connection>>,
    /// The number of this end.
    end: usize,
}

/// The directions to drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There are bytes, the end, or an error to receive.
    pub readable: bool,
    /// There is room to send, or an error.
    pub writable: bool,
}

#[derive(Debug)]
struct Connection {
    /// Bytes from each end to the other.
    pipes: [Pipe; 2],
    ends: [State; 2],
}

#[derive(Debug)]
struct State {
    /// The last receive would have blocked, and readiness has not been reported since.
    recv_waits: bool,
    send_waits: bool,
    finished: bool,
    aborted: bool,
    /// The peer's reset was reported to a send or a query.
    told_reset: bool,
    /// The peer's reset was reported to the driver, even if it was not waiting.
    rung_reset: bool,
}

impl Default for Path {
    /// A fast network with ordinary buffers, without splits.
    fn default() -> Self {
        let latency = Duration::from_micros(10);
        Self { capacity: 256 << 10, latency, split: Chance::NEVER, segment_size: 1448 }
    }
}

impl SimLink {
    /// Creates a connection between two programs.
    pub fn pair(path: Path, seed: u64, clock: &Clock, arenas: [&Arc<Arena>; 2]) -> [Arc<Self>; 2] {
        assert!(path.capacity > 0, "zero capacity");
        let pipe = |end| Pipe::new(path.capacity, Rng::stream(seed, end));
        let ends = [State::new(), State::new()];
        let connection = Arc::new(Mutex::new(Connection { pipes: [pipe(0), pipe(1)], ends }));
        [0, 1].map(|end| {
            let (clock, arena) = (clock.clone(), Arc::clone(arenas[end]));
            Arc::new(Self { path, clock, arena, connection: Arc::clone(&connection), end })
        })
    }

    /// Returns what became ready after it would have blocked, once. Initially both directions are ready.
    pub fn take_ready(&self) -> Ready {
        let now = self.clock.now();
        let mut connection = lock(&self.connection);
        let [readable, writable] = connection.ready_at(self.end);
        let reset = connection.reset_of(self.end);
        let due = |time: Option<Duration>| time.is_some_and(|time| time <= now);
        let state = &mut connection.ends[self.end];
        let rings = due(reset) && !std::mem::replace(&mut state.rung_reset, due(reset));
        let ready = Ready { readable: rings || due(readable), writable: rings || due(writable) };
        state.recv_waits &= !ready.readable;
        state.send_waits &= !ready.writable;
        ready
    }

    /// Returns when [`take_ready`](Self::take_ready) will report something if nothing else happens. A time in the past means now.
    pub fn next_ready(&self) -> Option<Duration> {
        let connection = lock(&self.connection);
        let [readable, writable] = connection.ready_at(self.end);
        let reset = connection.reset_of(self.end).filter(|_| !connection.ends[self.end].rung_reset);
        [readable, writable, reset].into_iter().flatten().min()
    }

    /// Copies the bytes of `pieces`, up to `room` bytes or to unmapped memory.
    fn take(&self, pieces: &[Piece<'_>], room: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        for piece in pieces {
            let start = taken.len();
            let len = piece.len().min(room - start);
            match piece {
                Piece::Own(bytes) => taken.extend_from_slice(&bytes[..len]),
                Piece::Host(span) => {
                    taken.resize(start + len, 0);
                    let came = self.arena.device_reads(&[*span], &mut taken[start..]);
                    taken.truncate(start + came);
                }
            }
            if taken.len() - start < piece.len() {
                break;
            }
        }
        taken
    }
}

impl Link for SimLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        assert!(pieces.iter().any(|piece| !piece.is_empty()), "nothing to send");
        let now = self.clock.now();
        let mut connection = lock(&self.connection);
        connection.check_send(self.end, now)?;
        let room = connection.pipes[self.end].room();
        if room == 0 {
            connection.ends[self.end].send_waits = true;
            return Err(LinkError::WouldBlock);
        }
        let taken = self.take(pieces, room);
        if taken.is_empty() {
            return Err(LinkError::Unmapped);
        }
        connection.pipes[self.end].push(&taken, now + self.path.latency);
        Ok(taken.len())
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let in_host = total(host);
        assert!(in_host + own.len() > 0, "no room to receive");
        let mut connection = lock(&self.connection);
        let mut len = connection.check_recv(self.end, self.clock.now())?.min(in_host + own.len());
        let pipe = &mut connection.pipes[1 - self.end];
        if pipe.rng().hits(self.path.split) {
            len = pipe.rng().part_of(len);
        }
        let (for_host, for_own) = pipe.front(len).split_at(len.min(in_host));
        let mut came = if for_host.is_empty() { 0 } else { self.arena.device_writes(for_host, host) };
        if came == for_host.len() {
            own[..for_own.len()].copy_from_slice(for_own);
            came = len;
        }
        pipe.consume(came);
        if came == 0 { Err(LinkError::Unmapped) } else { Ok(came) }
    }

    fn arrived(&self) -> usize {
        lock(&self.connection).pipes[1 - self.end].arrived(self.clock.now())
    }

    fn lost(&self) -> Option<i32> {
        let mut connection = lock(&self.connection);
        match connection.check_send(self.end, self.clock.now()) {
            Err(LinkError::Lost(errno)) if errno != EPIPE => Some(errno),
            _ => None,
        }
    }

    fn finish(&self) {
        let mut connection = lock(&self.connection);
        connection.ends[self.end].finished = true;
        connection.pipes[self.end].finish(self.clock.now() + self.path.latency);
    }

    fn abort(&self) {
        let mut connection = lock(&self.connection);
        if !std::mem::replace(&mut connection.ends[self.end].aborted, true) {
            connection.pipes[self.end].reset(self.clock.now() + self.path.latency);
        }
    }

    fn segment_size(&self) -> usize {
        self.path.segment_size
    }
}

impl Connection {
    /// Checks whether this end can still send.
    fn check_send(&mut self, end: usize, now: Duration) -> Result<(), LinkError> {
        let reset = self.reset_of(end).is_some_and(|time| time <= now);
        let state = &mut self.ends[end];
        if state.aborted {
            return Err(LinkError::Lost(ECONNABORTED));
        }
        // Linux reports the reset once, then EPIPE.
        if reset && !std::mem::replace(&mut state.told_reset, true) {
            return Err(LinkError::Lost(ECONNRESET));
        }
        if reset || state.finished { Err(LinkError::Lost(EPIPE)) } else { Ok(()) }
    }

    /// Returns how many bytes this end can receive.
    fn check_recv(&mut self, end: usize, now: Duration) -> Result<usize, LinkError> {
        let pipe = &self.pipes[1 - end];
        let state = &mut self.ends[end];
        match (pipe.arrived(now), pipe.reached_end(now)) {
            _ if state.aborted => Err(LinkError::Lost(ECONNABORTED)),
            (_, Some(End::Finished)) => Err(LinkError::Ended),
            (_, Some(End::Reset)) => Err(LinkError::Lost(ECONNRESET)),
            (0, None) => {
                state.recv_waits = true;
                Err(LinkError::WouldBlock)
            }
            (arrived, None) => Ok(arrived),
        }
    }

    /// Returns when an end is notified of its peer's abort.
    fn reset_of(&self, end: usize) -> Option<Duration> {
        self.pipes[1 - end].reset_at()
    }

    /// Returns when an end that is waiting will be readable and writable.
    fn ready_at(&self, end: usize) -> [Option<Duration>; 2] {
        let (state, sent, received) = (&self.ends[end], &self.pipes[end], &self.pipes[1 - end]);
        let now = Some(Duration::ZERO);
        let readable = if state.aborted { now } else { received.readable_at() };
        let writable =
            if state.aborted || state.finished || sent.room() > 0 { now } else { received.reset_at() };
        [readable.filter(|_| state.recv_waits), writable.filter(|_| state.send_waits)]
    }
}

impl State {
    /// Both directions of a new connection are ready.
    const fn new() -> Self {
        Self {
            recv_waits: true,
            send_waits: true,
            finished: false,
            aborted: false,
            told_reset: false,
            rung_reset: false,
        }
    }
}
