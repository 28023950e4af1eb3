//! The datagram queue pair: its state, its addresses, and posting.

use super::info::DatagramQueuePairInfo;
use super::request::DatagramRequest;
use crate::shared::Shared;
use ironwarp_engine::DatagramQueuePair as Inner;
use ironwarp_rnic::datagram::{AddressHandle, DropCounts};
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::qp::{IllegalTransition, State};
use ironwarp_rnic::queue::{ReceiveRequest, Sge};
use std::fmt;
use std::io;
use std::sync::Arc;

/// A datagram queue pair: can send to any other datagram queue pair, and receive from any sender that knows its
/// address, number and Q_Key.
///
/// Messages have at most 4096 bytes. They are delivered whole or not at all, and in no particular order; a request
/// completes when its datagram is sent, unless the [builder](crate::datagram::DatagramQueuePairBuilder::completes) was told
/// otherwise. Each received message is preceded by a 40-byte header that identifies its
/// sender ([`Grh`](crate::datagram::Grh)), and the receive needs room for the header and the message. A message is lost
/// if no receive is posted for it.
///
/// Dropping a datagram queue pair takes effect at once: pending requests are discarded, and its completions are removed
/// from the completion queues.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::connection::Gid;
/// use ironwarp::datagram::{AddressHandle, DatagramRequest, Destination, Grh};
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(5);
/// let adapter = Adapter::new()?;
/// let domain = adapter.protection_domain();
/// let (sent, received) = (adapter.completion_queue(16)?, adapter.completion_queue(16)?);
/// let client = domain.datagram_queue_pair(&sent).qkey(7).create()?;
/// let server = domain.datagram_queue_pair(&received).qkey(7).create()?;
///
/// // The receive has room for the GRH and the message.
/// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
/// server.post_receive(1, &[region.slice(..4136)?])?;
///
/// // The client knows the server's address, number and Q_Key.
/// let address = client.address_handle("127.0.0.1".parse()?)?;
/// let to = Destination { address, qpn: server.qpn(), qkey: 7 };
/// client.post_send(DatagramRequest::send_inline(2, b"hello", to))?;
///
/// let completion = received.wait(timeout)?.success()?;
/// let mut bytes = vec![0; completion.byte_len as usize];
/// region.read(0, &mut bytes)?;
/// let (grh, message) = Grh::split(&bytes).expect("starts with a GRH");
/// assert_eq!((grh.source, message), (Gid::from("127.0.0.1".parse::<std::net::IpAddr>()?), &b"hello"[..]));
///
/// // The GRH and the completion identify the sender.
/// let address = AddressHandle::from_completion(&grh, &completion).expect("completion of a datagram");
/// let sender = completion.sender.expect("a datagram has a sender");
/// assert_eq!(sender.qp, client.qpn());
/// let to = Destination { address, qpn: sender.qp, qkey: 7 };
/// server.post_send(DatagramRequest::send_inline(3, b"hi", to))?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a queue pair destroys it"]
pub struct DatagramQueuePair {
    pub(super) inner: Arc<Inner>,
    /// Keeps the adapter alive.
    pub(super) shared: Arc<Shared>,
}

impl DatagramQueuePair {
    /// Returns the queue pair number. It includes the UDP port of the queue pair: QPN = port · 256 + 255.
    pub fn qpn(&self) -> u32 {
        self.inner.id()
    }

