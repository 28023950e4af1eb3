//! Device memory. Because the adapter is software, device memory is ordinary memory that programs access only through
//! calls of the adapter.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::limits::DEVICE_MEMORY;
use crate::support::errno::{Errno, code};
use crate::support::object::{CCell, CObject, Uses, find, publish};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Granularity of offsets and copies, in bytes, as on adapters whose memory is behind a bus.
pub(crate) const WORD: u64 = 4;
/// Logarithm of the maximum alignment, which is a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Number of bytes of device memory that are allocated in this process.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// The handle of the next device memory object.
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);

/// An allocation of device memory. Peers and the program write to the memory at any time, so no reference to it may
/// exist.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: NonNull<u8>,
    layout: Layout,
    /// Length in bytes.
    len: u64,
}

// SAFETY: no references to the memory exist. A copy that races with a write gets some mixture of bytes, as
// with any memory that peers write to.
unsafe impl Sync for Bytes {}
// SAFETY: the memory comes from the global allocator, so any thread may access and free it.
unsafe impl Send for Bytes {}

impl Bytes {
    /// Allocates `len` zeroed bytes, which must be more than zero, aligned to `2^log_align`. Fails with EINVAL for an
    /// alignment that is not supported, and with ENOMEM if not enough device memory is left.
    fn new(len: usize, log_align: u32) -> Result<Arc<Self>, Errno> {
        let align = 1usize.checked_shl(log_align).filter(|_| log_align <= MAX_LOG_ALIGN);
        let layout = Layout::from_size_align(len, align.ok_or(Errno::INVALID)?);
        let layout = layout.map_err(|_| Errno::INVALID)?;
        let len = len as u64;
        // Reserve first and check the previous count, so that two threads cannot both get the last bytes.
        let before = ALLOCATED.fetch_add(len, Ordering::AcqRel);
        // The first comparison keeps the subtraction from wrapping.
        if len > DEVICE_MEMORY || before > DEVICE_MEMORY - len {
            ALLOCATED.fetch_sub(len, Ordering::AcqRel);
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: the size is not zero: `alloc_dm`, the only caller through `Dm::allocate`, refuses that.
        match NonNull::new(unsafe { alloc_zeroed(layout) }) {
            Some(start) => Ok(Arc::new(Self { start, layout, len })),
            None => {
                ALLOCATED.fetch_sub(len, Ordering::AcqRel);
                Err(Errno::NO_MEMORY)
            }
        }
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of `len` bytes at `offset`. Fails with EINVAL if either is not a multiple of [`WORD`], and
    /// with EFAULT if the bytes exceed the allocation.
    fn range_start(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let len = len as u64;
        if !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
            return Err(Errno::INVALID);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                let offset = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
                // SAFETY: `offset` is at most the length of the allocation, as just checked.
                Ok(unsafe { self.start().add(offset) })
            }
            _ => Err(Errno(libc::EFAULT)),
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.len, Ordering::AcqRel);
        // SAFETY: `start` was allocated with this layout. Each region in this memory holds a reference to `self` until
        // it is deregistered, so no peer accesses the memory.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A device memory object. Imported objects share their bytes with others.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Dm {
    c: CCell<ibv_dm>,
    bytes: Arc<Bytes>,
    context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Dm {
    type C = ibv_dm;
}

impl Dm {
    /// Allocates device memory of `len` bytes, aligned to `2^log_align`. Fails like `Bytes::new`.
    pub(crate) fn allocate(context: Arc<Context>, len: usize, log_align: u32) -> Result<Arc<Self>, Errno> {
        let bytes = Bytes::new(len, log_align)?;
        Ok(Self::new(context, bytes, NEXT_HANDLE.fetch_add(1, Ordering::Relaxed)))
    }

    /// Creates an object for existing memory.
    pub(crate) fn new(context: Arc<Context>, bytes: Arc<Bytes>, handle: u32) -> Arc<Self> {
        let mut c = ibv_dm::zeroed();
        c.context = context.c();
        c.memcpy_to_dm = Some(memcpy_to_dm);
        c.memcpy_from_dm = Some(memcpy_from_dm);
        c.handle = handle;
        publish(Self { c: CCell::new(c), bytes, context }, Uses::default())
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Returns the number by which the memory can be imported.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: `c` is valid, and nothing writes this field after publication.
        unsafe { (*self.c.get()).handle }
    }
}

/// Copies from the program's memory to device memory.
unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, len: usize) -> c_int {
    code!(find::<Dm>(dm).and_then(|dm| {
        let to = dm.bytes.range_start(offset, len)?;
        // SAFETY: `from` has `len` bytes by the caller's contract, and so has `to`, as `range_start` checked.
        unsafe { std::ptr::copy(from.cast::<u8>(), to, len) };
        Ok(())
    }))
}

/// Copies from device memory to the program's memory.
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, len: usize) -> c_int {
    code!(find::<Dm>(dm).and_then(|dm| {
        let from = dm.bytes.range_start(offset, len)?;
        // SAFETY: `to` has `len` bytes by the caller's contract, and so has `from`, as `range_start` checked.
        unsafe { std::ptr::copy(from, to.cast::<u8>(), len) };
        Ok(())
    }))
}
