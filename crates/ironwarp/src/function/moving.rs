//! Moves connections from one function of an adapter to another (requirement X2).

use crate::completion::CompletionQueue;
use crate::memory::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::queue::QueuePair;
use ironwarp_engine::TakeInError;
use std::time::{Duration, Instant};

/// A queue pair and the regions that its requests and its peer use, which move to another function together.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::function::{Moving, Quotas};
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// # let timeout = Duration::from_secs(5);
/// # let peer = Adapter::new()?;
/// # let peer_qp = peer.protection_domain().queue_pair(&peer.completion_queue(16)?).create()?;
/// # let listener = peer.listen("127.0.0.1:0".parse()?)?;
/// let adapter = Adapter::new()?;
/// let (one, other) = (adapter.function(Quotas::default())?, adapter.function(Quotas::default())?);
/// let (cq, domain) = (one.completion_queue(64)?, one.protection_domain());
/// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
/// let qp = domain.queue_pair(&cq).create()?;
/// # qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
/// # listener.accept(timeout)?.accept(&peer_qp, &AcceptOptions::new())?;
/// # qp.wait_connected(timeout)?;
/// qp.post_receive(7, &[region.slice(..)?])?;
///
/// let (cq, domain) = (other.completion_queue(64)?, other.protection_domain());
/// let moved = Moving::new(qp, [region]).move_to(&domain, [&cq, &cq], timeout)?;
/// # peer_qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
/// assert_eq!(cq.wait(timeout)?.wr_id, 7);
/// assert_eq!(&moved.regions[0].to_vec()?[..5], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it disconnects the queue pair and deregisters the regions"]
pub struct Moving {
    /// The queue pair.
    pub qp: QueuePair,
    /// The regions.
    pub regions: Vec<MemoryRegion>,
}

/// A connection could not move. It goes on where it is.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotMoved {
    /// Why it could not.
    #[source]
    pub error: TakeInError,
    /// The connection.
    pub unmoved: Moving,
}

impl Moving {
    /// Puts together what moves.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::function::{Moving, Quotas};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (one, other) = (adapter.function(Quotas::default())?, adapter.function(Quotas::default())?);
    /// let qp = one.protection_domain().queue_pair(&one.completion_queue(64)?).create()?;
    /// let (number, cq) = (qp.id(), other.completion_queue(64)?);
    /// let moving = Moving::new(qp, []);
    /// let moved = moving.move_to(&other.protection_domain(), [&cq, &cq], Duration::from_secs(5))?;
    /// assert_eq!(moved.qp.id(), number);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(qp: QueuePair, regions: impl IntoIterator<Item = MemoryRegion>) -> Self {
        Self { qp, regions: regions.into_iter().collect() }
    }

    /// Moves the queue pair and the regions to another function of the same adapter: into this domain, and to these
    /// completion queues for sends and receives, in the middle of messages if need be. Number and tags stay, and the peer
    /// notices nothing. Completions that were not polled stay in the former queues.
    ///
    /// A connection on one host leaves shared memory first, within the timeout, and stays on TCP.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::function::{Moving, Quotas};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (one, other) = (adapter.function(Quotas::default())?, adapter.function(Quotas::default())?);
    /// let qp = one.protection_domain().queue_pair(&one.completion_queue(64)?).create()?;
    /// let (number, cq) = (qp.id(), other.completion_queue(64)?);
    /// let moving = Moving::new(qp, []);
    /// let moved = moving.move_to(&other.protection_domain(), [&cq, &cq], Duration::from_secs(5))?;
    /// assert_eq!(moved.qp.id(), number);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the objects belong to two adapters, if the queue pair uses a shared queue or is connected manually, if
    /// windows are bound to a region, or if the function has reached a quota. Then nothing has moved.
    #[expect(clippy::result_large_err, reason = "the error returns what could not move")]
    pub fn move_to(
        mut self,
        domain: &ProtectionDomain,
        [send_cq, receive_cq]: [&CompletionQueue; 2],
        timeout: Duration,
    ) -> Result<Self, NotMoved> {
        let tags: Vec<_> = self.regions.iter().map(MemoryRegion::tag).collect();
        let (from, to) = (self.qp.shared(), &domain.shared);
        let is_same = [send_cq, receive_cq].iter().all(|cq| std::sync::Arc::ptr_eq(&cq.shared, to));
        let moved = if is_same {
            let cqs = [&send_cq.inner, &receive_cq.inner];
            let destination = (domain.domain(), &tags[..]);
            to.engine.take_in(&from.engine, self.qp.inner(), destination, cqs, Instant::now() + timeout)
        } else {
            Err(TakeInError::OtherAdapter)
        };
        match moved {
            Ok(pair) => {
                let qp = QueuePair::restored(to, &pair);
                let regions = self.regions.drain(..).map(|region| region.moved_to(domain)).collect();
                Ok(Self { qp, regions })
            }
            Err(error) => Err(NotMoved { error, unmoved: self }),
        }
    }
}
