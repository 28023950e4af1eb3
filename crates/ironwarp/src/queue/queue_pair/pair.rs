//! The queue pair: its state, its attributes, and how it is dropped.

use super::info::QueuePairInfo;
use crate::memory::PendingTags;
use crate::shared::Shared;
use ironwarp_engine::QueuePair as Inner;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{AlreadyConnected, IllegalTransition, RegistrationFailure, Retries, State};
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue pair: one end of a connection. A queue pair makes a single attempt to connect; create a new one for each
/// attempt and each connection.
///
/// Dropping a queue pair disconnects it. Posted requests are still sent, in the background.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// // The server, usually in another process.
/// let adapter = Adapter::new()?;
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// let addr = listener.local_addr()?;
/// let server = std::thread::spawn(move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
///     let cq = adapter.completion_queue(64)?;
///     let domain = adapter.protection_domain();
///     let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
///     let qp = domain.queue_pair(&cq).create()?;
///     qp.post_receive(1, &[region.slice(..4096)?])?;
///     let incoming = listener.accept(Duration::from_secs(5))?;
///     incoming.accept(&qp, &AcceptOptions::new())?;
///     let received = cq.wait(Duration::from_secs(5))?.success()?;
///     let mut message = vec![0; received.byte_len as usize];
///     region.read(0, &mut message)?;
///     Ok(message)
/// });
///
/// // The client.
/// let adapter = Adapter::new()?;
/// let cq = adapter.completion_queue(64)?;
/// let qp = adapter.protection_domain().queue_pair(&cq).create()?;
/// qp.connect(addr, &ConnectOptions::new())?;
/// qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
/// cq.wait(Duration::from_secs(5))?.success()?;
///
/// assert_eq!(server.join().unwrap().unwrap(), b"hello");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a queue pair disconnects it"]
pub struct QueuePair {
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Arc<Inner>,
    /// Whether the single attempt to connect was made. Initially true for a manual queue pair, which only `bring_up`
    /// connects.
    pub(super) attempted: AtomicBool,
    /// Tag sequences that posted requests have advanced. `None` if a failed registration ends the connection: then no
    /// tag can be left behind by requests that were never executed.
    pub(super) pending: Option<Box<PendingTags>>,
}

impl QueuePair {
    /// Creates a handle to a queue pair that moved here from another process or function. It cannot be connected again.
    pub(crate) fn restored(shared: &Arc<Shared>, inner: &Arc<Inner>) -> Self {
        let is_reactive = inner.qp().attributes().registration_failure == RegistrationFailure::Reactive;
        let pending = is_reactive.then(Box::<PendingTags>::default);
        let attempted = AtomicBool::new(inner.addresses().is_some());
        Self { shared: Arc::clone(shared), inner: Arc::clone(inner), attempted, pending }
    }

    /// Returns the queue pair number, as it appears in completions and events.
    pub fn id(&self) -> u32 {
        self.inner.qp().id()
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// Returns attributes and state of the queue pair (requirement N10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let info = client.qp.query();
    /// assert!(info.linked && info.error.is_none());
    /// assert_eq!((info.local, info.remote), (server.qp.query().remote, server.qp.query().local));
    /// assert_eq!((info.domain, info.send_cq), (client.domain.id(), client.cq.id()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn query(&self) -> QueuePairInfo {
        QueuePairInfo::new(&self.inner)
    }

