//! Sets up the memory of two processes, over a Unix socket. Everything happens on a lane, without waiting, except that a
//! thread receives the descriptor of the memory: the other process can make that thread block (`sys/bell.rs`).

use super::carrier::Carrier;
use super::channel::ChannelOwner;
use super::record::Token;
use crate::reactor::carrier::Carrier as ReactorCarrier;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::reactor::source::{EventSource, Rearm};
use crate::sys::bell::{Bell, BellListener};
use crate::sys::segment::MappedSegment;
use crate::sys::thread::spawn;
use ironwarp_shm::Side;
use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What both ends say first: a name and the version of the layout.
const MAGIC: [u8; 8] = *b"IRWSHM\0\x01";
/// Length of a hello: magic, token, number of the adapter and of its lane. The numbers are not checked, so they are not
/// used.
const HELLO_LEN: usize = 32;
/// Time after which a process that has not said hello, or has not been answered, is given up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of processes that have connected and not said hello.
const MAX_GUESTS: usize = 64;
/// How long the adapter does not accept processes after it failed, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of an adapter, by which others find its socket. Random, so that it tells nothing about the host.
pub(super) type AdapterId = [u8; 7];

/// One end of a carrier: an adapter and the number of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    pub(super) adapter: AdapterId,
    pub(super) lane: u8,
}

/// Returns the number of a lane, for the key of a carrier. Lanes beyond 255 share numbers, and carriers.
pub(super) fn lane_number(lane: &LaneHandle) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "documented")]
    let number = lane.number() as u8;
    number
}

/// Returns the name of an adapter's socket.
pub(super) fn socket_name(id: &AdapterId) -> String {
    id.iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}"); // writing to a string never fails
        name
    })
}

/// The adapter that shares memory.
pub(super) trait Adapter: Send + Sync + fmt::Debug {
    /// Returns the number of the adapter.
    fn id(&self) -> AdapterId;

    /// Returns the directory that is shared with processes in other containers; empty if there is none.
    fn directory(&self) -> &Path;

    /// Returns the connection of an offer that waits for an answer, for a process that has come for the memory, without
    /// taking the offer. Returns `None` the next time.
    fn find_for_memory(&self, token: &Token) -> Option<Weak<dyn ChannelOwner>>;

    /// Creates one end of a carrier.
    fn new_carrier(&self, segment: MappedSegment, side: Side, bell: &Arc<Bell>) -> Arc<Carrier>;

    /// Uses a new carrier in the memory of `peer` for the requests that wait for it.
    fn on_joined(&self, peer: End, lane: &Arc<LaneHandle>, carrier: &Arc<Carrier>);

    /// If requests still wait for a carrier in the memory of `peer`, refuses the first one, and tries again with the next.
    fn on_not_joined(&self, peer: End, lane: &Arc<LaneHandle>, why: &str);
}

/// Accepts other processes.
#[derive(Debug)]
pub(super) struct Reception {
    listener: BellListener,
    memory: Weak<dyn Adapter>,
    lane: Arc<LaneHandle>,
    guests: Arc<AtomicUsize>,
}

impl Reception {
    pub(super) fn new(listener: BellListener, memory: &Weak<dyn Adapter>, lane: &Arc<LaneHandle>) -> Self {
        Self { listener, memory: Weak::clone(memory), lane: Arc::clone(lane), guests: Arc::default() }
    }
}

impl AsFd for Reception {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl EventSource for Reception {
    fn on_readable(&self) -> io::Result<Rearm> {
        loop {
            let bell = match self.listener.accept() {
                Ok(Some(bell)) => Arc::new(bell),
                Ok(None) => return Ok(Rearm::Now),
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a process that wants to share memory");
                    return Ok(Rearm::After(PAUSE));
                }
            };
            let Some(count) = GuestCount::new(&self.guests) else { continue };
            close_after_timeout(&self.lane, &bell);
            let (memory, lane) = (Weak::clone(&self.memory), Arc::clone(&self.lane));
            let guest = Guest { bell, memory, lane, _count: count };
            self.lane.submit(Command::AddSource(Arc::new(guest)));
        }
    }
}

/// Closes a socket after [`TIMEOUT`] unless a carrier uses it.
fn close_after_timeout(lane: &LaneHandle, bell: &Arc<Bell>) {
    let bell = Arc::downgrade(bell);
    lane.call_at(Instant::now() + TIMEOUT, move || {
        if let Some(bell) = bell.upgrade().filter(|bell| !bell.is_in_use()) {
            bell.close();
        }
    });
}

/// Counts a guest until it is dropped.
#[derive(Debug)]
struct GuestCount(Arc<AtomicUsize>);

impl GuestCount {
    /// Counts a guest. Returns `None` if there are too many.
    fn new(guests: &Arc<AtomicUsize>) -> Option<Self> {
        let count = Self(Arc::clone(guests));
        (count.0.fetch_add(1, Ordering::Relaxed) < MAX_GUESTS).then_some(count)
    }
}

