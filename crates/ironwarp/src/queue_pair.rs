//! Queue pairs: connections, and the requests that use them. Before this: a protection domain and completion queues;
//! after: completions.

use crate::adapter::{Shared, lock};
use crate::bring_up::BringUpOptions;
use crate::completion_queue::CompletionQueue;
use crate::connect::ConnectOptions;
use crate::error::CreateError;
use crate::name::{Given, Name, Named};
use crate::protection_domain::ProtectionDomain;
use crate::query::Context;
use crate::shared_receive_queue::{SharedReceiveQueue, XrcDomain};
use crate::shared_send_queue::SharedSendQueue;
use crate::work_request::WorkRequest;
use ironwarp_engine::{
    BringUpError, ConnectError, ConnectionEvent, Established, EventChannel, QueuePair as Inner,
    QueuePairAttributes, Remote,
};
use ironwarp_rnic::error::{Fault, PostError};
use ironwarp_rnic::memory::{Domain, Rights, Table};
use ironwarp_rnic::qp::{
    AlreadyConnected, Completes, IllegalTransition, Qp, Receives, RegistrationFailure, Retries, State,
};
use ironwarp_rnic::queue::{Operation, ReceiveRequest, Sge, WorkRequest as InnerRequest};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many requests a queue holds, if the builder is not told.
pub(crate) const DEPTH: usize = 128;
/// How many elements a list may have, if the builder is not told.
pub(crate) const SGES: usize = 16;
/// The engine itself gives a startup up in time; this is added so that its reason is heard.
const GRACE: Duration = Duration::from_secs(1);

/// What a queue pair is to be like.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// use ironwarp::{Completes, State};
///
/// let (sent, received) = (adapter.completion_queue(64)?, adapter.completion_queue(64)?);
/// let qp = adapter
///     .protection_domain()
///     .queue_pair(&sent)
///     .receive_cq(&received)
///     .send_depth(16)
///     .receive_depth(16)
///     .max_sges(4)
///     .completes(Completes::WhenAcknowledged)
///     .create()?;
/// assert_eq!(qp.state(), State::Init);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "there is no queue pair before `create`"]
pub struct QueuePairBuilder {
    shared: Arc<Shared>,
    domain: Domain,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    send_depth: usize,
    shared_send: Option<SharedSendQueue>,
    receives: Receives,
    /// The shared receive queue is another adapter's.
    foreign: bool,
    max_sges: usize,
    completes: Completes,
    registration_failure: RegistrationFailure,
    rights: Rights,
    by_hand: bool,
    events: Option<Arc<EventChannel<ConnectionEvent>>>,
}

impl QueuePairBuilder {
    pub(crate) fn new(of: &ProtectionDomain, cq: &CompletionQueue) -> Self {
        Self {
            shared: Arc::clone(&of.shared),
            domain: of.domain(),
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            send_depth: DEPTH,
            shared_send: None,
            receives: Receives::Own(DEPTH),
            foreign: false,
            max_sges: SGES,
            completes: Completes::default(),
            registration_failure: RegistrationFailure::default(),
            rights: Rights::REMOTE,
            by_hand: false,
            events: None,
        }
    }

    /// Where completions of receives go, if not where the others do.
    pub fn receive_cq(mut self, cq: &CompletionQueue) -> Self {
        self.receive_cq = cq.clone();
        self
    }

    /// How many requests the send queue holds; 128 if this is not called.
    pub fn send_depth(mut self, requests: usize) -> Self {
        self.send_depth = requests;
        self
    }