    /// Changes the state.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::{State, WorkRequest};
    /// client.qp.set_state(State::Drained)?;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"later", server.region.remote_addr(0)?))?;
    /// assert!(client.cq.poll_one()?.is_none());
    /// client.qp.set_state(State::ReadyToSend)?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?;
    /// assert!(client.qp.set_state(State::Init).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the verbs do not allow the transition, or if the adapter was [shut down](crate::Adapter::shutdown).
    pub fn set_state(&self, to: State) -> Result<(), IllegalTransition> {
        if to == State::ReadyToSend
            && let Some(pending) = &self.pending
        {
            // After a failed registration, every posted request was executed, refused or flushed, so that the tags in
            // the device's table are final. The lock keeps other threads from posting until those tags are adopted.
            let _order = lock(&self.shared.tag_order);
            let registration_failed = self.inner.qp().is_refusing();
            self.inner.modify(to)?;
            if registration_failed {
                pending.settle(self.shared.device().table(), self.id());
            }
            return Ok(());
        }
        self.inner.modify(to)?;
        if to == State::Reset {
            // A queue pair that was reset may connect again.
            self.attempted.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Changes the remote operations that this queue pair accepts: reads, writes and atomics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// server.qp.set_access(Access::REMOTE_WRITE);
    /// client.qp.post_send(WorkRequest::read(1, &[client.region.slice(..8)?], server.region.remote_addr(0)?))?;
    /// let refused = client.cq.wait(std::time::Duration::from_secs(5))?;
    /// assert_eq!(refused.status, Status::RemoteAccess);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_access(&self, access: Rights) {
        self.inner.qp().set_rights(access);
    }

    /// Sets timeouts and retry counts. By default requests wait forever. Set those that the peer must know before the
    /// connection is established.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::queue::Retries;
    ///
    /// let qp = domain.queue_pair(&cq).create()?;
    /// qp.set_retries(Retries::default().rnr_retry(3));
    /// assert_eq!(qp.query().retries.rnr_retry, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_retries(&self, retries: Retries) {
        self.inner.set_retries(retries);
    }

    /// Returns why the connection ended, or `None` if it has not.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use std::time::Duration;
    /// client.qp.disconnect();
    /// assert!(server.qp.wait_closed(Duration::from_secs(5)));
    /// assert_eq!(server.qp.error().unwrap().to_string(), "the peer closed the connection");
    /// # Ok(())
    /// # }
    /// ```
    pub fn error(&self) -> Option<QpError> {
        self.inner.qp().error().map(|error| error.as_ref().clone())
    }

    /// Returns whether the peer is known to be an Ironwarp adapter, which makes acknowledgements cheaper and segments
    /// longer. An Ironwarp peer is known once its first message has been received; never if
    /// [`Config::private`](crate::Config::private) is off.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # client.qp.post_receive(1, &[])?;
    /// # server.qp.post_send(ironwarp::queue::WorkRequest::send(1, &[]))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?;
    /// assert!(client.qp.is_peer_ironwarp());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_peer_ironwarp(&self) -> bool {
        self.inner.qp().is_peer_ironwarp()
    }

    /// Returns the number of the lane that serves the connection while the program does not (see
    /// [`Steering`](crate::steering::Steering)), or `None` without a connection.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// assert!(client.qp.lane().is_some_and(|lane| lane < client.adapter.steering().lanes()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lane(&self) -> Option<usize> {
        self.inner.lane()
    }

    /// Returns how many receives of [shared receive queues](crate::queue::SharedReceiveQueue) the peer has consumed.
    /// Compare the queue pairs of a shared receive queue to find a peer that consumes more than its share (RFC 5042
    /// §6.4.3.1).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// assert_eq!(server.qp.shared_receives(), 0, "it has its own receive queue");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_receives(&self) -> u64 {
        self.inner.qp().shared_receives()
    }

    /// Returns the state of the adapter.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Claims the queue pair for its single attempt to connect. Fails if there was an attempt before: the program could
    /// not tell which of two attempts an event belongs to.
    pub(crate) fn claim(&self) -> Result<(), AlreadyConnected> {
        // Of several threads, only the one that changes the flag may connect. The flag orders no other data.
        if self.attempted.swap(true, Ordering::Relaxed) { Err(AlreadyConnected) } else { Ok(()) }
    }

    /// Returns the engine's queue pair.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("id", &self.id())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.inner.disconnect();
    }
}
