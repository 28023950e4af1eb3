//! Work requests for RDMA Writes, RDMA Reads and atomic operations.

use super::request::{WorkRequest, memory};
use ironwarp_rnic::queue::{Data, Operation, Sge};
use ironwarp_wire::{AtomicOp, RemoteAddr};

impl WorkRequest {
    /// Creates a request that writes registered memory to a remote address (RDMA Write).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let (ours, theirs) = (client.region.slice(..5)?, server.region.remote_addr(100)?);
    /// client.region.write(0, b"hello")?;
    /// client.qp.post_send(WorkRequest::write(1, &[ours], theirs))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(id: u64, list: &[Sge], to: RemoteAddr) -> Self {
        Self::new(id, Operation::Write(to), memory(list))
    }

    /// Creates a request that writes `bytes` to a remote address. The bytes are copied now, as with
    /// [`send_inline`](Self::send_inline).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"hello", server.region.remote_addr(100)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_inline(id: u64, bytes: &[u8], to: RemoteAddr) -> Self {
        Self::new(id, Operation::Write(to), Data::Inline(bytes.into()))
    }

    /// Creates a request that reads from a remote address into registered memory (RDMA Read).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// server.region.write(100, b"hello")?;
    /// let (ours, theirs) = (client.region.slice(..5)?, server.region.remote_addr(100)?);
    /// client.qp.post_send(WorkRequest::read(1, &[ours], theirs))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(id: u64, list: &[Sge], from: RemoteAddr) -> Self {
        Self::new(id, Operation::Read(from), memory(list))
    }

    /// Creates a request that adds `add` to the 64-bit word at a remote address, atomically with respect to other
    /// atomic operations of the remote adapter. The previous value of the word is written to `result`, which must have
    /// 8 bytes. The word is in the peer's byte order, and its offset must be a multiple of 8: otherwise the peer ends
    /// the connection.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::WorkRequest;
    /// server.region.write(0, &40_u64.to_ne_bytes())?;
    /// let (result, word) = (client.region.slice(..8)?, server.region.remote_addr(0)?);
    /// client.qp.post_send(WorkRequest::fetch_add(1, result, word, 2))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(client.region.to_vec()?[..8], 40_u64.to_ne_bytes());
    /// assert_eq!(server.region.to_vec()?[..8], 42_u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fetch_add(id: u64, result: Sge, word: RemoteAddr, add: u64) -> Self {
        Self::atomic(id, result, word, AtomicOp::FetchAdd { add, mask: 0 })
    }

    /// Creates a request that replaces the 64-bit word at a remote address with `swap` if the word equals `compare`. In
    /// any case the previous value of the word is written to `result`. Atomicity and byte order are as for
    /// [`fetch_add`](Self::fetch_add).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::WorkRequest;
    /// let (result, word) = (client.region.slice(..8)?, server.region.remote_addr(0)?);
    /// client.qp.post_send(WorkRequest::compare_swap(1, result, word, 0, 7).unsignaled())?;
    /// client.qp.post_send(WorkRequest::compare_swap(2, result, word, 0, 8))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(client.region.to_vec()?[..8], 7_u64.to_ne_bytes(), "the second one finds 7");
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_swap(id: u64, result: Sge, word: RemoteAddr, compare: u64, swap: u64) -> Self {
        let (swap_mask, compare_mask) = (u64::MAX, u64::MAX);
        Self::atomic(id, result, word, AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask })
    }

    /// Creates a request for an atomic operation with the masks of RFC 7306 §5.1, for several counters in one word, or
    /// for some bits of the word. `result`, atomicity and byte order are as for [`fetch_add`](Self::fetch_add).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::{AtomicOp, WorkRequest};
    /// server.region.write(0, &0x0000_00ff_0000_00ff_u64.to_ne_bytes())?;
    /// let (result, word) = (client.region.slice(..8)?, server.region.remote_addr(0)?);
    /// // Two 32-bit counters: the mask stops the carry between them.
    /// let op = AtomicOp::FetchAdd { add: 0xffff_ff01_0000_0001, mask: 0x8000_0000_8000_0000 };
    /// client.qp.post_send(WorkRequest::atomic(1, result, word, op))?;
    /// client.cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(server.region.to_vec()?[..8], 0x0000_0000_0000_0100_u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn atomic(id: u64, result: Sge, word: RemoteAddr, op: AtomicOp) -> Self {
        Self::new(id, Operation::Atomic { target: word, op }, memory(&[result]))
    }
}
