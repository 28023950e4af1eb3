//! Device memory. Because the adapter is software, it is ordinary memory that programs access only through
//! the adapter.
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

/// Granularity of copies, as on adapters whose memory is behind a bus.
pub(crate) const WORD: u64 = 4;
/// Maximum alignment, as a power of two: a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Bytes allocated in this process, and the next handle.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// The memory. Peers and the program write to it at any time, so no reference to it may exist.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: NonNull<u8>,
    layout: Layout,
    len: u64,
}

// SAFETY: no references to the memory exist. A copy that races with a write gets some mixture of bytes, as
// with any memory that peers write to.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new(len: usize, log_align: u32) -> Result<Arc<Self>, Errno> {
        let align = 1usize.checked_shl(log_align).filter(|_| log_align <= MAX_LOG_ALIGN);
        let layout = Layout::from_size_align(len, align.ok_or(Errno::INVALID)?);
        let layout = layout.map_err(|_| Errno::INVALID)?;
        let len = len as u64;
        let before = ALLOCATED.fetch_add(len, Ordering::AcqRel);
        if len > DEVICE_MEMORY || before > DEVICE_MEMORY - len {
            ALLOCATED.fetch_sub(len, Ordering::AcqRel);
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: the size is not zero.
        match NonNull::new(unsafe { alloc_zeroed(layout) }) {
            Some(start) => Ok(Arc::new(Self { start, layout, len })),
            None => {
                ALLOCATED.fetch_sub(len, Ordering::AcqRel);
                Err(Errno::NO_MEMORY)
            }
        }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The start of a copy of `len` bytes, if all of them are within the memory.
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let len = len as u64;
        if !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
            return Err(Errno::INVALID);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                let offset = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
                // SAFETY: within the memory, as just checked.
                Ok(unsafe { self.start().add(offset) })
            }
            _ => Err(Errno(libc::EFAULT)),
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.len, Ordering::AcqRel);
        // SAFETY: allocated with this layout, and no longer in use.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Device memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Dm {
    c: CCell<ibv_dm>,
    bytes: Arc<Bytes>,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Dm {
    type C = ibv_dm;
}

impl Dm {
    /// Allocates `len` bytes, aligned to a power of two.
    pub(crate) fn allocate(context: Arc<Context>, len: usize, log_align: u32) -> Result<Arc<Self>, Errno> {
        let bytes = Bytes::new(len, log_align)?;
        Ok(Self::new(context, bytes, NUMBER.fetch_add(1, Ordering::Relaxed)))
    }

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

    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: a field that is never written again.
        unsafe { (*self.c.get()).handle }
    }
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, len: usize) -> c_int {
    code!(find::<Dm>(dm).and_then(|dm| {
        let to = dm.bytes.place(offset, len)?;
        // SAFETY: the program's memory has that many bytes by the caller's contract, and `place` checked the
        // device memory.
        unsafe { std::ptr::copy(from.cast::<u8>(), to, len) };
        Ok(())
    }))
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, len: usize) -> c_int {
    code!(find::<Dm>(dm).and_then(|dm| {
        let from = dm.bytes.place(offset, len)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy(from, to.cast::<u8>(), len) };
        Ok(())
    }))
}