impl Drop for GuestCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A process that has connected. It must say hello with the token of an offer.
#[derive(Debug)]
struct Guest {
    bell: Arc<Bell>,
    memory: Weak<dyn Adapter>,
    lane: Arc<LaneHandle>,
    _count: GuestCount,
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl EventSource for Guest {
    fn on_readable(&self) -> io::Result<Rearm> {
        if let Err(error) = self.answer() {
            tracing::debug!(%error, "refused a process that wants to share memory");
            self.bell.close();
        }
        Ok(Rearm::Never)
    }
}

impl Guest {
    /// Reads the hello, which has arrived as a whole, because it was sent at once; and answers with new memory.
    fn answer(&self) -> io::Result<()> {
        let mut hello = [0; HELLO_LEN];
        let received = self.bell.receive(&mut hello)?;
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        if received != HELLO_LEN || hello[..8] != MAGIC {
            return Err(invalid("the hello is malformed"));
        }
        let token: Token = hello[8..24].try_into().map_err(io::Error::other)?;
        let memory = self.memory.upgrade().ok_or_else(|| invalid("the adapter is closed"))?;
        let Some(owner) = memory.find_for_memory(&token) else {
            return Err(invalid("there is no offer with this token"));
        };
        let segment = MappedSegment::create()?;
        self.bell.send(&MAGIC, Some(segment.as_fd()))?;
        let carrier = memory.new_carrier(segment, Side::Creator, &self.bell);
        // The poll set of the connection serves the carrier until the request for a channel has arrived.
        let in_set: Arc<dyn ReactorCarrier> = Arc::<Carrier>::clone(&carrier);
        if !owner.upgrade().is_some_and(|owner| owner.use_carrier(&in_set)) {
            return Err(invalid("the connection is closed"));
        }
        let carrier = Arc::downgrade(&carrier);
        self.lane.call_at(Instant::now() + TIMEOUT, move || {
            carrier.upgrade().iter().for_each(|carrier| carrier.close_if_idle());
        });
        Ok(())
    }
}

/// Number of threads that receive descriptors.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Maximum number of these threads. Processes that do not answer, or make them block, cost others the shared memory until
/// then, but not more.
const MAX_THREADS: usize = 16;

/// A request for the memory of another process. If it is dropped, the connections that wait for the memory stay with TCP.
#[derive(Debug)]
pub(super) struct Joining {
    memory: Weak<dyn Adapter>,
    peer: End,
    lane: Arc<LaneHandle>,
    /// Why there is no memory.
    why: Option<String>,
    _count: ThreadCount,
}

/// Counts a thread until it is dropped.
#[derive(Debug)]
struct ThreadCount;

impl ThreadCount {
    fn new() -> io::Result<Self> {
        let count = Self;
        if THREADS.fetch_add(1, Ordering::Relaxed) < MAX_THREADS {
            Ok(count)
        } else {
            Err(io::Error::other("too many processes have not answered"))
        }
    }
}

impl Drop for ThreadCount {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Joining {
    /// Connects to the adapter of `peer`, and says hello with the token of its offer.
    pub(super) fn start(
        memory: &Arc<dyn Adapter>,
        peer: End,
        token: &Token,
        lane: &Arc<LaneHandle>,
    ) -> io::Result<()> {
        let count = ThreadCount::new()?;
        let bell = Bell::connect(memory.directory(), &socket_name(&peer.adapter))?;
        let mut hello = [0; HELLO_LEN];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..24].copy_from_slice(token);
        hello[24..31].copy_from_slice(&memory.id());
        hello[31] = lane_number(lane);
        bell.send(&hello, None)?;
        let memory = Arc::downgrade(memory);
        let joining = Self { memory, peer, lane: Arc::clone(lane), why: None, _count: count };
        let lane = Arc::clone(lane);
        spawn("ironwarp-shm", move || match receive(&bell) {
            Ok(segment) => lane.call(move || joining.join(segment, &Arc::new(bell))),
            Err(error) => joining.end(error.to_string()),
        })?;
        Ok(())
    }

    /// Answers the requests that wait: there is no memory.
    fn end(mut self, why: String) {
        self.why = Some(why);
    }

    /// Uses the memory, and asks for the channels that were requested meanwhile.
    fn join(self, segment: MappedSegment, bell: &Arc<Bell>) {
        let Some(memory) = self.memory.upgrade() else { return };
        let carrier = memory.new_carrier(segment, Side::Joiner, bell);
        memory.on_joined(self.peer, &self.lane, &carrier);
    }
}

/// Receives the memory of another process.
fn receive(bell: &Bell) -> io::Result<MappedSegment> {
    let mut magic = [0; MAGIC.len()];
    let file = bell.receive_file(&mut magic, TIMEOUT)?;
    if magic != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is malformed"));
    }
    MappedSegment::join(file)
}

impl Drop for Joining {
    /// Answers the requests that still wait.
    fn drop(&mut self) {
        if let Some(memory) = self.memory.upgrade() {
            let why = self.why.as_deref().unwrap_or("the peer did not share its memory");
            memory.on_not_joined(self.peer, &self.lane, why);
        }
    }
}
