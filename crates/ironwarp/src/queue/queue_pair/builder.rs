//! The builder that creates queue pairs.

use super::pair::QueuePair;
use crate::completion::CompletionQueue;
use crate::memory::PendingTags;
use crate::protection_domain::ProtectionDomain;
use crate::queue::defaults::{DEFAULT_DEPTH, DEFAULT_MAX_SGES};
use crate::queue::error::CreateError;
use crate::queue::shared_receive_queue::{SharedReceiveQueue, XrcDomain};
use crate::queue::shared_send_queue::SharedSendQueue;
use crate::shared::Shared;
use ironwarp_engine::{ConnectionEvent, EventChannel, EventSink, QueuePairOptions};
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Attributes, Completes, Receives, RegistrationFailure, State};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Builds a queue pair: sets its attributes, then creates it. [`ProtectionDomain::queue_pair`] returns a builder.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// use ironwarp::queue::{Completes, State};
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
#[must_use = "nothing is created until `create` is called"]
pub struct QueuePairBuilder {
    shared: Arc<Shared>,
    attributes: Attributes<CompletionQueue>,
    /// Whether a shared receive queue or the XRC domain belongs to another adapter or function.
    foreign_srq: bool,
    /// Whether the shared send queue belongs to another protection domain.
    foreign_ssq: bool,
    /// The channel for connection events, if the program wants them.
    events: Option<Arc<EventChannel<ConnectionEvent>>>,
}

impl QueuePairBuilder {
    /// Sets the completion queue for receives. Defaults to the send completion queue.
    pub fn receive_cq(mut self, cq: &CompletionQueue) -> Self {
        self.attributes.receive_cq = cq.clone();
        self
    }

    /// Sets the depth of the send queue, in requests. Defaults to 128.
    pub fn send_depth(mut self, requests: usize) -> Self {
        self.attributes.send_depth = requests;
        self
    }

