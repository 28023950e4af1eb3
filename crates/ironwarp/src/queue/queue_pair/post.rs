//! Posting requests and receives to queue pairs, and to shared send queues.

use super::pair::QueuePair;
use crate::memory::{TagSequence, TagState};
use crate::queue::shared_send_queue::SharedSendQueue;
use crate::queue::work_request::WorkRequest;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, WorkRequest as InnerRequest};
use ironwarp_rnic::sync::lock;
use std::sync::Arc;

/// Maximum number of bytes of inline data that are copied to memory of the send queue.
const MAX_INLINE: usize = 256;

impl QueuePair {
    /// Posts a request, and sends as much of it as possible at once. The completion carries the `id` of the request.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::prelude::*;
    /// # use std::time::Duration;
    ///
    /// client.qp.post_send(WorkRequest::write_inline(7, b"hello", server.region.remote_addr(0)?))?;
    /// let completion = client.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(completion.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A request leaves the send queue when it completes, and its completion stays in the completion queue until it is
    /// polled. So a full send queue does not protect the completion queue from overflowing: keep count, and have no
    /// more requests posted and completions unpolled than the completion queue has room for.
    ///
    /// After an error, posted requests complete as flushed. If the completion queue has overflowed, no more completions
    /// arrive: [`error`](Self::error) returns the reason.
    ///
    /// # Errors
    /// Fails if the queue pair has no send queue of its own, or its send queue is full; if it is not connected or in a
    /// state that does not allow requests; or if the request itself is invalid.
    pub fn post_send(&self, request: impl Into<WorkRequest>) -> Result<(), PostError> {
        let request = request.into();
        match request.tags {
            None => self.inner.post_send([request.inner]),
            Some(_) => self.post_send_all([request]),
        }
    }

    /// Posts a Send or Write whose data is `bytes`, instead of registered memory (message push, requirement X5). The bytes
    /// are copied, with the request, to memory of the send queue: nothing is allocated for each request if there are at
    /// most 256 of them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::prelude::*;
    /// # use std::time::Duration;
    ///
    /// server.qp.post_receive(1, &[server.region.slice(..200)?])?;
    /// client.qp.post_inline(WorkRequest::send(2, &[]).solicited(), &[7; 200])?;
    /// assert_eq!(server.cq.wait(Duration::from_secs(5))?.success()?.byte_len, 200);
    /// assert_eq!(server.region.to_vec()?[..200], [7; 200]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`post_send`](Self::post_send), or if the request is a Read or an atomic operation.
    pub fn post_inline(&self, request: impl Into<WorkRequest>, bytes: &[u8]) -> Result<(), PostError> {
        let mut request = request.into();
        let copy = |to: &mut [u8]| to.copy_from_slice(bytes);
        request.inner.data = Data::Inline(self.inner.inline_data(bytes.len(), MAX_INLINE, copy));
        self.post_send(request)
    }

