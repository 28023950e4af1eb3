//! Work requests: what a program posts to a send queue. After this: `queue_pair.rs` posts them.

use crate::error::AccessError;
use crate::fast_region::FastRegion;
use crate::name::Name;
use crate::region::MemoryRegion;
use crate::window::{Window, binding};
use ironwarp_rnic::memory::{Binding, Memory, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest as Inner};
use ironwarp_wire::{AtomicOp, Place, Tag};
use std::fmt;
use std::sync::Arc;

/// A request for a send queue. `id` comes back in its completion.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::WorkRequest;
/// let (ours, theirs) = (client.region.slice(0, 64)?, server.region.place(0)?);
/// client.qp.post_send_all(vec![
///     WorkRequest::write(1, &[ours], theirs).unsignaled(),
///     WorkRequest::read(2, &[ours], theirs),
///     WorkRequest::send_inline(3, b"the Read is done").fenced().solicited().into(),
/// ])?;
/// # server.qp.post_receive(4, &[server.region.slice(0, 64)?])?;
/// # let completion = client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
/// # assert_eq!(completion.wr_id, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing before it is posted"]
pub struct WorkRequest {
    pub(crate) inner: Inner,
    /// Whose tag it changes.
    pub(crate) names: Option<Arc<Name>>,
}

/// A Send, before it is posted: a work request with more to choose.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::{Access, Buffer, WorkRequest};
/// # use std::time::Duration;
/// # let window = server.domain.window()?;
/// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
/// # server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 8, Access::REMOTE_READ)?)?;
/// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// server.qp.post_receive(1, &[server.region.slice(0, 64)?])?;
/// let done = WorkRequest::send_inline(2, b"done").fenced().solicited().unsignaled();
/// client.qp.post_send(done.invalidate(window.tag()))?;
///
/// let received = server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// assert_eq!((received.solicited, received.invalidated), (true, Some(window.tag())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct SendRequest {
    request: WorkRequest,
}

/// A Write with Immediate, before it is posted.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::{WorkRequest};
/// server.qp.post_receive(1, &[])?;
/// let (ours, theirs) = (client.region.slice(0, 100)?, server.region.place(0)?);
/// let notice = WorkRequest::write_immediate(2, &[ours], theirs, 7);
/// client.qp.post_send(notice.fenced().solicited().unsignaled())?;
/// let told = server.cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
/// assert!(told.solicited);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct NoticeRequest {
    request: WorkRequest,
}

