//! Send requests of datagram queue pairs.

use ironwarp_rnic::datagram::{DatagramRequest as Inner, Destination};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use std::fmt;

/// A send request of a datagram queue pair. Its completion carries the same `id`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::datagram::{DatagramRequest, Destination};
/// # use ironwarp::prelude::*;
/// # let adapter = Adapter::new()?;
/// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// # let qp = domain.datagram_queue_pair(&cq).create()?;
/// # let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
/// let region = domain.register(Buffer::copy_of(b"one, two")?, Access::LOCAL_READ)?;
/// let list = [region.slice(5..8)?, region.slice(..3)?];
/// qp.post_send_all([
///     DatagramRequest::send(1, &list, to).immediate(42).unsignaled(),
///     DatagramRequest::send_inline(2, b"wake up", to).solicited(),
/// ])?;
/// assert_eq!(cq.poll_one()?.expect("both were sent").wr_id, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is posted"]
pub struct DatagramRequest {
    pub(super) inner: Inner,
}

impl DatagramRequest {
    /// Creates a request that sends up to 4096 bytes of registered memory. An empty list sends an empty message.
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
    /// let region = domain.register(Buffer::copy_of(b"hello")?, Access::LOCAL_READ)?;
    /// qp.post_send(DatagramRequest::send(1, &[region.slice(..5)?], to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(id: u64, list: &[Sge], to: Destination) -> Self {
        Self::new(id, Data::Memory(Sges::from(list)), to)
    }

    /// Creates a request that sends `bytes`, up to 4096. They are copied into the request, and need not be registered
    /// (requirement X5).
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
    /// qp.post_send(DatagramRequest::send_inline(1, b"hello", to))?;
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.success()?.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_inline(id: u64, bytes: &[u8], to: Destination) -> Self {
        Self::new(id, Data::Inline(bytes.into()), to)
    }

    /// Creates a request that sends `data`.
    fn new(id: u64, data: Data, destination: Destination) -> Self {
        let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
        Self { inner: Inner { request, destination } }
    }

    /// Adds immediate data, which the completion of the remote receive carries.
    pub fn immediate(mut self, data: u32) -> Self {
        self.inner.request.immediate = Some(data);
        self
    }

    /// Marks the message as solicited: it causes an event at the receiver if the remote completion queue is armed for
    /// solicited completions (requirement N8).
    pub fn solicited(mut self) -> Self {
        self.inner.request.solicited = true;
        self
    }

    /// Suppresses the completion of the request, unless the request fails.
    pub fn unsignaled(mut self) -> Self {
        self.inner.request.signaled = false;
        self
    }
}

// Not derived: omits the data, which belongs to the program.
impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { request, destination } = &self.inner;
        f.debug_struct("DatagramRequest")
            .field("id", &request.id)
            .field("len", &request.data.len())
            .field("destination", destination)
            .finish_non_exhaustive()
    }
}