    /// Is fed by a shared send queue, and has none of its own. Requests complete where that has them complete.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let ssq = domain.shared_send_queue(&cq, 64);
    /// let one = domain.queue_pair(&cq).shared_send_queue(&ssq).create()?;
    /// assert!(adapter.protection_domain().queue_pair(&cq).shared_send_queue(&ssq).create().is_err());
    /// # let _ = one;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_send_queue(mut self, ssq: &SharedSendQueue) -> Self {
        self.shared_send = Some(ssq.clone());
        self
    }

    /// How many receives the receive queue holds; 128 if this is not called.
    pub fn receive_depth(mut self, requests: usize) -> Self {
        self.receives = Receives::Own(requests);
        self
    }

    /// Takes its receives from a shared receive queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.shared_receive_queue(16);
    /// let qp = domain.queue_pair(&cq).srq(&srq).create()?;
    /// assert!(qp.post_receive(1, &[]).is_err(), "it has no queue of its own");
    /// # Ok(())
    /// # }
    /// ```
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.receives = Receives::Shared(Arc::clone(&srq.inner));
        self.foreign |= !Arc::ptr_eq(&srq.shared, &self.shared);
        self
    }

    /// Takes its receives from the shared receive queue that each message names (XRC).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.queue_pair(&cq).xrc_target(&adapter.xrc_domain()).create()?;
    /// assert_eq!(qp.query().receive_depth, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn xrc_target(mut self, xrc: &XrcDomain) -> Self {
        self.receives = Receives::Named(Arc::clone(&xrc.inner));
        self
    }

    /// What the peer may do with memory that allows it: all of Read, Write and atomic operations if this is not called.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::Access;
    ///
    /// let qp = domain.queue_pair(&cq).access(Access::REMOTE_READ).create()?;
    /// assert_eq!(qp.query().rights, Access::REMOTE_READ);
    /// # Ok(())
    /// # }
    /// ```
    pub fn access(mut self, access: Rights) -> Self {
        self.rights = access;
        self
    }

    /// How many elements the list of a request may have; 16 if this is not called.
    pub fn max_sges(mut self, elements: usize) -> Self {
        self.max_sges = elements;
        self
    }

    /// When Sends and Writes complete: iWARP's own way, when they were sent, if this is not called (requirement P2).
    pub fn completes(mut self, completes: Completes) -> Self {
        self.completes = completes;
        self
    }

    /// What becomes of it if a [registration by work request](WorkRequest::register) is refused: it is over, if this is not
    /// called (requirement M7).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::RegistrationFailure::Reactive;
    ///
    /// // What is refused can be tried again: see `RegistrationFailure`.
    /// let qp = domain.queue_pair(&cq).registration_failure(Reactive).create()?;
    /// assert_eq!(qp.query().registration_failure, Reactive);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registration_failure(mut self, failure: RegistrationFailure) -> Self {
        self.registration_failure = failure;
        self
    }

    /// It will be [brought up](QueuePair::bring_up) by hand: its [number](QueuePair::id) has a port in it, so that a peer
    /// who knows the number and a [GID](crate::Adapter::gids) finds it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.queue_pair(&cq).by_hand().create()?;
    /// println!("tell the peer: {} at {}", qp.id(), adapter.gids()?[0].gid);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// Where what happens to the connection is told, besides the queue pair itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::{ConnectOptions, EventChannel, What};
    /// use std::time::Duration;
    ///
    /// let events = EventChannel::new()?;
    /// let qp = domain.queue_pair(&cq).events(&events).create()?;
    /// # let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    /// qp.connect_start(nobody, &ConnectOptions::new())?;
    ///
    /// let event = events.wait(Some(Duration::from_secs(5))).expect("something happens");
    /// assert_eq!(event.qp, qp.id());
    /// assert!(matches!(event.what, What::Failed(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(mut self, channel: &Arc<EventChannel<ConnectionEvent>>) -> Self {
        self.events = Some(Arc::clone(channel));
        self
    }

    /// The queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::{Adapter, CreateError};
    ///
    /// let (one, another) = (Adapter::new()?, Adapter::new()?);
    /// let (cq, foreign) = (one.completion_queue(64)?, another.completion_queue(64)?);
    /// let domain = one.protection_domain();
    /// assert!(domain.queue_pair(&cq).create().is_ok());
    /// assert!(matches!(domain.queue_pair(&foreign).create(), Err(CreateError::OtherAdapter)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(mut self) -> Result<QueuePair, CreateError> {
        if let Some(ssq) = &self.shared_send {
            self.send_cq = ssq.cq.clone();
            self.send_depth = 0;
        }
        for cq in [&self.send_cq, &self.receive_cq] {
            if !Arc::ptr_eq(&cq.shared, &self.shared) {
                return Err(CreateError::OtherAdapter);
            }
        }
        if self.foreign {
            return Err(CreateError::OtherAdapter);
        }
        if self.shared_send.as_ref().is_some_and(|ssq| ssq.domain != self.domain) {
            return Err(CreateError::OtherDomain);
        }
        let inner = self.shared.engine.create_qp(QueuePairAttributes {
            by_hand: self.by_hand,
            send_depth: self.send_depth,
            shared_send: self.shared_send.map(|ssq| ssq.inner),
            receives: self.receives,
            rights: self.rights,
            max_sges: self.max_sges,
            completes: self.completes,
            registration_failure: self.registration_failure,
            receive_cq: self.receive_cq.inner,
            events: self.events.map(|channel| channel as _),
            ..QueuePairAttributes::new(self.domain, &self.send_cq.inner)
        })?;
        if self.by_hand {
            // So that receives can be posted; the rest of the way is `bring_up`.
            inner.modify(State::Init).unwrap_or_else(|error| unreachable!("it is new: {error}"));
        }
        let begun = AtomicBool::new(self.by_hand);
        let given = (self.registration_failure == RegistrationFailure::Reactive).then(Box::<Given>::default);
        Ok(QueuePair { shared: self.shared, inner, begun, given })
    }
}