impl WorkRequest {
    /// A message for the peer's next receive, from registered memory. An empty list sends an empty message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    /// server.qp.post_receive(1, &[server.region.slice(0, 64)?])?;
    /// client.region.write(0, b"hello")?;
    /// client.qp.post_send(WorkRequest::send(2, &[client.region.slice(0, 5)?]))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(&server.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(id: u64, list: &[Sge]) -> SendRequest {
        SendRequest::new(id, memory(list))
    }

    /// A message for the peer's next receive, of bytes that are copied now: they need no region, and may change at once. Up to 30 of
    /// them are in the request itself, which is then all that is handed over: message push (requirement X5).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    /// server.qp.post_receive(1, &[server.region.slice(0, 64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b"hello"))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(&server.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_inline(id: u64, bytes: &[u8]) -> SendRequest {
        SendRequest::new(id, Data::Inline(bytes.into()))
    }

    /// Writes registered memory to a place of the peer's (RDMA Write).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    /// let (ours, theirs) = (client.region.slice(0, 5)?, server.region.place(100)?);
    /// client.region.write(0, b"hello")?;
    /// client.qp.post_send(WorkRequest::write(1, &[ours], theirs))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(id: u64, list: &[Sge], to: Place) -> Self {
        Self::new(id, Operation::Write(to), memory(list))
    }

    /// Writes bytes that are copied now to a place of the peer's, as [`send_inline`](Self::send_inline) does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"hello", server.region.place(100)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_inline(id: u64, bytes: &[u8], to: Place) -> Self {
        Self::new(id, Operation::Write(to), Data::Inline(bytes.into()))
    }

    /// Writes registered memory to a place of the peer's, and tells its program: the data and `immediate` use up its next
    /// receive, whose completion has both length and data. RFC 7306 calls the second half Immediate Data.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Opcode, WorkRequest};
    /// server.qp.post_receive(1, &[])?;
    /// let (ours, theirs) = (client.region.slice(0, 100)?, server.region.place(0)?);
    /// client.qp.post_send(WorkRequest::write_immediate(2, &[ours], theirs, 7))?;
    /// let told = server.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!((told.opcode, told.byte_len, told.immediate), (Opcode::ReceiveWrite, 100, Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_immediate(id: u64, list: &[Sge], to: Place, immediate: u32) -> NoticeRequest {
        let mut request = Self::write(id, list, to);
        request.inner.immediate = Some(immediate);
        NoticeRequest { request }
    }

    /// Adds to the 64-bit word at a place of the peer's, as one step among all atomic operations of its adapter. What the
    /// word was before goes to `result`, which has 8 bytes. The word is a number of the peer's byte order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::WorkRequest;
    /// server.region.write(0, &40_u64.to_ne_bytes())?;
    /// let (result, word) = (client.region.slice(0, 8)?, server.region.place(0)?);
    /// client.qp.post_send(WorkRequest::fetch_add(1, result, word, 2))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!(client.region.to_vec()?[..8], 40_u64.to_ne_bytes());
    /// assert_eq!(server.region.to_vec()?[..8], 42_u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fetch_add(id: u64, result: Sge, word: Place, add: u64) -> Self {
        Self::atomic(id, result, word, AtomicOp::FetchAdd { add, mask: 0 })
    }

    /// Replaces the 64-bit word at a place of the peer's by `swap` if it is `compare`, as [`fetch_add`](Self::fetch_add) adds.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::WorkRequest;
    /// let (result, word) = (client.region.slice(0, 8)?, server.region.place(0)?);
    /// client.qp.post_send(WorkRequest::compare_swap(1, result, word, 0, 7).unsignaled())?;
    /// client.qp.post_send(WorkRequest::compare_swap(2, result, word, 0, 8))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!(client.region.to_vec()?[..8], 7_u64.to_ne_bytes(), "the second came too late");
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_swap(id: u64, result: Sge, word: Place, compare: u64, swap: u64) -> Self {
        let (swap_mask, compare_mask) = (u64::MAX, u64::MAX);
        Self::atomic(id, result, word, AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask })
    }

    /// An atomic operation with the masks that RFC 7306 §5.1 has: several counters in one word, or some of its bits.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{AtomicOp, WorkRequest};
    /// server.region.write(0, &0x0000_00ff_0000_00ff_u64.to_ne_bytes())?;
    /// let (result, word) = (client.region.slice(0, 8)?, server.region.place(0)?);
    /// // Two counters of 32 bits: the carry stays in each.
    /// let op = AtomicOp::FetchAdd { add: 0xffff_ff01_0000_0001, mask: 0x8000_0000_8000_0000 };
    /// client.qp.post_send(WorkRequest::atomic(1, result, word, op))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!(server.region.to_vec()?[..8], 0x0000_0000_0000_0100_u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn atomic(id: u64, result: Sge, word: Place, op: AtomicOp) -> Self {
        Self::new(id, Operation::Atomic { target: word, op }, memory(&[result]))
    }

    /// Reads from a place of the peer's into registered memory (RDMA Read).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{WorkRequest};
    /// # use std::time::Duration;
    /// server.region.write(100, b"hello")?;
    /// let (ours, theirs) = (client.region.slice(0, 5)?, server.region.place(100)?);
    /// client.qp.post_send(WorkRequest::read(1, &[ours], theirs))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(id: u64, list: &[Sge], from: Place) -> Self {
        Self::new(id, Operation::Read(from), memory(list))
    }

    /// Binds a window to `len` bytes of a region from `at` on, for the peer of the queue pair it is posted to. What it was
    /// bound to before is closed. `len` 0 only closes it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(0, 16)?], window.place(0)))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        access: Rights,
    ) -> Result<Self, AccessError> {
        Ok(Self::binding(id, window, binding(region, at, len, access, false)?))
    }

    /// Binds a window that serves one message of the peer's: when that has ended, the window is closed. The peer is not
    /// told; what it sends next is refused (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind_once(1, &window, &server.region, 0, 8, Access::REMOTE_WRITE)?)?;
    /// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::write_inline(2, b"once", window.place(0)))?;
    /// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"again", window.place(0)))?;
    /// # while client.qp.fault().is_none() { client.cq.wait(Duration::from_secs(5))?; }
    /// # assert_eq!(&server.region.to_vec()?[..8], b"once\0\0\0\0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind_once(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        access: Rights,
    ) -> Result<Self, AccessError> {
        Ok(Self::binding(id, window, binding(region, at, len, access, true)?))
    }

    fn binding(id: u64, window: &Window, binding: Binding) -> Self {
        let name = &window.registration.name;
        // The tag is filled in when it is posted.
        let operation = Operation::Bind { window: name.tag(), binding };
        Self { names: Some(Arc::clone(name)), ..Self::new(id, operation, memory(&[])) }
    }

    /// Registers a region's memory. Only the peer of the queue pair it is posted to can invalidate it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(0, 64)?], region.place(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(id: u64, region: &FastRegion, access: Rights) -> Self {
        Self::registering(id, region, region.memory(access, false))
    }

    /// Registers a region's memory to serve one message of a peer's: when that has ended, it has to be registered again, as
    /// after an invalidation (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
    /// for word in [*b"first   ", *b"second  "] {
    ///     let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    ///     server.qp.post_send(WorkRequest::register_once(1, &region, access))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    ///     # server.qp.post_receive(2, &[])?;
    ///     client.qp.post_send(WorkRequest::write_inline(3, &word, region.place(0)?))?;
    ///     # client.qp.post_send(WorkRequest::send(4, &[]))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    ///     # assert_eq!(region.to_vec()?, word);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_once(id: u64, region: &FastRegion, access: Rights) -> Self {
        Self::registering(id, region, region.memory(access, true))
    }

    fn registering(id: u64, region: &FastRegion, memory: Memory) -> Self {
        let name = &region.registration.name;
        // The tag is filled in when it is posted.
        let operation = Operation::Register { tag: name.next_registration(), memory };
        Self { names: Some(Arc::clone(name)), ..Self::new(id, operation, self::memory(&[])) }
    }

    /// Ends a registration by work request: the tag names nothing until the memory is registered again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::invalidate_region(2, &region))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_region(id: u64, region: &FastRegion) -> Self {
        Self::local_invalidate(id, region.tag())
    }

    /// Closes a window until it is bound again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::invalidate_window(2, &window))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_window(id: u64, window: &Window) -> Self {
        Self::local_invalidate(id, window.tag())
    }

    /// Ends what a tag of ours names, which must be a [`Window`]'s or a [`FastRegion`]'s.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::local_invalidate(2, window.tag()))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_invalidate(id: u64, tag: Tag) -> Self {
        Self::new(id, Operation::Invalidate(tag), memory(&[]))
    }

    /// Success is not reported, only failure.
    pub fn unsignaled(mut self) -> Self {
        self.inner.signaled = false;
        self
    }

    /// Waits until all earlier Reads and atomic operations are done.
    pub fn fenced(mut self) -> Self {
        self.inner.fence = true;
        self
    }

    /// The identifier that its completion will have.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    fn new(id: u64, operation: Operation, data: Data) -> Self {
        Self { inner: Inner::new(id, operation, data), names: None }
    }
}

