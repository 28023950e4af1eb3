//! A pool: a region that is split into chunks of equal length, each with one owner at a time.

use super::error::AccessError;
use super::range::{check, resolve};
use super::region::MemoryRegion;
use super::view::{ArrayView, View, byte_len};
use ironwarp_rnic::queue::Sge;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::RemoteAddr;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A region that is split into chunks of equal length. Clones are handles to the same pool.
///
/// A program takes a [`Chunk`], fills it or receives into it, and drops it, which returns it to the pool. Neither
/// allocates memory. The region stays registered until the pool and all of its chunks are dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::memory::Pool;
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # let timeout = Duration::from_secs(5);
/// # server.qp.post_receive(1, &[server.region.slice(..64)?])?;
/// let region = client.domain.register(Buffer::new(1 << 20)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
/// let pool = Pool::new(region, 4096);
/// assert_eq!(pool.available(), 256);
///
/// let mut chunk = pool.take().expect("a free chunk");
/// chunk.write(0, b"hello")?;
/// client.qp.post_send(WorkRequest::send(2, &[chunk.slice(..5)?]))?;
/// client.cq.wait(timeout)?.success()?;
/// drop(chunk);
/// assert_eq!(pool.available(), 256);
/// # server.cq.wait(timeout)?.success()?;
/// # assert_eq!(&server.region.to_vec()?[..5], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// State shared by the handles and chunks of a pool.
struct Shared {
    region: MemoryRegion,
    /// Length of each chunk, in bytes.
    chunk_len: usize,
    /// The offsets of free chunks in the region. The chunk that was returned last is taken first: its bytes are most
    /// likely still cached. The capacity is the number of all chunks, so that returning one allocates nothing.
    free: Mutex<Vec<usize>>,
}

impl Pool {
    /// Splits a region into chunks of `chunk_len` bytes. Bytes at the end that fill no chunk are not used.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// let pool = Pool::new(domain.register(Buffer::new(1000)?, Access::all())?, 300);
    /// assert_eq!((pool.available(), pool.chunk_len()), (3, 300));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the region has no room for a chunk, and if `chunk_len` is zero or more than a scatter/gather element
    /// covers (4 GiB).
    #[track_caller]
    pub fn new(region: MemoryRegion, chunk_len: usize) -> Self {
        let len = region.len();
        assert!(
            (1..=len).contains(&chunk_len) && u32::try_from(chunk_len).is_ok(),
            "chunks of {chunk_len} bytes in a region of {len} bytes: the length must be from 1 to that of the region, \
             and less than 4 GiB"
        );
        // Reversed, because chunks are taken from the end: the first chunk is taken first.
        let free = (0..len / chunk_len).rev().map(|index| index * chunk_len).collect();
        Self { shared: Arc::new(Shared { region, chunk_len, free: Mutex::new(free) }) }
    }

    /// Takes a free chunk. Returns `None` if all chunks are in use.
    ///
    /// The chunk has its full length. Its bytes are those that its last user left there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// let pool = Pool::new(domain.register(Buffer::new(64)?, Access::all())?, 64);
    /// let only = pool.take().expect("a free chunk");
    /// assert!(pool.take().is_none());
    /// drop(only);
    /// assert!(pool.take().is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "dropping a chunk returns it to its pool"]
    pub fn take(&self) -> Option<Chunk> {
        let start = lock(&self.shared.free).pop()?;
        Some(Chunk { shared: Arc::clone(&self.shared), start, len: self.shared.chunk_len })
    }

    /// Returns how many chunks are free. Other threads may take or return chunks at any time.
    pub fn available(&self) -> usize {
        lock(&self.shared.free).len()
    }

    /// Returns the length of each chunk, in bytes.
    pub fn chunk_len(&self) -> usize {
        self.shared.chunk_len
    }
}

/// Registered memory with one owner: a part of a [`Pool`]'s region. Dropping a chunk returns it to its pool.
///
/// A chunk has a length, which is that of its memory unless the program [sets](Self::set_len) a shorter one: that of
/// the message in it. All methods access only the bytes within the length.
///
/// A chunk cannot be cloned, and writing needs `&mut`: whoever owns the chunk is the only one in the program that uses
/// its bytes. An asynchronous request takes the chunk by value, and returns it with the completion. A request that
/// takes a scatter/gather element instead does not own the chunk: wait for its completion before you touch the bytes.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// # use ironwarp::memory::Pool;
/// # use ironwarp::prelude::*;
/// let pool = Pool::new(domain.register(Buffer::new(1 << 20)?, Access::LOCAL_READ)?, 4096);
/// let mut chunk = pool.take().expect("a free chunk");
/// chunk.set_len(5)?;
/// chunk.write(0, b"hello")?;
/// assert_eq!(chunk.to_vec()?, b"hello");
/// assert_eq!(chunk.as_sge().len, 5);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a chunk returns it to its pool"]
pub struct Chunk {
    shared: Arc<Shared>,
    /// Offset of the first byte in the region.
    start: usize,
    /// Number of bytes that are in use: at most `capacity()`.
    len: usize,
}