impl fmt::Debug for QueuePairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairBuilder")
            .field("send_cq", &self.send_cq)
            .field("receive_cq", &self.receive_cq)
            .field("send_depth", &self.send_depth)
            .field("max_sges", &self.max_sges)
            .field("completes", &self.completes)
            .finish_non_exhaustive()
    }
}

/// A queue pair: a connection to a peer, once it is connected. For another connection, or another
/// attempt, create another one.
///
/// Dropped, it is disconnected: what was posted is still sent, in the background.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::{AcceptOptions, Access, Adapter, Buffer, ConnectOptions, WorkRequest};
/// use std::time::Duration;
///
/// // The server, in another process as a rule.
/// let adapter = Adapter::new()?;
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// let addr = listener.local_addr()?;
/// let server = std::thread::spawn(move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
///     let cq = adapter.completion_queue(64)?;
///     let domain = adapter.protection_domain();
///     let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
///     let qp = domain.queue_pair(&cq).create()?;
///     qp.post_receive(1, &[region.slice(0, 4096)?])?;
///     let incoming = listener.accept(Duration::from_secs(5)).ok_or("nobody connects")?;
///     incoming.accept(&qp, &AcceptOptions::new())?;
///     let received = cq.wait(Duration::from_secs(5))?.ok_or("nothing comes")?.success()?;
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
/// cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
///
/// assert_eq!(server.join().unwrap().unwrap(), b"hello");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is disconnected"]
pub struct QueuePair {
    shared: Arc<Shared>,
    inner: Arc<Inner>,
    /// A connection was begun, or none is to be made by address.
    begun: AtomicBool,
    /// The tags that its requests gave, if they may be refused and it goes on.
    given: Option<Box<Given>>,
}

impl QueuePair {
    /// Its number, as completions and events name it.
    pub fn id(&self) -> u32 {
        self.inner.qp().id()
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// All there is to know of it (requirement N10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// let context = client.qp.query();
    /// assert!(context.linked && context.fault.is_none());
    /// assert_eq!((context.domain, context.send_cq), (client.domain.id(), client.cq.id()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn query(&self) -> Context {
        Context::of(self.inner.qp().query())
    }

