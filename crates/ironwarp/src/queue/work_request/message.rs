//! Requests that consume a receive of the peer: Sends, and Writes with Immediate.

use super::request::{WorkRequest, memory};
use crate::memory::FastRegion;
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::queue::{Data, Operation, Sge};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;

/// A Send request, with options that other requests do not have. [`WorkRequest::send`] creates it; all posting methods
/// accept it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let window = server.domain.window()?;
/// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
/// # server.qp.post_send(WorkRequest::bind(1, &window, &region, ..8, Access::REMOTE_READ)?)?;
/// # server.cq.wait(Duration::from_secs(5))?.success()?;
/// server.qp.post_receive(1, &[server.region.slice(..64)?])?;
/// let done = WorkRequest::send_inline(2, b"done").fenced().solicited().unsignaled();
/// client.qp.post_send(done.invalidate(window.tag()))?;
///
/// let received = server.cq.wait(Duration::from_secs(5))?.success()?;
/// assert_eq!((received.solicited, received.invalidated), (true, Some(window.tag())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest {
    request: WorkRequest,
}

/// A request for an RDMA Write with Immediate, with options that other Writes do not have.
/// [`WorkRequest::write_immediate`] creates it; all posting methods accept it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::prelude::*;
/// server.qp.post_receive(1, &[])?;
/// let (ours, theirs) = (client.region.slice(..100)?, server.region.remote_addr(0)?);
/// let request = WorkRequest::write_immediate(2, &[ours], theirs, 7);
/// client.qp.post_send(request.fenced().solicited().unsignaled())?;
/// let received = server.cq.wait(std::time::Duration::from_secs(5))?.success()?;
/// assert!(received.solicited);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct WriteImmRequest {
    request: WorkRequest,
}

impl WorkRequest {
    /// Creates a request that sends registered memory to the peer's next receive. An empty list sends an empty message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// server.qp.post_receive(1, &[server.region.slice(..64)?])?;
    /// client.region.write(0, b"hello")?;
    /// client.qp.post_send(WorkRequest::send(2, &[client.region.slice(..5)?]))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(&server.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(id: u64, list: &[Sge]) -> SendRequest {
        SendRequest::new(id, memory(list))
    }

    /// Creates a request that sends `bytes` to the peer's next receive. The bytes are copied now, and need not be
    /// registered. Up to 30 bytes are stored in the request itself, without an allocation (message push, requirement
    /// X5). [`QueuePair::post_inline`](crate::queue::QueuePair::post_inline) copies longer data to the queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// server.qp.post_receive(1, &[server.region.slice(..64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b"hello"))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(&server.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_inline(id: u64, bytes: &[u8]) -> SendRequest {
        SendRequest::new(id, Data::Inline(bytes.into()))
    }

    /// Creates a request that writes registered memory to a remote address and notifies the remote program (RDMA Write
    /// with Immediate, RFC 7306): the message consumes the peer's next receive, whose completion has the length and
    /// `immediate`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::completion::Opcode;
    /// # use ironwarp::queue::WorkRequest;
    /// server.qp.post_receive(1, &[])?;
    /// let (ours, theirs) = (client.region.slice(..100)?, server.region.remote_addr(0)?);
    /// client.qp.post_send(WorkRequest::write_immediate(2, &[ours], theirs, 7))?;
    /// let received = server.cq.wait(std::time::Duration::from_secs(5))?;
    /// assert_eq!((received.opcode, received.byte_len, received.immediate), (Opcode::ReceiveWrite, 100, Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_immediate(id: u64, list: &[Sge], to: RemoteAddr, immediate: u32) -> WriteImmRequest {
        let mut request = Self::write(id, list, to);
        request.inner.immediate = Some(immediate);
        WriteImmRequest { request }
    }
}

/// Defines the options of requests that consume a receive of the peer.
macro_rules! message {
    ($name:ident) => {
        impl $name {
            /// Marks the message as solicited: it causes an event at the peer if the remote completion queue is armed
            /// for solicited completions (requirement N8).
            pub fn solicited(mut self) -> Self {
                self.request.inner.solicited = true;
                self
            }

            /// Addresses the remote shared receive queue with this number
            /// ([`SharedReceiveQueue::id`](crate::queue::SharedReceiveQueue::id)): the message consumes a receive of
            /// that queue. The remote queue pair must be an [XRC target](crate::queue::QueuePairBuilder::xrc_target).
            ///
            /// ```
            /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # use ironwarp::prelude::*;
            /// # use std::time::Duration;
            /// # let adapter = Adapter::new()?;
            /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
            /// let xrc = adapter.xrc_domain();
            /// let srq = domain.xrc_receive_queue(&xrc, &cq, 16);
            /// srq.post_receive(7, &[])?;
            /// let target = domain.queue_pair(&cq).xrc_target(&xrc).create()?;
            /// # let client = domain.queue_pair(&cq).create()?;
            /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
            /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
            /// # listener.accept(Duration::from_secs(5)).unwrap().accept(&target, &AcceptOptions::new())?;
            /// # client.wait_connected(Duration::from_secs(5))?;
            /// client.post_send(WorkRequest::send(1, &[]).to_srq(srq.id()).unsignaled())?;
            /// let received = cq.wait(Duration::from_secs(5))?;
            /// assert_eq!(received.wr_id, 7);
            /// # Ok(())
            /// # }
            /// ```
            pub fn to_srq(mut self, number: u32) -> Self {
                self.request.inner.srq = number;
                self
            }

            /// Suppresses the completion of the request, unless the request fails.
            pub fn unsignaled(mut self) -> Self {
                self.request = self.request.unsignaled();
                self
            }

            /// Delays the request until all earlier Reads and atomic operations of the queue pair have completed.
            pub fn fenced(mut self) -> Self {
                self.request = self.request.fenced();
                self
            }
        }

        impl From<$name> for WorkRequest {
            fn from(message: $name) -> Self {
                message.request
            }
        }
    };
}