    /// Returns attributes and state of the queue pair (requirement N10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.datagram_queue_pair(&cq).addresses(&["127.0.0.1".parse()?]).create()?;
    /// let info = qp.query();
    /// assert_eq!((info.domain, info.receive_cq), (domain.id(), cq.id()));
    /// assert_eq!(info.local[0].ip().to_string(), "127.0.0.1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn query(&self) -> DatagramQueuePairInfo {
        DatagramQueuePairInfo::new(&self.inner)
    }

    /// Returns the local addresses at which the queue pair receives, as GIDs.
    pub fn gids(&self) -> Vec<Gid> {
        self.inner.gids().collect()
    }

    /// Returns the number of the lane that serves the sockets while the program does not (see
    /// [`Steering`](crate::steering::Steering)).
    pub fn lane(&self) -> usize {
        self.inner.lane()
    }

    /// Returns the Q_Key that received datagrams must carry.
    pub fn qkey(&self) -> u32 {
        self.inner.qp().qkey()
    }

    /// Changes the Q_Key. The queue pair receives only datagrams that carry this Q_Key.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// qp.set_qkey(7);
    /// assert_eq!(qp.qkey(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_qkey(&self, qkey: u32) {
        self.inner.qp().set_qkey(qkey);
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// Changes the state. A failed request moves the queue pair to [`State::SendError`]. In that state the queue pair
    /// still receives, but sends again only after a transition to [`State::ReadyToSend`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use ironwarp::queue::State;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send(DatagramRequest::send_inline(1, &[0; 5000], to))?;
    /// let completion = cq.poll_one()?.expect("the request fails");
    /// assert_eq!(completion.status, Status::LocalLength);
    /// assert_eq!(qp.state(), State::SendError);
    /// qp.set_state(State::ReadyToSend)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the verbs do not allow the transition.
    pub fn set_state(&self, to: State) -> Result<(), IllegalTransition> {
        self.inner.qp().modify(to)
    }

    /// Returns why the queue pair or its send queue is in an error state, or `None` if neither is.
    pub fn error(&self) -> Option<QpError> {
        self.inner.qp().error().map(Arc::unwrap_or_clone)
    }

    /// Returns how many received datagrams were dropped, by reason.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.datagram_queue_pair(&cq).create()?;
    /// assert_eq!(qp.drops().no_receive, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn drops(&self) -> DropCounts {
        self.inner.qp().drops()
    }

    /// Returns an address handle for the destination `to`, with the source address that the host's routes select. If that
    /// belongs to another [logical device](crate::device), the source is the first address of the queue pair that has the
    /// same IP version. Use [`AddressHandle::new`] for another source address.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let address = qp.address_handle("127.0.0.1".parse()?)?;
    /// assert_eq!(address.source, "127.0.0.1".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the host has no route to the destination, or if the queue pair does not have the source address.
    pub fn address_handle(&self, to: Gid) -> io::Result<AddressHandle> {
        let source = self.inner.source_for(to).or_else(|error| {
            let is_restricted = !self.shared.engine.logical().has_all_addresses();
            let other_device = is_restricted && error.kind() == io::ErrorKind::AddrNotAvailable;
            let is_ipv4 = |gid: Gid| gid.ip().map(|ip| ip.is_ipv4());
            let own = self.inner.gids().find(|own| is_ipv4(*own) == is_ipv4(to));
            own.filter(|_| other_device).ok_or(error)
        })?;
        Ok(AddressHandle::new(source, to))
    }

    /// Posts a request, and sends its datagram at once if possible. The completion carries the `id` of the request.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send(DatagramRequest::send_inline(1, b"to myself", to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the send queue is full, if the list of the request has too many elements, if the destination is
    /// invalid, or if the state of the queue pair does not allow requests.
    pub fn post_send(&self, request: DatagramRequest) -> Result<(), PostError> {
        self.post_send_all([request])
    }

    /// Posts several requests, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send_all([
    ///     DatagramRequest::send_inline(1, b"one", to).unsignaled(),
    ///     DatagramRequest::send_inline(2, b"two", to),
    /// ])?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.success()?.wr_id, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`post_send`](Self::post_send), if any of the requests cannot be posted.
    pub fn post_send_all(
        &self,
        requests: impl IntoIterator<Item = DatagramRequest>,
    ) -> Result<(), PostError> {
        self.inner.qp().post_send(requests.into_iter().map(|request| request.inner).collect())
    }

    /// Posts a receive into the buffers of `list`. Receives are consumed in the order of posting, each by one message,
    /// which is placed after the 40-byte GRH. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::datagram::{DatagramRequest, Destination};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
    /// qp.post_receive(1, &[region.slice(..4136)?])?;
    /// qp.post_send(DatagramRequest::send_inline(2, b"to myself", to).unsignaled())?;
    /// let received = cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(received.byte_len, 40 + 9);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue pair uses a shared receive queue, if its receive queue is full, if the list has too many
    /// elements, or if the state of the queue pair does not allow receives.
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.qp().post_receive(ReceiveRequest { id, buffers: list.into() })
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePair")
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
