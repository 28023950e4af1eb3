//! What happens to connections, and how a program learns of it.

use crate::sys::poller::EventFd;
use crate::sys::thread::block;
use ironwarp_rnic::bug::Bug;
use ironwarp_rnic::connect::{Agreed, Depths, StartupError};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::{Channel, Wake};
use ironwarp_wire::private::{Reason, Unreadable, VERSION};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A wake with a file descriptor that is readable while it is not zero.
#[derive(Clone, Debug)]
pub struct EventFdWake(Arc<EventFd>);

impl EventFdWake {
    /// Not signalled.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(EventFd::semaphore()?)))
    }
}

impl Wake for EventFdWake {
    fn signal(&self) {
        self.0.signal();
    }

    fn consume(&self) {
        self.0.take();
    }
}

impl AsFd for EventFdWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What happened to the connection of a queue pair.
#[derive(Clone, Debug)]
pub struct ConnectionEvent {
    /// The queue pair.
    pub qp: u32,
    /// What happened.
    pub what: What,
}

/// What happened to a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum What {
    /// It is there.
    Connected(Arc<Established>),
    /// It will not be.
    Failed(Arc<ConnectError>),
    /// It is over.
    Ended(Arc<Fault>),
}

/// A connection that is there.
#[derive(Clone, Debug)]
pub struct Established {
    /// What the peer's program sent along.
    pub private_data: Box<[u8]>,
    /// What was agreed.
    pub agreed: Agreed,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This end's address.
    pub local: SocketAddr,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer's program does not want it.
    #[error("the peer rejected the connection{}", words(.private_data))]
    Rejected {
        /// What it sent along.
        private_data: Box<[u8]>,
        /// What it said of its depths.
        depths: Depths,
    },
    /// The queue pair at the other end, connected by GID and number, refuses this one.
    #[error("the peer refused the connection: {0}")]
    Refused(Reason),
    /// The same, without a reason: all releases since version 2 of the private protocol give one.
    #[error(
        "the peer rejected the connection and gave no reason: it is an older release of Ironwarp, which speaks another version of the private protocol than {VERSION}, or not Ironwarp; run the same release at both ends"
    )]
    NoReason,
    /// Who accepted does not know the key.
    #[error(
        "the peer did not prove that it knows this end's key: set the same cluster key at both ends, or another process has its port"
    )]
    Unproven,
    /// The peer runs another release of Ironwarp.
    #[error("{0}")]
    OtherRelease(#[from] Unreadable),
    /// The startup frames do not go together.
    #[error("no agreement with the peer: {0}")]
    Startup(#[from] StartupError),
    /// The peer closed before it answered.
    #[error("the peer closed the connection before it answered: it may not speak MPA")]
    Closed,
    /// Another program has the TCP port.
    #[error("no listener at the RDMA port: its TCP port belongs to another program")]
    Elsewhere,
    /// It took too long.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The program did not want it any more.
    #[error("the queue pair was disconnected before it was connected")]
    GivenUp,
    /// The operating system says no.
    #[error("{}{}", .0, hint(.0))]
    System(#[from] io::Error),
    /// The caller asked for what cannot be.
    #[error("{0}")]
    Misuse(#[from] ironwarp_rnic::connect::Misuse),
    /// The adapter made a mistake. Only this connection fails for it.
    #[error("{0}")]
    Bug(Bug),
    /// A stream is for once.
    #[error("{0}")]
    Connected(#[from] ironwarp_rnic::qp::AlreadyConnected),
}

/// What the operating system means, where that is not clear.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ": nobody listens there",
        io::ErrorKind::AddrNotAvailable => ": this host does not have the address to connect from",
        _ => "",
    }
}

/// Private data of a reject is a text more often than not.
fn words(private_data: &[u8]) -> String {
    match std::str::from_utf8(private_data) {
        Ok("") => String::new(),
        Ok(text) => format!(": {text:?}"),
        Err(_) => format!(" with {} bytes of private data", private_data.len()),
    }
}

/// Who is told what happens, on the thread that finds out: a lane's, as a rule. It must not block, and may call back.
#[doc(hidden)]
pub trait Watcher<E>: Send + Sync + fmt::Debug {
    /// This happened.
    fn tell(&self, event: E);

    /// Drops what it was told and has not looked at, if `is_gone` says so: it is of no use any more.
    fn withdraw(&self, _is_gone: &dyn Fn(&E) -> bool) {}
}

/// What a program waits on for events of connections.
#[derive(Debug)]
pub struct EventChannel<E> {
    channel: Channel<E>,
    wake: EventFdWake,
}

impl<E> EventChannel<E> {
    /// An empty channel.
    ///
    /// ```
    /// # use ironwarp_engine::{ConnectionEvent, EventChannel};
    /// let events = EventChannel::<ConnectionEvent>::new()?;
    /// assert!(events.next().is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        Ok(Arc::new(Self { channel: Channel::new(Box::new(wake.clone())), wake }))
    }

    /// Takes the oldest event.
    pub fn next(&self) -> Option<E> {
        self.channel.next()
    }

    /// Waits for an event. `None` if `timeout` is over first; a timeout of `None` waits as long as it takes.
    ///
    /// ```
    /// # use ironwarp_engine::{ConnectionEvent, EventChannel};
    /// # use std::time::Duration;
    /// let events = EventChannel::<ConnectionEvent>::new()?;
    /// assert!(events.wait(Duration::from_millis(1)).is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Option<E> {
        wait_for(&self.wake, timeout.into(), || self.next())
    }
}

#[doc(hidden)]
impl<E: Send + fmt::Debug> Watcher<E> for EventChannel<E> {
    fn tell(&self, event: E) {
        self.channel.push(event);
    }

    fn withdraw(&self, is_gone: &dyn Fn(&E) -> bool) {
        self.channel.revoke(is_gone);
    }
}

/// Sleeps until the wake is signalled, as often as it takes until `next` has something, or `timeout` is over, or the program has closed
/// the descriptor.
pub(crate) fn wait_for<E>(
    wake: &EventFdWake,
    timeout: Option<Duration>,
    next: impl Fn() -> Option<E>,
) -> Option<E> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(event) = next() {
            return Some(event);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        // A descriptor that the program has closed tells nothing any more.
        block(&[wake.as_fd()], left, || false).ok()?;
    }
}

impl<E> AsFd for EventChannel<E> {
    /// Readable exactly while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<E> AsRawFd for EventChannel<E> {
    /// The same, for what takes it in this form: tokio's `AsyncFd`, mio's `SourceFd`. It does not change, and is open as long
    /// as this lives.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