message!(SendRequest);
message!(WriteImmRequest);

impl SendRequest {
    /// Creates a Send of `data`.
    fn new(id: u64, data: Data) -> Self {
        let operation = Operation::Send { invalidate: None };
        Self { request: WorkRequest::new(id, operation, data) }
    }

    /// Invalidates a tag of the peer when the message is delivered (requirement M12).
    pub fn invalidate(mut self, tag: Tag) -> Self {
        if let Operation::Send { invalidate } | Operation::RegisterSend { invalidate, .. } =
            &mut self.request.inner.operation
        {
            *invalidate = Some(tag);
        }
        self
    }

    /// Registers a region before the message is sent: one request with one completion (requirement M12). The message
    /// may carry [the tag that the registration assigns](FastRegion::next_tag). Of all peers, only that of the queue
    /// pair that the request is posted to can invalidate the region.
    ///
    /// If the registration fails, nothing is sent, and the request completes with
    /// [`Status::WindowBind`](crate::completion::Status::WindowBind) and
    /// [`QpError::Register`](crate::queue::QpError::Register);
    /// [`registration_failure`](crate::queue::QueuePairBuilder::registration_failure) says what becomes of the queue
    /// pair. If the data of the message may not be read, nothing is registered.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # client.qp.post_receive(1, &[client.region.slice(..4)?])?;
    /// let region = server.domain.allocate_region([Buffer::copy_of(b"hello")?])?;
    /// let tag = region.next_tag();
    /// let announce = WorkRequest::send_inline(2, &tag.0.to_be_bytes());
    /// server.qp.post_send(announce.register(&region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    ///
    /// // The peer reads the region, and its answer ends the registration.
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # server.qp.post_receive(3, &[])?;
    /// let addr = region.remote_addr(0)?;
    /// client.qp.post_send(WorkRequest::read(4, &[client.region.slice(..5)?], addr))?;
    /// client.qp.post_send(WorkRequest::send(5, &[]).invalidate(tag).fenced())?;
    /// assert_eq!(server.cq.wait(Duration::from_secs(5))?.success()?.invalidated, Some(tag));
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(self, region: &FastRegion, access: Rights) -> Self {
        let one_touch = false;
        self.with_registration(region, access, one_touch)
    }

    /// Registers a region like [`register`](Self::register), but for a single message of a peer: the region is
    /// invalidated when that message ends (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # client.qp.post_receive(1, &[])?;
    /// let region = server.domain.allocate_region([Buffer::copy_of(b"hello")?])?;
    /// server.qp.post_send(WorkRequest::send(2, &[]).register_once(&region, Access::REMOTE_READ))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::read(3, &[client.region.slice(..5)?], region.remote_addr(0)?))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_once(self, region: &FastRegion, access: Rights) -> Self {
        let one_touch = true;
        self.with_registration(region, access, one_touch)
    }

    /// Adds the registration of a region, for one message or for many. Replaces an earlier one.
    fn with_registration(mut self, region: &FastRegion, access: Rights, one_touch: bool) -> Self {
        let (tag, memory) = (region.next_tag(), region.memory(access, one_touch));
        if let Operation::Send { invalidate } | Operation::RegisterSend { invalidate, .. } =
            self.request.inner.operation
        {
            self.request.inner.operation = Operation::RegisterSend { tag, memory, invalidate };
            self.request.tags = Some(Arc::clone(&region.registration.tags));
        }
        self
    }

    /// Adds immediate data, which the completion of the remote receive carries (requirement X8). This works between
    /// Ironwarp adapters only. With another peer the request fails with
    /// [`Status::LocalQpOperation`](crate::completion::Status::LocalQpOperation) and
    /// [`QpError::NoImmediate`](crate::queue::QpError::NoImmediate): use [`WorkRequest::write_immediate`] instead.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::WorkRequest;
    /// server.qp.post_receive(1, &[server.region.slice(..64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b"seven").immediate(7))?;
    /// let received = server.cq.wait(std::time::Duration::from_secs(5))?;
    /// assert_eq!((received.byte_len, received.immediate), (5, Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn immediate(mut self, data: u32) -> Self {
        self.request.inner.immediate = Some(data);
        self
    }
}
