//! The builder that creates datagram queue pairs.

use super::queue_pair::DatagramQueuePair;
use crate::completion::CompletionQueue;
use crate::protection_domain::ProtectionDomain;
use crate::queue::CreateError;
use crate::queue::SharedReceiveQueue;
use crate::queue::{DEFAULT_DEPTH, DEFAULT_MAX_SGES};
use crate::shared::Shared;
use ironwarp_rnic::datagram::DatagramAttributes;
use ironwarp_rnic::qp::{Completes, Retries, State};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Builds a datagram queue pair: sets its attributes, then creates it. [`ProtectionDomain::datagram_queue_pair`]
/// returns a builder.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// let cq = adapter.completion_queue(64)?;
/// let qp = adapter
///     .protection_domain()
///     .datagram_queue_pair(&cq)
///     .receive_cq(&adapter.completion_queue(64)?)
///     .addresses(&["127.0.0.1".parse()?])
///     .send_depth(16)
///     .receive_depth(16)
///     .max_sges(4)
///     .qkey(0x1ee7)
///     .create()?;
/// assert_eq!(qp.gids(), ["127.0.0.1".parse()?]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is created until `create` is called"]
pub struct DatagramQueuePairBuilder {
    shared: Arc<Shared>,
    attributes: DatagramAttributes<CompletionQueue>,
    /// Whether the shared receive queue belongs to another adapter.
    foreign_srq: bool,
    /// The local addresses; `None` selects all addresses of the device.
    addresses: Option<Vec<IpAddr>>,
    /// Whether the queue pair stays in [`State::Reset`].
    manual: bool,
}

impl DatagramQueuePairBuilder {
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

    /// Sets the depth of the receive queue, in receives. Defaults to 128.
    pub fn receive_depth(mut self, requests: usize) -> Self {
        self.attributes.receive_depth = requests;
        self
    }