impl Chunk {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the maximum length in bytes: that of the chunk's memory.
    pub fn capacity(&self) -> usize {
        self.shared.chunk_len
    }

    /// Sets the length, for example to that of a message to send. The bytes stay as they are.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(64)?, Access::all())?, 64);
    /// let mut chunk = pool.take().expect("a free chunk");
    /// chunk.set_len(5)?;
    /// assert_eq!((chunk.len(), chunk.capacity()), (5, 64));
    /// chunk.set_len(64)?;
    /// assert!(chunk.set_len(65).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the length exceeds the [capacity](Self::capacity).
    pub fn set_len(&mut self, len: usize) -> Result<(), AccessError> {
        if len > self.capacity() {
            return Err(AccessError::OutOfBounds { at: 0, len, size: self.capacity() });
        }
        self.len = len;
        Ok(())
    }

    /// Copies the bytes at offset `at` to `into`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::copy_of(b"hello")?, Access::all())?, 5);
    /// # let chunk = pool.take().expect("a free chunk");
    /// let mut two = [0; 2];
    /// chunk.read(3, &mut two)?;
    /// assert_eq!(&two, b"lo");
    /// assert!(chunk.read(4, &mut two).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the chunk, or if the program unmapped memory that it owns.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.check_range(at, into.len())?;
        self.shared.region.read(self.start + at, into)
    }

    /// Copies `from` to the bytes at offset `at`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::{AccessError, Pool};
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(8)?, Access::all())?, 8);
    /// # let mut chunk = pool.take().expect("a free chunk");
    /// chunk.write(3, b"hello")?;
    /// assert_eq!(chunk.to_vec()?, b"\0\0\0hello");
    /// assert_eq!(chunk.write(4, b"hello"), Err(AccessError::OutOfBounds { at: 4, len: 5, size: 8 }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the chunk, or if the program unmapped or write-protected memory that
    /// it owns.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check_range(at, from.len())?;
        self.shared.region.write(self.start + at, from)
    }

    /// Returns a copy of the bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::copy_of(b"hello")?, Access::all())?, 5);
    /// # let chunk = pool.take().expect("a free chunk");
    /// assert_eq!(chunk.to_vec()?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the program unmapped memory that it owns.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns a copy of the value of type `T` at offset `at`, such as the header of a received message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::copy_of(&[1, 2, 3, 4])?, Access::all())?, 4);
    /// # let chunk = pool.take().expect("a free chunk");
    /// use zerocopy::byteorder::big_endian::U16;
    ///
    /// assert_eq!(chunk.load::<U16>(1)?.get(), 0x0203);
    /// assert!(chunk.load::<U16>(3).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the value is not completely inside the chunk, or if the program unmapped memory that it owns.
    pub fn load<T: FromBytes + IntoBytes + Immutable>(&self, at: usize) -> Result<T, AccessError> {
        let mut value = T::new_zeroed();
        self.read(at, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Returns a view of the value of type `T` at offset `at`. The view borrows the chunk, which cannot be posted to an
    /// asynchronous request or dropped meanwhile.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(16)?, Access::all())?, 16);
    /// # let mut chunk = pool.take().expect("a free chunk");
    /// chunk.view::<u64>(8)?.store(&7);
    /// assert_eq!(chunk.load::<u64>(8)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the value is not completely inside the chunk.
    pub fn view<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        at: usize,
    ) -> Result<View<'_, T>, AccessError> {
        self.check_range(at, size_of::<T>())?;
        Ok(View::new(&self.shared.region, self.start + at))
    }

    /// Returns a view of `len` values of type `T`, the first of them at offset `at` in bytes. The view borrows the
    /// chunk.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(4096)?, Access::all())?, 1024);
    /// # let mut chunk = pool.take().expect("a free chunk");
    /// chunk.array::<f32>(0, 256)?.write(0, &[1.5; 256]);
    /// assert_eq!(chunk.load::<f32>(1020)?, 1.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the values are not completely inside the chunk.
    pub fn array<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        at: usize,
        len: usize,
    ) -> Result<ArrayView<'_, T>, AccessError> {
        self.check_range(at, byte_len::<T>(len))?;
        Ok(ArrayView::new(&self.shared.region, self.start + at, len))
    }

    /// Returns a scatter/gather element for all bytes.
    ///
    /// A request takes a list of elements. A message is gathered from chunks and regions without a copy in between, and
    /// scattered at the other end, where the boundaries may be others.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::memory::{Chunk, Pool};
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # let pool = |domain: &ironwarp::ProtectionDomain| -> Result<Pool, Box<dyn std::error::Error>> {
    /// #     Ok(Pool::new(domain.register(Buffer::new(4096)?, Access::all())?, 64))
    /// # };
    /// # let (ours, theirs) = (pool(&client.domain)?, pool(&server.domain)?);
    /// # let take = |pool: &Pool| pool.take().expect("a free chunk");
    /// // The receiver separates a header of four bytes from the rest.
    /// let (mut header, mut body) = (take(&theirs), take(&theirs));
    /// header.set_len(4)?;
    /// server.qp.post_receive(1, &[header.as_sge(), body.as_sge()])?;
    ///
    /// // The sender has the message in three parts.
    /// let mut parts = [take(&ours), take(&ours), take(&ours)];
    /// for (part, bytes) in parts.iter_mut().zip(["SET ", "key=", "value"]) {
    ///     part.set_len(bytes.len())?;
    ///     part.write(0, bytes.as_bytes())?;
    /// }
    /// client.qp.post_send(WorkRequest::send(2, &parts.each_ref().map(Chunk::as_sge)))?;
    ///
    /// let received = server.cq.wait(Duration::from_secs(5))?.success()?;
    /// body.set_len(received.byte_len as usize - header.len())?;
    /// assert_eq!((header.to_vec()?, body.to_vec()?), (b"SET ".to_vec(), b"key=value".to_vec()));
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_sge(&self) -> Sge {
        self.slice(..).expect("`Pool::new` checked the length")
    }

    /// Returns a scatter/gather element for a range of the bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::{AccessError, Pool};
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(64)?, Access::all())?, 64);
    /// # let chunk = pool.take().expect("a free chunk");
    /// assert_eq!(chunk.slice(8..)?.len, 56);
    /// assert_eq!(chunk.slice(8..65), Err(AccessError::OutOfBounds { at: 8, len: 57, size: 64 }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the chunk.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, AccessError> {
        let (at, len) = resolve(range, self.len)?;
        let start = self.start + at;
        self.shared.region.slice(start..start + len)
    }

    /// Returns the remote address of offset `at`, to be sent to a peer that writes or reads there.
    ///
    /// A peer that knows the address can use it until the region is deregistered, even when the chunk has another
    /// owner. Keep the chunk until the peer is done, and give chunks of this pool only to peers that follow this
    /// rule.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Pool;
    /// # use ironwarp::prelude::*;
    /// # let pool = Pool::new(domain.register(Buffer::new(64)?, Access::all())?, 32);
    /// # let first = pool.take().expect("a free chunk");
    /// let chunk = pool.take().expect("a free chunk");
    /// // The second chunk of the pool starts at offset 32 of the region.
    /// assert_eq!(chunk.remote_addr(8)?.offset, 40);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the offset is outside of the chunk.
    pub fn remote_addr(&self, at: usize) -> Result<RemoteAddr, AccessError> {
        self.check_range(at, 0)?;
        self.shared.region.remote_addr(self.start + at)
    }

    /// Checks that the `len` bytes at offset `at` are inside the chunk.
    fn check_range(&self, at: usize, len: usize) -> Result<(), AccessError> {
        check(at, len, self.len)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        lock(&self.shared.free).push(self.start);
    }
}

// Not derived: omits the region and the list of free chunks, which is long.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("tag", &self.shared.region.tag())
            .field("chunk_len", &self.chunk_len())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

// Not derived: omits the pool.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("tag", &self.shared.region.tag())
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use crate::memory::{Access, Buffer};

    /// Returning a chunk must not allocate: the list of free chunks keeps its capacity, which is that of a full list.
    #[test]
    fn returning_chunks_in_any_order_allocates_nothing() {
        let domain = Adapter::new().unwrap().protection_domain();
        let pool = Pool::new(domain.register(Buffer::new(1000).unwrap(), Access::all()).unwrap(), 10);
        let storage = || {
            let free = lock(&pool.shared.free);
            (free.as_ptr(), free.capacity())
        };
        let before = storage();
        let mut chunks: Vec<Chunk> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(chunks.len(), 100);
        chunks.rotate_left(37);
        drop(chunks);
        assert_eq!((pool.available(), storage()), (100, before));
    }
}
