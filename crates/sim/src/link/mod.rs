//! A simulated connection, with a pipe for each route in each direction. Each end behaves like a non-blocking TCP socket.

mod pipe;
#[cfg(test)]
mod tests;

use crate::arena::{Arena, total_len};
use crate::clock::Clock;
use crate::lock;
use ironwarp_rnic::fault::{Chance, Rng};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use pipe::{End, Pipe};
use std::sync::{Arc, Mutex};
use std::time::Duration;

// Error numbers of Linux.
const EPIPE: i32 = 32;
const ECONNABORTED: i32 = 103;
const ECONNRESET: i32 = 104;

/// The routes, in the order of the pipes.
const ROUTES: [Route; 2] = [Route::Tcp, Route::SharedMemory];

/// The path between the ends.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Maximum number of bytes in each direction that were sent by a route but not received.
    pub capacity: usize,
    /// One-way latency of TCP. Bytes in shared memory arrive at once.
    pub latency: Duration,
    /// Probability that a receive returns only part of the available bytes.
    pub split: Chance,
    /// The value of [`Link::segment_size`].
    pub segment_size: usize,
}

/// One end of a connection.
///
/// After a call that returned `WouldBlock`, [`take_ready`](Self::take_ready) reports once that the call can be retried,
/// like edge-triggered epoll. A driver that loses this report makes no further progress, which a test notices. Nothing
/// else is reported: a receive that returned fewer bytes than there was room for did not return `WouldBlock`.
#[derive(Debug)]
pub struct SimLink {
    path: Path,
    clock: Clock,
    arena: Arc<Arena>,
    connection: Arc<Mutex<Connection>>,
    /// The number of this end: 0 or 1.
    end: usize,
}

/// The directions of a link that became ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Whether there are bytes, the end of the stream, or an error to receive.
    pub readable: bool,
    /// Whether there is room to send, or an error.
    pub writable: bool,
}

/// Both directions and both ends of a connection.
#[derive(Debug)]
struct Connection {
    /// For each end and route, the bytes that it has sent to the other.
    pipes: [[Pipe; 2]; 2],
    ends: [State; 2],
}

/// The state of one end.
#[derive(Debug)]
struct State {
    /// The route by which this end sends.
    send: Route,
    /// The route by which this end receives.
    recv: Route,
    /// Number of switches that this end has followed, to each route.
    followed: [u64; 2],
    /// Whether the last receive returned `WouldBlock`, and readiness has not been reported since.
    recv_waits: bool,
    /// Whether the last send returned `WouldBlock`, and readiness has not been reported since.
    send_waits: bool,
    /// Whether this end has closed its direction.
    finished: bool,
    /// Whether this end has aborted the connection.
    aborted: bool,
    /// Whether a send or a query has returned the peer's reset.
    reset_reported: bool,
    /// Whether `take_ready` has reported the peer's reset, which it does even if no call returned `WouldBlock`.
    reset_signalled: bool,
}

impl Default for Path {
    /// Returns the path of a fast network with ordinary buffers, without splits.
    fn default() -> Self {
        let latency = Duration::from_micros(10);
        Self { capacity: 256 << 10, latency, split: Chance::NEVER, segment_size: 1448 }
    }
}

impl SimLink {
    /// Creates a connection between two programs with this memory, and returns its two ends.
    pub fn pair(path: Path, seed: u64, clock: &Clock, arenas: [&Arc<Arena>; 2]) -> [Arc<Self>; 2] {
        assert!(path.capacity > 0, "zero capacity");
        let pipe = |number| Pipe::new(path.capacity, Rng::stream(seed, number));
        let ends = [State::new(), State::new()];
        let connection =
            Arc::new(Mutex::new(Connection { pipes: [[pipe(0), pipe(2)], [pipe(1), pipe(3)]], ends }));
        [0, 1].map(|end| {
            let (clock, arena) = (clock.clone(), Arc::clone(arenas[end]));
            Arc::new(Self { path, clock, arena, connection: Arc::clone(&connection), end })
        })
    }

    /// Returns the directions that became ready since a call returned `WouldBlock`. Reports each of them once.
    /// Initially both directions are ready.
    pub fn take_ready(&self) -> Ready {
        let now = self.clock.now();
        let mut connection = lock(&self.connection);
        let [readable, writable] = connection.ready_times(self.end);
        let reset = connection.reset_time(self.end);
        let due = |time: Option<Duration>| time.is_some_and(|time| time <= now);
        let state = &mut connection.ends[self.end];
        let signal_reset = due(reset) && !std::mem::replace(&mut state.reset_signalled, due(reset));
        let ready =
            Ready { readable: signal_reset || due(readable), writable: signal_reset || due(writable) };
        state.recv_waits &= !ready.readable;
        state.send_waits &= !ready.writable;
        ready
    }

    /// Returns when [`take_ready`](Self::take_ready) will report something if nothing else happens. A time in the past
    /// means now; `None` means never.
    pub fn next_ready(&self) -> Option<Duration> {
        let connection = lock(&self.connection);
        let [readable, writable] = connection.ready_times(self.end);
        let reset = connection.reset_time(self.end).filter(|_| !connection.ends[self.end].reset_signalled);
        [readable, writable, reset].into_iter().flatten().min()
    }

    /// Returns the number of switches to each route that this end has followed.
    pub fn followed(&self) -> [u64; 2] {
        lock(&self.connection).ends[self.end].followed
    }

    /// Returns when something that is sent now by a route arrives.
    fn arrival(&self, route: Route) -> Duration {
        let latency = if route == Route::Tcp { self.path.latency } else { Duration::ZERO };
        self.clock.now() + latency
    }