    /// Uses a shared send queue; the queue pair then has no send queue of its own. Requests complete on the completion
    /// queue of the shared send queue. Both must belong to the same protection domain.
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
        self.attributes.send_cq = ssq.cq.clone();
        self.attributes.shared_send = Some(Arc::clone(&ssq.inner));
        self.foreign_ssq = ssq.domain != self.attributes.domain;
        self
    }

    /// Sets the depth of the receive queue, in receives. Defaults to 128.
    pub fn receive_depth(mut self, requests: usize) -> Self {
        self.attributes.receives = Receives::Own(requests);
        self
    }

    /// Uses a shared receive queue; the queue pair then has no receive queue of its own.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.shared_receive_queue(16);
    /// let qp = domain.queue_pair(&cq).srq(&srq).create()?;
    /// assert!(qp.post_receive(1, &[]).is_err(), "receives are posted to the shared queue");
    /// # Ok(())
    /// # }
    /// ```
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.attributes.receives = Receives::Shared(Arc::clone(&srq.inner));
        self.foreign_srq |= !Arc::ptr_eq(&srq.shared, &self.shared);
        self
    }

    /// Uses the shared receive queues of an XRC domain: each message names the queue whose receive it consumes. The
    /// queue pair then has no receive queue of its own.
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
        self.attributes.receives = Receives::Named(Arc::clone(&xrc.inner));
        self.foreign_srq |= !xrc.belongs_to(&self.shared);
        self
    }

    /// Restricts the remote operations this queue pair accepts. Defaults to reads, writes and atomics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::memory::Access;
    ///
    /// let qp = domain.queue_pair(&cq).access(Access::REMOTE_READ).create()?;
    /// assert_eq!(qp.query().rights, Access::REMOTE_READ);
    /// # Ok(())
    /// # }
    /// ```
    pub fn access(mut self, access: Rights) -> Self {
        self.attributes.rights = access;
        self
    }

    /// Sets the maximum number of scatter/gather elements per request. Defaults to 16.
    pub fn max_sges(mut self, elements: usize) -> Self {
        self.attributes.max_sges = elements;
        self
    }

    /// Sets when Sends and Writes complete (requirement P2). Defaults to [`Completes::WhenSent`], as iWARP defines.
    pub fn completes(mut self, completes: Completes) -> Self {
        self.attributes.completes = completes;
        self
    }

    /// Sets whether work requests may register memory, alone or together with a Send (requirement M17). Defaults to
    /// true. If false, posting such a request fails with
    /// [`PostError::RegistrationDisabled`](crate::queue::PostError::RegistrationDisabled), and nothing changes. Binding
    /// windows and invalidating are always allowed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.queue_pair(&cq).registration_by_request(false).create()?;
    /// assert!(!qp.query().registration_by_request);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registration_by_request(mut self, enabled: bool) -> Self {
        self.attributes.registration_by_request = enabled;
        self
    }

    /// Sets what happens if a [registration by work request](crate::queue::WorkRequest::register) fails (requirement
    /// M7). Defaults to [`RegistrationFailure::Anticipatory`]: the connection ends.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::queue::RegistrationFailure::Reactive;
    ///
    /// // The connection survives a failed registration, which can then be retried.
    /// let qp = domain.queue_pair(&cq).registration_failure(Reactive).create()?;
    /// assert_eq!(qp.query().registration_failure, Reactive);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registration_failure(mut self, failure: RegistrationFailure) -> Self {
        self.attributes.registration_failure = failure;
        self
    }

    /// Makes the queue pair one that is connected [manually](QueuePair::bring_up), by GID and QPN, without the
    /// connection manager. Its [number](QueuePair::id) includes a TCP port, so that a peer that knows the number and a
    /// [GID](crate::Adapter::gids) of this host can connect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.queue_pair(&cq).manual().create()?;
    /// println!("send to the peer: QPN {}, GID {}", qp.id(), adapter.gids()?[0].gid);
    /// # Ok(())
    /// # }
    /// ```
    pub fn manual(mut self) -> Self {
        self.attributes.manual = true;
        self
    }

    /// Sets the channel that receives the queue pair's connection events. By default there are none.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::connection::{ConnectOptions, ConnectionEventKind, EventChannel};
    /// use std::time::Duration;
    ///
    /// let events = EventChannel::new()?;
    /// let qp = domain.queue_pair(&cq).events(&events).create()?;
    /// # let unused_port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    /// qp.start_connect(unused_port, &ConnectOptions::new())?;
    ///
    /// let event = events.wait(Some(Duration::from_secs(5))).expect("an event arrives");
    /// assert_eq!(event.qp, qp.id());
    /// assert!(matches!(event.kind, ConnectionEventKind::Failed(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(mut self, channel: &Arc<EventChannel<ConnectionEvent>>) -> Self {
        self.events = Some(Arc::clone(channel));
        self
    }

    /// Creates the queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::Adapter;
    /// use ironwarp::queue::CreateError;
    ///
    /// let (one, another) = (Adapter::new()?, Adapter::new()?);
    /// let (cq, foreign) = (one.completion_queue(64)?, another.completion_queue(64)?);
    /// let domain = one.protection_domain();
    /// assert!(domain.queue_pair(&cq).create().is_ok());
    /// assert!(matches!(domain.queue_pair(&foreign).create(), Err(CreateError::OtherAdapter)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a completion queue or the shared receive queue belongs to another adapter, if the shared send queue
    /// belongs to another protection domain, or if no queue pair number, port or other resource is available.
    pub fn create(self) -> Result<QueuePair, CreateError> {
        self.create_with(|channel| channel.map(|channel| channel as _))
    }

    /// Returns the completion queues for sends and for receives.
    #[cfg(feature = "tokio")]
    pub(crate) fn completion_queues(&self) -> [&CompletionQueue; 2] {
        [&self.attributes.send_cq, &self.attributes.receive_cq]
    }

    /// Creates the queue pair. Its connection events go to what `sink` returns for the program's channel, if it has
    /// one.
    pub(crate) fn create_with(
        self,
        sink: impl FnOnce(
            Option<Arc<EventChannel<ConnectionEvent>>>,
        ) -> Option<Arc<dyn EventSink<ConnectionEvent>>>,
    ) -> Result<QueuePair, CreateError> {
        let Self { shared, mut attributes, foreign_srq, foreign_ssq, events } = self;
        let foreign_cq = |cq: &CompletionQueue| !Arc::ptr_eq(&cq.shared, &shared);
        if foreign_srq || foreign_cq(&attributes.send_cq) || foreign_cq(&attributes.receive_cq) {
            return Err(CreateError::OtherAdapter);
        }
        if foreign_ssq {
            return Err(CreateError::OtherDomain);
        }
        if attributes.shared_send.is_some() {
            attributes.send_depth = 0;
        }
        let Attributes { manual, registration_failure, .. } = attributes;
        let options = QueuePairOptions { events: sink(events), reachable: false };
        let inner = shared.engine.create_qp_with(attributes.map_cqs(|cq| cq.inner), options)?;
        if manual {
            // The program can post receives from Init on. `bring_up` makes the other transitions.
            inner.modify(State::Init).expect("legal transition of a new queue pair");
        }
        let pending =
            (registration_failure == RegistrationFailure::Reactive).then(Box::<PendingTags>::default);
        Ok(QueuePair { shared, inner, attempted: AtomicBool::new(manual), pending })
    }
}

// Not derived: prints the main attributes, without the state of the adapter and of shared queues.
impl fmt::Debug for QueuePairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairBuilder")
            .field("send_cq", &self.attributes.send_cq)
            .field("receive_cq", &self.attributes.receive_cq)
            .field("send_depth", &self.attributes.send_depth)
            .field("max_sges", &self.attributes.max_sges)
            .field("completes", &self.attributes.completes)
            .finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Returns a builder for a queue pair of this protection domain. Its requests complete on `cq`, unless the builder
    /// sets other completion queues.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().queue_pair(&cq).send_depth(16).create()?;
    /// # let _ = qp;
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue_pair(&self, cq: &CompletionQueue) -> QueuePairBuilder {
        let attributes = Attributes {
            send_depth: DEFAULT_DEPTH,
            receives: Receives::Own(DEFAULT_DEPTH),
            max_sges: DEFAULT_MAX_SGES,
            ..Attributes::new(self.domain(), cq)
        };
        QueuePairBuilder {
            shared: Arc::clone(&self.shared),
            attributes,
            foreign_srq: false,
            foreign_ssq: false,
            events: None,
        }
    }
}
