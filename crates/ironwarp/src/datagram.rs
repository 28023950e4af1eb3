//! Connectionless queue pairs: each request names its destination, and each message is one datagram (requirement P2).
//! Before this: a protection domain and completion queues; after: completions.

use crate::adapter::Shared;
use crate::completion_queue::CompletionQueue;
use crate::error::CreateError;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{DEPTH, SGES};
use crate::shared_receive_queue::SharedReceiveQueue;
use ironwarp_engine::{DatagramQueuePair as Inner, DatagramQueuePairAttributes};
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest as InnerRequest, Destination, Drops};
use ironwarp_rnic::error::{Fault, PostError};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::{IllegalTransition, State};
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Sges, WorkRequest};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// What a connectionless queue pair is to be like.
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
    domain: Domain,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    send_depth: usize,
    receive_depth: usize,
    srq: Option<SharedReceiveQueue>,
    max_sges: usize,
    qkey: u32,
    addresses: Option<Vec<IpAddr>>,
    by_hand: bool,
}

impl DatagramQueuePairBuilder {
    pub(crate) fn new(of: &ProtectionDomain, cq: &CompletionQueue) -> Self {
        Self {
            shared: Arc::clone(&of.shared),
            domain: of.domain(),
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            send_depth: DEPTH,
            receive_depth: DEPTH,
            srq: None,
            max_sges: SGES,
            qkey: 0,
            addresses: None,
            by_hand: false,
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

    /// How many receives the receive queue holds; 128 if this is not called.
    pub fn receive_depth(mut self, requests: usize) -> Self {
        self.receive_depth = requests;
        self
    }

    /// Takes its receives from a shared receive queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.shared_receive_queue(16);
    /// let qp = domain.datagram_queue_pair(&cq).srq(&srq).create()?;
    /// assert!(qp.post_receive(1, &[]).is_err(), "it has no queue of its own");
    /// # Ok(())
    /// # }
    /// ```
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// How many elements the list of a request may have; 16 if this is not called.
    pub fn max_sges(mut self, elements: usize) -> Self {
        self.max_sges = elements;
        self
    }

    /// Its key: only datagrams that carry it are received. Zero if this is not called.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self
    }

    /// The addresses of this host at which it is reached, and from which it sends; all that it has now
    /// ([`Adapter::gids`](crate::Adapter::gids)) if this is not called. It has a socket at each.
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.addresses = Some(addresses.to_vec());
        self
    }

    /// It begins in [`State::Reset`], and the program [moves](DatagramQueuePair::modify) it on. Otherwise it is ready to send
    /// when it is created.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// use ironwarp::State;
    ///
    /// let qp = domain.datagram_queue_pair(&cq).by_hand().create()?;
    /// for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
    ///     qp.modify(state)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// The queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().datagram_queue_pair(&cq).create()?;
    /// println!("it is queue pair {} at {:?}", qp.qpn(), qp.gids());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(self) -> Result<DatagramQueuePair, CreateError> {
        let cqs = [&self.send_cq.shared, &self.receive_cq.shared];
        let srq = self.srq.as_ref().map(|srq| &srq.shared);
        if cqs.into_iter().chain(srq).any(|of| !Arc::ptr_eq(of, &self.shared)) {
            return Err(CreateError::OtherAdapter);
        }
        let udp = self.shared.engine.datagram_port(self.addresses.as_deref())?;
        let attributes = DatagramQueuePairAttributes {
            receive_cq: self.receive_cq.inner,
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            shared: self.srq.map(|srq| srq.inner),
            max_sges: self.max_sges,
            qkey: self.qkey,
            ..DatagramQueuePairAttributes::new(self.domain, &self.send_cq.inner)
        };
        let inner = self.shared.engine.create_datagram_qp(&attributes, udp)?;
        let qp = DatagramQueuePair { inner, _shared: self.shared };
        if !self.by_hand {
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                qp.modify(state).expect("a new queue pair takes these steps");
            }
        }
        Ok(qp)
    }
}

/// A connectionless queue pair: it sends to any other, and receives from any that knows its address, number and key.
///
/// A message is at most 4096 bytes. It arrives whole, once or not at all, in no particular order; a request completes when its
/// datagram was sent. In front of each message that is received are 40 bytes that tell where it came from
/// ([`Grh`](crate::Grh)): a receive needs room for both. A message for which no receive is posted is lost.
///
/// Dropped, it is gone at once: requests that are not done are forgotten, and completions that were not polled are taken back.
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
/// // The receiver has room for the GRH and the message.
/// let region = domain.register(Buffer::new(4136)?, Access::LOCAL_WRITE)?;
/// you.post_receive(1, &[region.slice(0, 4136)?])?;
///
/// // The sender knows where the receiver is: its address, its number, its key.
/// let address = me.address_handle("127.0.0.1".parse()?)?;
/// let to = Destination { address, qpn: you.qpn(), qkey: 7 };
/// me.post_send(DatagramRequest::send_inline(2, b"hello", to))?;
///
/// let received = yours.wait(soon)?.expect("it is there").success()?;
/// let mut bytes = vec![0; received.byte_len as usize];
/// region.read(0, &mut bytes)?;
/// let (grh, message) = Grh::split(&bytes).expect("a GRH is in front");
/// assert_eq!((grh.source, message), (Gid::from("127.0.0.1".parse::<std::net::IpAddr>()?), &b"hello"[..]));
///
/// // What it needs to answer is in the GRH and in the completion.
/// let back = AddressHandle::from_completion(&grh, &received).expect("a datagram came");
/// let sender = received.sender.expect("a datagram has a sender");
/// assert_eq!(sender.qp, me.qpn());
/// you.post_send(DatagramRequest::send_inline(3, b"hi", Destination { address: back, qpn: sender.qp, qkey: 7 }))?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is gone"]
pub struct DatagramQueuePair {
    inner: Arc<Inner>,
    /// Keeps the adapter alive.
    _shared: Arc<Shared>,
}