    /// Returns a copy of the bytes of `pieces`: up to `room` bytes, and up to the first unmapped address.
    fn copy_pieces(&self, pieces: &[Piece<'_>], room: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        for piece in pieces {
            let start = taken.len();
            let len = piece.len().min(room - start);
            match piece {
                Piece::Own(bytes) => taken.extend_from_slice(&bytes[..len]),
                Piece::Host(span) => {
                    taken.resize(start + len, 0);
                    let copied = self.arena.device_reads(&[*span], &mut taken[start..]);
                    taken.truncate(start + copied);
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
        let route = connection.ends[self.end].send;
        let room = connection.pipes[self.end][route as usize].room();
        if room == 0 {
            connection.ends[self.end].send_waits = true;
            return Err(LinkError::WouldBlock);
        }
        let taken = self.copy_pieces(pieces, room);
        if taken.is_empty() {
            return Err(LinkError::Unmapped);
        }
        connection.pipes[self.end][route as usize].push(&taken, self.arrival(route));
        Ok(taken.len())
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let in_host = total_len(host);
        assert!(in_host + own.len() > 0, "no room to receive");
        let mut connection = lock(&self.connection);
        let mut len = connection.check_recv(self.end, self.clock.now())?.min(in_host + own.len());
        let route = connection.ends[self.end].recv;
        let pipe = &mut connection.pipes[1 - self.end][route as usize];
        if pipe.rng().hits(self.path.split) {
            len = pipe.rng().part_of(len);
        }
        let (for_host, for_own) = pipe.front(len).split_at(len.min(in_host));
        let mut copied = if for_host.is_empty() { 0 } else { self.arena.device_writes(for_host, host) };
        if copied == for_host.len() {
            own[..for_own.len()].copy_from_slice(for_own);
            copied = len;
        }
        pipe.consume(copied);
        if copied == 0 { Err(LinkError::Unmapped) } else { Ok(copied) }
    }

    fn arrived(&self) -> usize {
        let now = self.clock.now();
        lock(&self.connection).pipes[1 - self.end].iter().map(|pipe| pipe.arrived(now)).sum()
    }

    fn lost(&self) -> Option<i32> {
        let mut connection = lock(&self.connection);
        match connection.check_send(self.end, self.clock.now()) {
            Err(LinkError::Lost(errno)) if errno != EPIPE => Some(errno),
            _ => None,
        }
    }

    fn switch_send(&self, route: Route) {
        let state = &mut lock(&self.connection).ends[self.end];
        assert_ne!(std::mem::replace(&mut state.send, route), route, "switch to the same route");
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        let mut connection = lock(&self.connection);
        let state = &mut connection.ends[self.end];
        let former = std::mem::replace(&mut state.recv, route);
        assert_ne!(former, route, "switch to the same route");
        state.followed[route as usize] += 1;
        connection.pipes[1 - self.end][former as usize].put_back(unread);
        true
    }

    fn finish(&self) {
        let mut connection = lock(&self.connection);
        connection.ends[self.end].finished = true;
        for (pipe, route) in connection.pipes[self.end].iter_mut().zip(ROUTES) {
            pipe.finish(self.arrival(route));
        }
    }

    fn abort(&self) {
        let mut connection = lock(&self.connection);
        if !std::mem::replace(&mut connection.ends[self.end].aborted, true) {
            connection.pipes[self.end].iter_mut().for_each(|pipe| pipe.reset(self.arrival(Route::Tcp)));
        }
    }

    fn segment_size(&self) -> usize {
        self.path.segment_size
    }
}

impl Connection {
    /// Checks that an end can still send. Returns the error that a send must return otherwise.
    fn check_send(&mut self, end: usize, now: Duration) -> Result<(), LinkError> {
        let reset = self.reset_time(end).is_some_and(|time| time <= now);
        let state = &mut self.ends[end];
        if state.aborted {
            return Err(LinkError::Lost(ECONNABORTED));
        }
        // Linux reports the reset once, then EPIPE.
        if reset && !std::mem::replace(&mut state.reset_reported, true) {
            return Err(LinkError::Lost(ECONNRESET));
        }
        if reset || state.finished { Err(LinkError::Lost(EPIPE)) } else { Ok(()) }
    }

    /// Returns how many bytes an end can receive now, or the error that a receive must return.
    fn check_recv(&mut self, end: usize, now: Duration) -> Result<usize, LinkError> {
        let state = &mut self.ends[end];
        let pipe = &self.pipes[1 - end][state.recv as usize];
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

    /// Returns when the peer's abort reaches an end; `None` if the peer has not aborted.
    fn reset_time(&self, end: usize) -> Option<Duration> {
        self.pipes[1 - end][Route::Tcp as usize].reset_at() // the same for all routes
    }

    /// Returns when an end will be readable, and when writable. `None` for a direction whose last call did not return
    /// `WouldBlock`.
    fn ready_times(&self, end: usize) -> [Option<Duration>; 2] {
        let state = &self.ends[end];
        let sent = &self.pipes[end][state.send as usize];
        let received = &self.pipes[1 - end][state.recv as usize];
        let now = Some(Duration::ZERO); // a time that has passed
        let readable = if state.aborted { now } else { received.readable_at() };
        let writable =
            if state.aborted || state.finished || sent.room() > 0 { now } else { received.reset_at() };
        [readable.filter(|_| state.recv_waits), writable.filter(|_| state.send_waits)]
    }
}

impl State {
    /// Returns the state of a new end, both of whose directions will be reported as ready.
    const fn new() -> Self {
        Self {
            send: Route::Tcp,
            recv: Route::Tcp,
            followed: [0; 2],
            recv_waits: true,
            send_waits: true,
            finished: false,
            aborted: false,
            reset_reported: false,
            reset_signalled: false,
        }
    }
}