    /// Posts several requests, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::prelude::*;
    /// # use std::time::Duration;
    ///
    /// // Requests complete in order, so the completion of the last one covers all.
    /// let addr = server.region.remote_addr(0)?;
    /// client.qp.post_send_all([
    ///     WorkRequest::write_inline(1, b"hello", addr).unsignaled(),
    ///     WorkRequest::read(2, &[client.region.slice(..5)?], addr),
    /// ])?;
    /// assert_eq!(client.cq.wait(Duration::from_secs(5))?.success()?.wr_id, 2);
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`post_send`](Self::post_send), if any of the requests cannot be posted.
    pub fn post_send_all<R>(&self, requests: R) -> Result<(), PostError>
    where
        R: IntoIterator<Item: Into<WorkRequest>>,
    {
        let requests: Vec<WorkRequest> = requests.into_iter().map(Into::into).collect();
        // The usual case is posted without collecting the requests into another vector.
        if requests.iter().all(|request| request.tags.is_none()) {
            return self.inner.post_send(requests.into_iter().map(|request| request.inner));
        }
        self.post_tagged(requests, Qp::post_send)
    }

    /// Assigns tags to the requests that bind a window or register a region, and passes all requests to `post`. If
    /// `post` fails, the windows and regions keep their previous tags.
    fn post_tagged(
        &self,
        requests: Vec<WorkRequest>,
        post: impl FnOnce(&Qp, Vec<InnerRequest>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if requests.iter().all(|request| request.tags.is_none()) {
            return post(&self.inner.qp(), requests.into_iter().map(|request| request.inner).collect());
        }
        // Without the lock, another thread could post a later tag of the same window or region first.
        let _order = lock(&self.shared.tag_order);
        let mut advanced = Vec::new();
        let requests: Vec<_> =
            requests.into_iter().map(|request| self.assign_tag(request, &mut advanced)).collect();
        if let Some(pending) = &self.pending {
            advanced.iter().for_each(|(tags, _)| pending.add(tags));
        }
        post(&self.inner.qp(), requests).inspect_err(|_| {
            for (tags, before) in advanced.iter().rev() {
                tags.restore(*before);
            }
        })
    }

    /// Fills in the tags of a request that binds a window or registers a region: a binding names the window by its old
    /// tag, a registration names the region by its new one. Adds the tag sequence and its previous state to `advanced`.
    fn assign_tag(
        &self,
        mut request: WorkRequest,
        advanced: &mut Vec<(Arc<TagSequence>, TagState)>,
    ) -> InnerRequest {
        if let Some(tags) = request.tags {
            let table = self.shared.device().table();
            let next = match &mut request.inner.operation {
                Operation::Bind { window, .. } => {
                    *window = tags.tag();
                    tags.next_binding(table)
                }
                Operation::Register { tag, .. } | Operation::RegisterSend { tag, .. } => {
                    *tag = tags.next_registration(table);
                    *tag
                }
                operation => unreachable!("assigns no tag: {operation:?}"),
            };
            let before = tags.advance(next, self.id());
            advanced.push((tags, before));
        }
        request.inner
    }

    /// Posts a receive into the buffers of `list`. Receives are consumed in the order of posting, each by one message.
    /// They can be posted before the queue pair is connected. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::prelude::*;
    /// # use std::time::Duration;
    ///
    /// server.qp.post_receive(7, &[server.region.slice(..64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
    /// let received = server.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!((received.wr_id, received.byte_len), (7, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue pair has no receive queue of its own, or its receive queue is full; if the list has too many
    /// elements; or if the state of the queue pair does not allow receives.
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.post_receive(ReceiveRequest { id, buffers: list.into() })
    }
}

impl SharedSendQueue {
    /// Posts a request for a queue pair that was created with this shared send queue, and sends as much of it as
    /// possible at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// use ironwarp::queue::{PostError, WorkRequest};
    ///
    /// let ssq = client.domain.shared_send_queue(&client.cq, 16);
    /// assert_eq!(ssq.post(&client.qp, WorkRequest::send(1, &[])), Err(PostError::OtherSendQueue));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PostError::OtherSendQueue`] if the queue pair was not created with this queue, and [`PostError::Full`]
    /// if this queue is full: wait until a request completes. Otherwise fails like [`QueuePair::post_send`].
    pub fn post(&self, qp: &QueuePair, request: impl Into<WorkRequest>) -> Result<(), PostError> {
        self.post_all(qp, [request])
    }

    /// Posts several requests for one queue pair, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// use ironwarp::queue::{PostError, WorkRequest};
    ///
    /// let ssq = client.domain.shared_send_queue(&client.cq, 1);
    /// let qp = client.domain.queue_pair(&client.cq).shared_send_queue(&ssq).create()?;
    /// let two = [WorkRequest::send(1, &[]), WorkRequest::send(2, &[])];
    /// assert_eq!(ssq.post_all(&qp, two), Err(PostError::NotConnected));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`post`](Self::post), if any of the requests cannot be posted.
    pub fn post_all<R>(&self, qp: &QueuePair, requests: R) -> Result<(), PostError>
    where
        R: IntoIterator<Item: Into<WorkRequest>>,
    {
        let requests = requests.into_iter().map(Into::into).collect();
        qp.post_tagged(requests, |inner, requests| self.inner.post(inner, requests))
    }
}
