//! Datagram queue pairs.

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

/// A datagram queue pair: it can send to any other, and receive from any sender that knows its address, number and
/// Q_Key.
///
/// Messages have at most 4096 bytes. They are delivered whole, at most once, and in no particular order; a request
/// completes when its datagram is sent. Each received message is preceded by a 40-byte header that identifies its
/// sender ([`Grh`](crate::Grh)), and the receive needs room for both. A message that finds no receive is dropped.
///
/// Dropping it takes effect at once: pending requests are discarded, and completions that were not polled are removed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::{
///     Access, Adapter, AddressHandle, Buffer, DatagramRequest, Destination, Gid, Grh,
/// };
/// use std::time::Duration;
///
/// let soon = Duration::from_secs(5);
/// let adapter = Adapter::new()?;
/// let domain = adapter.protection_domain();
/// let (mine, yours) = (adapter.completion_queue(16)?, adapter.completion_queue(16)?);
/// let me = domain.datagram_queue_pair(&mine).qkey(7).create()?;
/// let you = domain.datagram_queue_pair(&yours).qkey(7).create()?;
///
/// // The receive has room for the GRH and the message.
/// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
/// you.post_receive(1, &[region.slice(0, 4136)?])?;
///
/// // The sender knows the receiver's address, number and Q_Key.
/// let address = me.address_handle("127.0.0.1".parse()?)?;
/// let to = Destination { address, qpn: you.qpn(), qkey: 7 };
/// me.post_send(DatagramRequest::send_inline(2, b"hello", to))?;
///
/// let received = yours.wait(soon)?.expect("the message arrives").success()?;
/// let mut bytes = vec![0; received.byte_len as usize];
/// region.read(0, &mut bytes)?;
/// let (grh, message) = Grh::split(&bytes).expect("starts with a GRH");
/// assert_eq!((grh.source, message), (Gid::from("127.0.0.1".parse::<std::net::IpAddr>()?), &b"hello"[..]));
///
/// // The GRH and the completion identify the sender.
/// let back = AddressHandle::from_completion(&grh, &received).expect("completion of a datagram");
/// let sender = received.sender.expect("a datagram has a sender");
/// assert_eq!(sender.qp, me.qpn());
/// you.post_send(DatagramRequest::send_inline(3, b"hi", Destination { address: back, qpn: sender.qp, qkey: 7 }))?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a queue pair destroys it"]
pub struct DatagramQueuePair {
    pub(super) inner: Arc<Inner>,
    /// Keeps the adapter alive.
    pub(super) _shared: Arc<Shared>,
}

impl DatagramQueuePair {
    /// Returns the queue pair number, which includes the UDP port: QPN = port · 256 + 255.
    pub fn qpn(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the addresses at which it receives.
    pub fn gids(&self) -> Vec<Gid> {
        self.inner.gids().collect()
    }

    /// Returns the Q_Key.
    pub fn qkey(&self) -> u32 {
        self.inner.qp().qkey()
    }

    /// Changes the Q_Key: only datagrams that carry it are received.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
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

    /// Returns the state.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// Changes the state. A failed request puts the queue pair into [`State::SendError`]: it still receives, and sends
    /// again after a transition to [`State::ReadyToSend`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::*;
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
    pub fn set_state(&self, to: State) -> Result<(), IllegalTransition> {
        self.inner.qp().modify(to)
    }

    /// Returns why the queue pair or its send queue is in an error state.
    pub fn error(&self) -> Option<Arc<QpError>> {
        self.inner.qp().error()
    }

    /// Returns how many datagrams were dropped, by reason.
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

    /// Returns an address handle for a destination, with the source address that the host's routes select. Fails if
    /// that is not one of the queue pair's addresses. Use [`AddressHandle::new`] for another source.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let address = qp.address_handle("127.0.0.1".parse()?)?;
    /// assert_eq!(address.source, "127.0.0.1".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn address_handle(&self, to: Gid) -> io::Result<AddressHandle> {
        Ok(AddressHandle::new(self.inner.source_for(to)?, to))
    }

    /// Posts a request, and sends it at once if possible.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send(DatagramRequest::send_inline(1, b"to myself", to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.expect("in time").success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_send(&self, request: DatagramRequest) -> Result<(), PostError> {
        self.post_send_all(vec![request])
    }

    /// Posts several requests, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send_all(vec![
    ///     DatagramRequest::send_inline(1, b"one", to).unsignaled(),
    ///     DatagramRequest::send_inline(2, b"two", to),
    /// ])?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.expect("in time").success()?.wr_id, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_send_all(&self, requests: Vec<DatagramRequest>) -> Result<(), PostError> {
        self.inner.qp().post_send(requests.into_iter().map(|request| request.inner).collect())
    }

    /// Posts a receive: the next message that finds no earlier receive is placed in these buffers, after the 40-byte
    /// GRH.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
    /// qp.post_receive(1, &[region.slice(0, 4136)?])?;
    /// qp.post_send(DatagramRequest::send_inline(2, b"to myself", to).unsignaled())?;
    /// let received = cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(received.byte_len, 40 + 9);
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.qp().post_receive(ReceiveRequest { id, buffers: list.into() })
    }
}

impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePair")
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