impl fmt::Debug for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { id, operation, data, signaled, fence, .. } = &self.inner;
        f.debug_struct("WorkRequest")
            .field("id", id)
            .field("operation", operation)
            .field("len", &data.len())
            .field("signaled", signaled)
            .field("fence", fence)
            .finish()
    }
}

/// What can be chosen for every message that uses up a receive of the peer's.
macro_rules! message {
    ($name:ident) => {
        impl $name {
            /// Wakes the peer's program, if it waits for solicited messages (requirement N8).
            pub fn solicited(mut self) -> Self {
                self.request.inner.solicited = true;
                self
            }

            /// Takes a receive of the peer's shared receive queue with this number
            /// ([`SharedReceiveQueue::id`](crate::SharedReceiveQueue::id)): for an XRC queue pair.
            ///
            /// ```
            /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions, WorkRequest};
            /// # use std::time::Duration;
            /// # let adapter = Adapter::new()?;
            /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
            /// let xrc = adapter.xrc_domain();
            /// let srq = domain.xrc_receive_queue(&xrc, &cq, 16);
            /// srq.post_receive(7, &[])?;
            /// let target = domain.queue_pair(&cq).xrc_target(&xrc).create()?;
            /// # let client = domain.queue_pair(&cq).create()?;
            /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
            /// # client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
            /// # listener.accept(Duration::from_secs(5)).unwrap().accept(&target, &AcceptOptions::new())?;
            /// # client.wait_connected(Duration::from_secs(5))?;
            /// client.post_send(WorkRequest::send(1, &[]).to_srq(srq.id()).unsignaled())?;
            /// let received = cq.wait(Duration::from_secs(5))?.expect("in time");
            /// assert_eq!(received.wr_id, 7);
            /// # Ok(())
            /// # }
            /// ```
            pub fn to_srq(mut self, number: u32) -> Self {
                self.request.inner.srq = number;
                self
            }

            /// Success is not reported, only failure.
            pub fn unsignaled(mut self) -> Self {
                self.request = self.request.unsignaled();
                self
            }

            /// Waits until all earlier Reads and atomic operations are done.
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
message!(NoticeRequest);

impl SendRequest {
    fn new(id: u64, data: Data) -> Self {
        let operation = Operation::Send { invalidate: None };
        Self { request: WorkRequest::new(id, operation, data) }
    }

    /// Ends what this tag of the peer's names, when the message is delivered (requirement M12).
    pub fn invalidate(mut self, tag: Tag) -> Self {
        self.request.inner.operation = Operation::Send { invalidate: Some(tag) };
        self
    }

    /// Data that the peer finds in its completion (requirement X8). Only between Ironwarp ends: towards another peer the
    /// request fails with [`Status::LocalQpOperation`](crate::Status::LocalQpOperation) and
    /// [`Fault::NoImmediate`](crate::Fault::NoImmediate). [`WorkRequest::write_immediate`] is standard.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::WorkRequest;
    /// server.qp.post_receive(1, &[server.region.slice(0, 64)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b"seven").immediate(7))?;
    /// let received = server.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
    /// assert_eq!((received.byte_len, received.immediate), (5, Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn immediate(mut self, data: u32) -> Self {
        self.request.inner.immediate = Some(data);
        self
    }
}

fn memory(list: &[Sge]) -> Data {
    Data::Memory(Sges::from(list))
}