    /// Moves it to another state of the verbs, where that is possible.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{State, WorkRequest};
    /// client.qp.modify(State::Drained)?;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"later", server.region.place(0)?))?;
    /// assert!(client.cq.poll_one()?.is_none());
    /// client.qp.modify(State::ReadyToSend)?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert!(client.qp.modify(State::Init).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        if to == State::ReadyToSend
            && let Some(given) = &self.given
        {
            // What was posted before has been executed, refused or flushed, if the queue pair is drained for a refusal.
            let _naming = lock(&self.shared.naming);
            let refused = self.inner.qp().is_refusing();
            self.inner.modify(to)?;
            if refused {
                given.settle(self.shared.device().table(), self.id());
            }
            return Ok(());
        }
        self.inner.modify(to)?;
        if to == State::Reset {
            self.begun.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the peer may do from now on, with memory that allows it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Status, WorkRequest};
    /// server.qp.set_access(Access::REMOTE_WRITE);
    /// client.qp.post_send(WorkRequest::read(1, &[client.region.slice(0, 8)?], server.region.place(0)?))?;
    /// let refused = client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!(refused.status, Status::RemoteAccess);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_access(&self, access: Rights) {
        self.inner.qp().set_rights(access);
    }

    /// How long it tries from now on; for ever, if this is not called. What it asks of its peer counts if it is set before
    /// the connection is there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::Retries;
    ///
    /// let qp = domain.queue_pair(&cq).create()?;
    /// qp.set_retries(Retries { rnr_retry: 3, ..Retries::default() });
    /// assert_eq!(qp.query().retries.rnr_retry, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_retries(&self, retries: Retries) {
        self.inner.set_retries(retries);
    }

    /// Why its connection ended, if it did.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use std::time::Duration;
    /// client.qp.disconnect();
    /// assert!(server.qp.wait_closed(Duration::from_secs(5)));
    /// assert_eq!(server.qp.fault().unwrap().to_string(), "the peer closed the connection");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fault(&self) -> Option<Arc<Fault>> {
        self.inner.qp().fault().cloned()
    }

    /// Whether the peer has shown that it is an Ironwarp, too: then acknowledgements cost less, and segments are longer.
    /// Known at the latest when its first message was received; with [`Config::private`](crate::Config::private) off, never.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # client.qp.post_receive(1, &[])?;
    /// # server.qp.post_send(ironwarp::WorkRequest::send(1, &[]))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.expect("a message comes");
    /// assert!(client.qp.is_peer_ironwarp());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_peer_ironwarp(&self) -> bool {
        self.inner.qp().recognised()
    }

    /// The lane that serves its connection while the program does not: see [`Steering`](crate::Steering). `None` while there is no
    /// connection.
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

    /// Number of receives that its peer has used from [shared receive queues](crate::SharedReceiveQueue). Compare the queue
    /// pairs of a shared queue to find a peer that uses more than its share (RFC 5042 §6.4.3.1).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// assert_eq!(server.qp.shared_receives(), 0, "it has a receive queue of its own");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_receives(&self) -> u64 {
        self.inner.qp().shared_receives()
    }

    // --- Connecting ---

    /// Connects to a listener, and waits until that is done; [`Config::startup`](crate::Config::startup) bounds it.
    ///
    /// The error is shared with the queue pair and its events. If it is a timeout, the queue pair is of no use any more.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let established = qp.connect(addr, &ConnectOptions::new().timeout(Duration::from_secs(5)))?;
    /// assert_eq!(established.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(
        &self,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.connect_start(to, options)?;
        self.wait_connected(options.timeout.unwrap_or_else(|| self.patience()))
    }

    /// Begins to connect to a listener, and does not wait. [`wait_connected`](Self::wait_connected) and the
    /// [events](QueuePairBuilder::events) tell how it went.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// qp.connect_start(addr, &ConnectOptions::new())?;
    /// // Here other connections can be begun. A queue pair is for one.
    /// assert!(qp.connect_start(addr, &ConnectOptions::new()).is_err());
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_start(&self, to: SocketAddr, options: &ConnectOptions) -> Result<(), ConnectError> {
        self.begin()?;
        self.shared.engine.connect(&self.inner, to, &options.inner)
    }

    /// Begins to connect to a queue pair of which the number and a GID are known, and which is told the same of this one. No
    /// listener, and no order: either end may be the first. [`wait_connected`](Self::wait_connected) and the
    /// [events](QueuePairBuilder::events) tell how it went.
    ///
    /// The end with the smaller GID and number dials; the other one listens at its GID. Only that peer gets the connection.
    /// Requests can be posted at once, and wait for it: for ever, or as [`set_retries`](Self::set_retries) says.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::{Access, Adapter, BringUpOptions, Buffer, Remote, WorkRequest};
    /// use std::time::Duration;
    ///
    /// let soon = Duration::from_secs(5);
    /// let adapter = Adapter::new()?;
    /// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
    /// let (one, other) = (domain.queue_pair(&cq).by_hand().create()?, domain.queue_pair(&cq).by_hand().create()?);
    ///
    /// // What the two ends tell each other, in whatever way they like. If they are on different hosts, each takes one of its
    /// // own GIDs: `adapter.gids()?[0]`, and no option.
    /// let gid = "127.0.0.1".parse()?;
    /// let (of_one, of_other) = (Remote { gid, qpn: one.id() }, Remote { gid, qpn: other.id() });
    ///
    /// one.bring_up(of_other, &BringUpOptions::new().gid(gid))?;
    /// other.bring_up(of_one, &BringUpOptions::new().gid(gid))?;
    /// one.wait_connected(soon)?;
    /// other.wait_connected(soon)?;
    ///
    /// other.post_receive(1, &[region.slice(0, 4096)?])?;
    /// one.post_send(WorkRequest::send_inline(2, b"hello").unsignaled())?;
    /// assert_eq!(cq.wait(soon)?.expect("a message comes").success()?.byte_len, 5);
    /// assert_eq!(&region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn bring_up(&self, remote: Remote, options: &BringUpOptions) -> Result<(), BringUpError> {
        self.shared.engine.bring_up(&self.inner, remote, &options.inner)?;
        self.inner.modify(State::ReadyToSend)?;
        Ok(())
    }

    /// The queue pair that it was told to connect to.
    pub fn remote(&self) -> Option<Remote> {
        self.inner.remote()
    }

    /// Waits until it is connected, or will not be. [`ConnectError::TimedOut`] if `timeout` is over first.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectError, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let error = qp.wait_connected(Duration::ZERO).unwrap_err();
    /// assert!(matches!(*error, ConnectError::TimedOut));
    /// qp.connect_start(addr, &ConnectOptions::new())?;
    /// assert_eq!(qp.wait_connected(Duration::from_secs(5))?.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_connected(&self, timeout: Duration) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.inner.wait_connected(timeout)
    }

    /// Sends what was posted, then closes. Nothing is sent that is posted later: it is refused, or flushed once the peer has
    /// closed as well. The peer's messages are still received until then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::WorkRequest;
    /// # use std::time::Duration;
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(WorkRequest::send(1, &[]))?;
    /// client.qp.disconnect();
    /// // What was posted before still arrives.
    /// assert!(server.cq.wait(Duration::from_secs(5))?.expect("in time").success().is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect(&self) {
        self.inner.disconnect();
    }

    /// Waits until both directions of the connection are closed; false if `timeout` is over first.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use std::time::Duration;
    /// client.qp.disconnect();
    /// server.qp.disconnect();
    /// assert!(client.qp.wait_closed(Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "it may not have closed in time"]
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.inner.wait_closed(timeout)
    }

    // --- Posting ---

    /// Posts a request, and sends what can be sent at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    ///
    /// client.qp.post_send(WorkRequest::write_inline(7, b"hello", server.region.place(0)?))?;
    /// let completion = client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(completion.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_send(&self, request: impl Into<WorkRequest>) -> Result<(), PostError> {
        let request = request.into();
        match request.names {
            None => self.inner.qp().post_send([request.inner]),
            Some(_) => self.post_send_all(vec![request]),
        }
    }

    /// Posts requests, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    ///
    /// // One call for many requests; one completion tells of all, because they complete in order.
    /// let place = server.region.place(0)?;
    /// client.qp.post_send_all(vec![
    ///     WorkRequest::write_inline(1, b"hello", place).unsignaled(),
    ///     WorkRequest::read(2, &[client.region.slice(0, 5)?], place),
    /// ])?;
    /// assert_eq!(client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?.wr_id, 2);
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_send_all(&self, requests: Vec<WorkRequest>) -> Result<(), PostError> {
        if requests.iter().all(|request| request.names.is_none()) {
            return self.inner.qp().post_send(requests.into_iter().map(|request| request.inner));
        }
        self.post_named(requests, Qp::post_send)
    }

    /// Gives requests the tags that they name or give, and posts them.
    pub(crate) fn post_named(
        &self,
        requests: Vec<WorkRequest>,
        post: impl FnOnce(&Qp, Vec<InnerRequest>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if requests.iter().all(|request| request.names.is_none()) {
            return post(&self.inner.qp(), requests.into_iter().map(|request| request.inner).collect());
        }
        // Nobody else may give an entry a tag between the choice of the tag and the post.
        let _naming = lock(&self.shared.naming);
        let table = self.shared.device().table();
        let mut named = Vec::new();
        let by = self.id();
        let requests: Vec<_> =
            requests.into_iter().map(|request| name(table, request, by, &mut named)).collect();
        if let Some(given) = &self.given {
            named.iter().for_each(|(name, _)| given.add(name));
        }
        post(&self.inner.qp(), requests).inspect_err(|_| {
            for (name, before) in named.iter().rev() {
                name.restore(*before);
            }
        })
    }

    /// Posts a receive: the peer's next message that finds no earlier one goes to these parts of memory, in order. May be
    /// posted before the queue pair is connected.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    ///
    /// server.qp.post_receive(7, &[server.region.slice(0, 64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
    /// let received = server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!((received.wr_id, received.byte_len), (7, 5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.qp().post_receive(ReceiveRequest { id, buffers: list.into() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A queue pair is for one connection, and for one attempt at it: what it tells would be of either, otherwise.
    pub(crate) fn begin(&self) -> Result<(), AlreadyConnected> {
        if self.begun.swap(true, Ordering::Relaxed) { Err(AlreadyConnected) } else { Ok(()) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// How long a startup takes at most.
    pub(crate) fn patience(&self) -> Duration {
        self.shared.engine.config().startup + GRACE
    }
}

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

/// Fills in the tag that a request names or gives, and takes note of it.
fn name(
    table: &Table,
    mut request: WorkRequest,
    by: u32,
    named: &mut Vec<(Arc<Name>, Named)>,
) -> InnerRequest {
    if let Some(name) = request.names {
        let next = match &mut request.inner.operation {
            Operation::Bind { window, .. } => {
                *window = name.tag();
                name.next_binding()
            }
            Operation::Register { tag, .. } => {
                *tag = name.next_registration();
                *tag
            }
            operation => unreachable!("gives no tag: {operation:?}"),
        };
        let before = name.advance(table, next, by);
        named.push((name, before));
    }
    request.inner
}