impl DatagramQueuePair {
    /// Its number, by which others name it. The UDP port is in it: number = port · 256 + 255.
    pub fn qpn(&self) -> u32 {
        self.inner.id()
    }

    /// The addresses at which it is reached.
    pub fn gids(&self) -> Vec<Gid> {
        self.inner.gids().collect()
    }

    /// Its key.
    pub fn qkey(&self) -> u32 {
        self.inner.qp().qkey()
    }

    /// From now on only datagrams that carry this key are received.
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

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// Moves it to another state. A request that failed leaves it in [`State::SendError`]: receives go on, and it sends again
    /// when it is moved to [`State::ReadyToSend`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::*;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let qp = domain.datagram_queue_pair(&cq).create()?;
    /// let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send(DatagramRequest::send_inline(1, &[0; 5000], to))?;
    /// let completion = cq.poll_one()?.expect("it cannot be sent");
    /// assert_eq!(completion.status, Status::LocalLength);
    /// assert_eq!(qp.state(), State::SendError);
    /// qp.modify(State::ReadyToSend)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        self.inner.qp().modify(to)
    }

    /// Why it, or its send queue, is in error.
    pub fn fault(&self) -> Option<Arc<Fault>> {
        self.inner.qp().fault()
    }

    /// What was dropped so far, and why.
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
    pub fn drops(&self) -> Drops {
        self.inner.qp().drops()
    }

    /// The way to another address, from the address of its own that the host's routes choose. For another source use
    /// [`AddressHandle::new`]. Fails if the routes choose an address at which this queue pair is not.
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

    /// Posts a request, and sends it if it can be sent at once.
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

    /// Posts requests, all or none, in this order.
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

    /// Posts a receive: the next message that finds no earlier one goes to these parts of memory, in order, behind 40 bytes
    /// of GRH.
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

/// A message, and where it goes. `id` comes back in its completion.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::*;
/// # let adapter = Adapter::new()?;
/// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// # let qp = domain.datagram_queue_pair(&cq).create()?;
/// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
/// let region = domain.register(Buffer::copy_of(b"one, two")?, Access::LOCAL_READ)?;
/// let list = [region.slice(5, 3)?, region.slice(0, 3)?];
/// qp.post_send_all(vec![
///     DatagramRequest::send(1, &list, to).immediate(42).unsignaled(),
///     DatagramRequest::send_inline(2, b"wake up", to).solicited(),
/// ])?;
/// assert_eq!(cq.poll_one()?.expect("both were sent").wr_id, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing before it is posted"]
pub struct DatagramRequest {
    inner: InnerRequest,
}

impl DatagramRequest {
    /// A message from registered memory, of up to 4096 bytes. An empty list sends an empty message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// let region = domain.register(Buffer::copy_of(b"hello")?, Access::LOCAL_READ)?;
    /// qp.post_send(DatagramRequest::send(1, &[region.slice(0, 5)?], to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.expect("in time").success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(id: u64, list: &[Sge], to: Destination) -> Self {
        Self::new(id, Data::Memory(Sges::from(list)), to)
    }

    /// A message of bytes that are copied now (requirement X5).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Adapter, Buffer, DatagramRequest, Destination};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let qp = domain.datagram_queue_pair(&cq).create()?;
    /// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    /// qp.post_send(DatagramRequest::send_inline(1, b"hello", to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.expect("in time").success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_inline(id: u64, bytes: &[u8], to: Destination) -> Self {
        Self::new(id, Data::Inline(bytes.into()), to)
    }

    fn new(id: u64, data: Data, destination: Destination) -> Self {
        let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
        Self { inner: InnerRequest { request, destination } }
    }

    /// Data that the receiver finds in its completion.
    pub fn immediate(mut self, data: u32) -> Self {
        self.inner.request.immediate = Some(data);
        self
    }

    /// Wakes the receiver's program, if it waits for solicited messages (requirement N8).
    pub fn solicited(mut self) -> Self {
        self.inner.request.solicited = true;
        self
    }

    /// Success is not reported, only failure.
    pub fn unsignaled(mut self) -> Self {
        self.inner.request.signaled = false;
        self
    }
}

impl fmt::Debug for DatagramQueuePairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePairBuilder")
            .field("send_cq", &self.send_cq)
            .field("receive_cq", &self.receive_cq)
            .field("send_depth", &self.send_depth)
            .field("receive_depth", &self.receive_depth)
            .finish_non_exhaustive()
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

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InnerRequest { request, destination } = &self.inner;
        f.debug_struct("DatagramRequest")
            .field("id", &request.id)
            .field("len", &request.data.len())
            .field("destination", destination)
            .finish_non_exhaustive()
    }
}
