//! Device memory: of an adapter that is made of software, ordinary memory that programs reach through the adapter alone.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, code, destroyed, object};
use crate::mr::{Mr, Range};
use crate::object::{CObject, Uses, find, find_any, publish, take_back};
use crate::pd::Pd;
use crate::query::DEVICE_MEMORY;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Copies begin at multiples of this, and are as long, as on adapters whose memory is behind a bus.
const WORD: u64 = 4;
/// It begins at multiples of a page at most, as a power of two.
const MOST_ALIGNED: u32 = 12;

/// What is allocated in this process, and a number for each.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// The bytes. Peers and the program write them at any time, so there are no references to them.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: NonNull<u8>,
    layout: Layout,
    len: u64,
}

// SAFETY: nobody has references to the memory; whoever copies them takes what it finds, as with any memory that peers
// write.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new(len: usize, log_align: u32) -> Result<Arc<Self>, Errno> {
        let align = 1usize.checked_shl(log_align).filter(|_| log_align <= MOST_ALIGNED);
        let layout = Layout::from_size_align(len, align.ok_or(Errno::INVALID)?);
        let layout = layout.map_err(|_| Errno::INVALID)?;
        let len = len as u64;
        let before = ALLOCATED.fetch_add(len, Ordering::AcqRel);
        if len > DEVICE_MEMORY || before > DEVICE_MEMORY - len {
            ALLOCATED.fetch_sub(len, Ordering::AcqRel);
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: it has a length.
        match NonNull::new(unsafe { alloc_zeroed(layout) }) {
            Some(start) => Ok(Arc::new(Self { start, layout, len })),
            None => {
                ALLOCATED.fetch_sub(len, Ordering::AcqRel);
                Err(Errno::NO_MEMORY)
            }
        }
    }

    fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Where a copy of so many bytes begins, if all of them are within.
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let len = len as u64;
        if !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
            return Err(Errno::INVALID);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                let offset = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
                // SAFETY: within the memory.
                Ok(unsafe { self.start().add(offset) })
            }
            _ => Err(Errno(libc::EFAULT)),
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.len, Ordering::AcqRel);
        // SAFETY: allocated with this layout, and nobody has it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Device memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Dm {
    c: UnsafeCell<ibv_dm>,
    bytes: Arc<Bytes>,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Dm {
    type C = ibv_dm;
}
// SAFETY: as above.
unsafe impl Sync for Dm {}
// SAFETY: as above.
unsafe impl Send for Dm {}

impl Dm {
    pub(crate) fn new(context: Arc<Context>, bytes: Arc<Bytes>, handle: u32) -> Arc<Self> {
        let mut c = ibv_dm::zeroed();
        c.context = context.c();
        c.memcpy_to_dm = Some(memcpy_to_dm);
        c.memcpy_from_dm = Some(memcpy_from_dm);
        c.handle = handle;
        publish(Self { c: UnsafeCell::new(c), bytes, context }, Uses::default())
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: a word that is never written again.
        unsafe { (*self.c.get()).handle }
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    // A child may have memory of a device that its parent opened: it is nothing but memory.
    object!(find_any::<Context>(context).and_then(|context| {
        if attr.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask asks for what is not there"));
        }
        if attr.length == 0 {
            return Err(Errno::INVALID);
        }
        let bytes = Bytes::new(attr.length, attr.log_align_req)?;
        Ok(Dm::new(context, bytes, NUMBER.fetch_add(1, Ordering::Relaxed)).c())
    }))
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    destroyed!(take_back::<Dm>(dm).map(drop))
}

/// A region of device memory. Its addresses count from the beginning of the memory, or of the region.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    object!(find::<Pd>(pd).and_then(|pd| {
        let dm = find::<Dm>(dm)?;
        // Programs have no address of it.
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::INVALID);
        }
        let end = offset.checked_add(length as u64).ok_or(Errno::INVALID)?;
        if !offset.is_multiple_of(WORD) || end > dm.bytes.len {
            return Err(Errno::INVALID);
        }
        let range = Range { addr: dm.bytes.start() as u64 + offset, len: length, start: 0 };
        let mr = Mr::new(pd, range, access, Some(&dm))?;
        mr.hide_address();
        Ok(mr.c())
    }))
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, len: usize) -> c_int {
    code!(find::<Dm>(dm).and_then(|dm| {
        let to = dm.bytes.place(offset, len)?;
        // SAFETY: the caller's memory has so many bytes, and ours was checked.
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