    /// Uses a shared receive queue; the queue pair then has no receive queue of its own.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.shared_receive_queue(16);
    /// let qp = domain.datagram_queue_pair(&cq).srq(&srq).create()?;
    /// assert!(qp.post_receive(1, &[]).is_err(), "receives are posted to the shared queue");
    /// # Ok(())
    /// # }
    /// ```
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.attributes.shared = Some(Arc::clone(&srq.inner));
        self.foreign_srq = !Arc::ptr_eq(&srq.shared, &self.shared);
        self
    }

    /// Sets the maximum number of scatter/gather elements per request. Defaults to 16.
    pub fn max_sges(mut self, elements: usize) -> Self {
        self.attributes.max_sges = elements;
        self
    }

    /// Sets the Q_Key. The queue pair receives only datagrams that carry this Q_Key. Defaults to 0.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.attributes.qkey = qkey;
        self
    }

    /// Sets when requests complete: when sent, or when the receiver has acknowledged the message (requirement P2). Defaults
    /// to [`Completes::WhenSent`]. A queue pair exchanges messages only with queue pairs that have the same setting.
    ///
    /// With [`Completes::WhenAcknowledged`], a message that gets no answer is [sent again](Self::retries), and is placed
    /// once. Its request completes when it is in the memory of a receive. Requests to different queue pairs complete in any
    /// order, and if one fails, the others go on:
    ///
    /// | status | meaning |
    /// |---|---|
    /// | [`RetryExceeded`](crate::completion::Status::RetryExceeded) | no answer. The message may have been delivered. |
    /// | [`RetryExceeded`](crate::completion::Status::RetryExceeded), with [`QpError::SessionLost`](crate::queue::QpError::SessionLost) | the receiver was started again, or has forgotten this sender because more than 1024 others were active since. The message may have been delivered. |
    /// | [`RnrRetryExceeded`](crate::completion::Status::RnrRetryExceeded) | the receiver posted no receive in time |
    /// | [`RemoteOperation`](crate::completion::Status::RemoteOperation) | the receive was too short, or failed otherwise |
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// use ironwarp::queue::Completes;
    ///
    /// # let adapter = Adapter::new()?;
    /// # let (sent, received, domain) = (adapter.completion_queue(16)?, adapter.completion_queue(16)?, adapter.protection_domain());
    /// let client = domain.datagram_queue_pair(&sent).completes(Completes::WhenAcknowledged).create()?;
    /// let server = domain.datagram_queue_pair(&received).completes(Completes::WhenAcknowledged).create()?;
    /// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
    /// server.post_receive(1, &[region.slice(..4136)?])?;
    ///
    /// let to = Destination { address: client.address_handle("127.0.0.1".parse()?)?, qpn: server.qpn(), qkey: 0 };
    /// client.post_send(DatagramRequest::send_inline(2, b"registered mail", to))?;
    /// sent.wait(Duration::from_secs(5))?.success()?; // it is in the memory of the receive
    /// # let mut bytes = [0; 15];
    /// # region.read(40, &mut bytes)?;
    /// # assert_eq!(&bytes, b"registered mail");
    /// # Ok(())
    /// # }
    /// ```
    pub fn completes(mut self, when: Completes) -> Self {
        self.attributes.completes = when;
        self
    }

    /// Sets how often a message is sent again if it is [acknowledged](Self::completes), and after which time. The time
    /// doubles with each attempt, up to one second. `rnr_timer` is the time between attempts if the receiver has posted no
    /// receive. Defaults to [`DEFAULT_RETRIES`](crate::datagram::DEFAULT_RETRIES): messages without an answer fail after 3
    /// seconds, and those without a receive after 1.3 seconds.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::queue::{Completes, Retries};
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// // At most three attempts, 67 and 134 ms apart. Waits forever for a receive.
    /// let retries = Retries::default().retry_count(2).timeout(14).rnr_retry(7).rnr_timer(12);
    /// let builder = domain.datagram_queue_pair(&cq).completes(Completes::WhenAcknowledged);
    /// let qp = builder.retries(retries).create()?;
    /// # let _ = qp;
    /// # Ok(())
    /// # }
    /// ```
    pub fn retries(mut self, retries: Retries) -> Self {
        self.attributes.retries = retries;
        self
    }

    /// Sets the local addresses to receive at and to send from. The queue pair has a socket at each of them. Defaults
    /// to all addresses that the adapter's device has when the queue pair is created
    /// ([`Adapter::gids`](crate::Adapter::gids)).
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.addresses = Some(addresses.to_vec());
        self
    }

    /// Makes [`create`](Self::create) leave the queue pair in [`State::Reset`] instead of [`State::ReadyToSend`]. The
    /// program then [changes the state](DatagramQueuePair::set_state) itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::queue::State;
    ///
    /// let qp = domain.datagram_queue_pair(&cq).manual().create()?;
    /// for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
    ///     qp.set_state(state)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Creates the queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().datagram_queue_pair(&cq).create()?;
    /// println!("queue pair {} at {:?}", qp.qpn(), qp.gids());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a completion queue or the shared receive queue belongs to another adapter, if a local address does not
    /// exist or belongs to another logical device, or if no UDP port ([`Config::ports`](crate::Config::ports)) or other
    /// resource is available.
    pub fn create(self) -> Result<DatagramQueuePair, CreateError> {
        let Self { shared, attributes, foreign_srq, addresses, manual } = self;
        let foreign_cq = |cq: &CompletionQueue| !Arc::ptr_eq(&cq.shared, &shared);
        if foreign_srq || foreign_cq(&attributes.send_cq) || foreign_cq(&attributes.receive_cq) {
            return Err(CreateError::OtherAdapter);
        }
        let udp = shared.engine.bind_datagram_port(addresses.as_deref())?;
        let inner = shared.engine.create_datagram_qp(&attributes.map_cqs(|cq| cq.inner), udp)?;
        let qp = DatagramQueuePair { inner, shared };
        if !manual {
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                qp.set_state(state).expect("legal transitions of a new queue pair");
            }
        }
        Ok(qp)
    }
}

// Not derived: prints the main attributes, without the state of the adapter and of shared queues.
impl fmt::Debug for DatagramQueuePairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePairBuilder")
            .field("send_cq", &self.attributes.send_cq)
            .field("receive_cq", &self.attributes.receive_cq)
            .field("send_depth", &self.attributes.send_depth)
            .field("receive_depth", &self.attributes.receive_depth)
            .finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Returns a builder for a datagram queue pair of this protection domain. Requests and receives complete on `cq`,
    /// unless the builder sets another completion queue for receives.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().datagram_queue_pair(&cq).qkey(7).create()?;
    /// assert_eq!(qp.qkey(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn datagram_queue_pair(&self, cq: &CompletionQueue) -> DatagramQueuePairBuilder {
        let attributes = DatagramAttributes {
            send_depth: DEFAULT_DEPTH,
            receive_depth: DEFAULT_DEPTH,
            max_sges: DEFAULT_MAX_SGES,
            ..DatagramAttributes::new(self.domain(), cq)
        };
        let shared = Arc::clone(&self.shared);
        DatagramQueuePairBuilder { shared, attributes, foreign_srq: false, addresses: None, manual: false }
    }
}
