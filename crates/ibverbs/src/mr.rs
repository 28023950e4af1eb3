//! Memory regions. Registration pins nothing, so every region behaves as one that is paged on demand does: it names addresses, and
//! whatever is mapped there when it is used is what peers with its tag reach (docs/programs.md).
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::buf::Buf;
use crate::dm::{Bytes as DeviceMemory, Dm};
use crate::errno::{Errno, destroyed, here, object};
use crate::object::{CObject, Uses, begin_destroy, find, publish};
use crate::pd::Pd;
use crate::sync::lock;
use ironwarp_rnic::memory::{Bytes, Memory, Reregistration, Rights, Translation};
use ironwarp_wire::Tag;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB;

/// A memory region.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    c: UnsafeCell<ibv_mr>,
    state: Mutex<State>,
    /// Device memory that it is a region of.
    memory: Option<Arc<DeviceMemory>>,
}

#[derive(Debug)]
struct State {
    pd: Arc<Pd>,
    tag: Tag,
    access: c_uint,
}

// SAFETY: the C structure comes first. It is written by registration and re-registration, whose callers must not use the
// region meanwhile.
unsafe impl CObject for Mr {
    type C = ibv_mr;
}
// SAFETY: as above.
unsafe impl Sync for Mr {}
// SAFETY: as above.
unsafe impl Send for Mr {}

/// Where a region is: in memory, and as requests name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) start: u64,
}

impl Mr {
    /// Registers memory. `dm` is what it is a part of, if that is device memory.
    pub(crate) fn new(
        pd: Arc<Pd>,
        range: Range,
        access: c_uint,
        dm: Option<&Dm>,
    ) -> Result<Arc<Self>, Errno> {
        let Range { addr, len, .. } = range;
        let mut uses = Uses::of(&*pd)?;
        if let Some(dm) = dm {
            uses = uses.and(dm)?;
        }
        let tag = register_range(&pd, range, access)?;
        let c = ibv_mr {
            context: pd.context().c(),
            pd: pd.c(),
            addr: addr as *mut c_void,
            length: len,
            handle: tag.0,
            lkey: tag.0,
            rkey: tag.0,
        };
        let state = Mutex::new(State { pd, tag, access });
        let memory = dm.map(|dm| Arc::clone(dm.bytes()));
        Ok(publish(Self { c: UnsafeCell::new(c), state, memory }, uses))
    }

    /// The same region in another context or domain of the same device: `tag` is its own.
    pub(crate) fn again(pd: Arc<Pd>, of: &Self) -> Result<Arc<Self>, Errno> {
        let uses = Uses::of(&*pd)?;
        let (tag, access) = {
            let state = of.state();
            (state.tag, state.access)
        };
        // SAFETY: C structures of regions are plain data, which their owners do not change meanwhile.
        let mut c = unsafe { *of.c.get() };
        (c.context, c.pd, c.addr) = (pd.context().c(), pd.c(), std::ptr::null_mut());
        let state = Mutex::new(State { pd, tag, access });
        Ok(publish(Self { c: UnsafeCell::new(c), state, memory: of.memory.clone() }, uses))
    }

    /// The program is not to know where it is.
    pub(crate) fn hide_address(&self) {
        // SAFETY: the C structure is ours, and nobody else has it yet.
        unsafe { (*self.c.get()).addr = std::ptr::null_mut() };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.state().pd)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.state().tag
    }

    fn reregister(&self, flags: c_uint, pd: *mut ibv_pd, range: Range, access: c_int) -> Result<(), Errno> {
        let mut to = Reregistration { keep_tag: true, ..Reregistration::default() };
        let other = match flags & IBV_REREG_MR_CHANGE_PD {
            0 => None,
            _ => Some(find::<Pd>(pd)?),
        };
        to.domain = other.as_ref().map(|pd| pd.domain());
        let mut uses = other.as_deref().map_or(Ok(Uses::default()), Uses::of)?;
        let mut state = self.state();
        let mut new_access = state.access;
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            new_access = access.cast_unsigned();
            to.rights = Some(rights(new_access)?);
        }
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            let len = range.len as u64;
            let translation = Arc::new(
                Translation::direct(range.addr, len).map_err(|error| Errno::INVALID.because(error))?,
            );
            to.bytes = Some(Bytes { start: range.start, len, translation });
        }
        state.tag = state.pd.context().engine().device().reregister(state.tag, to)?;
        state.access = new_access;
        if let Some(new_pd) = other {
            uses.exchange(self, &*state.pd);
            state.pd = new_pd;
        }
        // SAFETY: the C structure is ours, and the caller does not use the region during the call.
        let c = unsafe { &mut *self.c.get() };
        (c.lkey, c.rkey, c.pd) = (state.tag.0, state.tag.0, state.pd.c());
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            (c.addr, c.length) = (range.addr as *mut c_void, range.len);
        }
        Ok(())
    }
}

/// Makes an entry of the adapter's table of it.
fn register_range(pd: &Pd, range: Range, access: c_uint) -> Result<Tag, Errno> {
    let Range { addr, len, start } = range;
    let rights = rights(access)?;
    let device = pd.context().engine().device();
    if len == 0 {
        // Nothing to be reached, but a region.
        return Ok(device.table().allocate(pd.domain())?);
    }
    let on_demand = access & IBV_ACCESS_ON_DEMAND != 0;
    // All memory, whatever comes to be mapped there, is a region on demand alone.
    if (addr, len) == (0, usize::MAX) && !on_demand {
        return Err(Errno::INVALID.because("a region of all memory needs IBV_ACCESS_ON_DEMAND"));
    }
    let translation =
        Arc::new(Translation::direct(addr, len as u64).map_err(|error| Errno::INVALID.because(error))?);
    let described = Memory { start, len: len as u64, rights, one_touch: false, translation };
    match on_demand {
        true => Ok(device.register_on_demand(pd.domain(), described)?),
        false => Ok(device.register(pd.domain(), described)?),
    }
}

/// What the adapter calls what C asks for. Local reading is always allowed, as on every adapter.
pub(crate) fn rights(access: c_uint) -> Result<Rights, Errno> {
    let asked = access & !IBV_ACCESS_OPTIONAL_RANGE;
    let flush = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;
    if asked & !(KNOWN | flush) != 0 {
        return Err(Errno::INVALID.because(format_args!("access {access:#x} has bits that are unknown")));
    }
    if asked & flush != 0 {
        return Err(Errno::UNSUPPORTED.because("access: there are no flush operations"));
    }
    let mut rights = Rights::LOCAL_READ;
    rights.set(Rights::LOCAL_WRITE, asked & IBV_ACCESS_LOCAL_WRITE != 0);
    rights.set(Rights::BIND, asked & IBV_ACCESS_MW_BIND != 0);
    rights |= remote_rights(asked);
    // The verbs have it that what peers may write, local requests may as well.
    let writable = asked & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if writable && !rights.contains(Rights::LOCAL_WRITE) {
        return Err(
            Errno::INVALID.because("access: IBV_ACCESS_REMOTE_WRITE and _ATOMIC need IBV_ACCESS_LOCAL_WRITE")
        );
    }
    Ok(rights)
}

/// The part of it that is for peers.
pub(crate) fn remote_rights(access: c_uint) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::REMOTE_WRITE, access & IBV_ACCESS_REMOTE_WRITE != 0);
    rights.set(Rights::REMOTE_READ, access & IBV_ACCESS_REMOTE_READ != 0);
    rights.set(Rights::REMOTE_ATOMIC, access & IBV_ACCESS_REMOTE_ATOMIC != 0);
    rights
}

fn register(pd: *mut ibv_pd, range: Range, access: c_uint) -> Result<*mut ibv_mr, Errno> {
    find::<Pd>(pd).and_then(|pd| {
        if range.len == 0 {
            return Err(Errno::INVALID.because("length is 0"));
        }
        let start = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { range.start };
        Mr::new(pd, Range { start, ..range }, access, None).map(|mr| mr.c())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr {
    let addr = addr as u64;
    object!(register(pd, Range { addr, len, start: addr }, access.cast_unsigned()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    object!(register(pd, Range { addr: addr as u64, len, start: iova }, access.cast_unsigned()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    object!(register(pd, Range { addr: addr as u64, len, start: iova }, access))
}

/// Registers what a structure describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    if attr.is_null() {
        return object!(Err(Errno::null("mr_init_attr")));
    }
    // SAFETY: the caller's, with the fields that its `comp_mask` names.
    object!(unsafe { register_described(pd, attr) })
}

/// # Safety
/// `attr` is the caller's, with the fields that its `comp_mask` names.
unsafe fn register_described(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: these are always there.
    let (len, access, mask) = unsafe { ((*attr).length, (*attr).access.cast_unsigned(), (*attr).comp_mask) };
    let of_file = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    if mask & IBV_REG_MR_MASK_BUF != 0 && mask & of_file != 0 {
        return Err(Errno::INVALID.because("comp_mask: IBV_REG_MR_MASK_BUF excludes _FD and _FD_OFFSET"));
    }
    if mask & of_file != 0 {
        return Err(Errno::UNSUPPORTED.because("no memory of other devices can be registered: copy it"));
    }
    if mask & IBV_REG_MR_MASK_DMAH != 0 {
        return Err(Errno::UNSUPPORTED.because("there are no DMA handles"));
    }
    if mask & !(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF) != 0 {
        return Err(Errno::UNSUPPORTED.because(format_args!("comp_mask has unknown bits: {mask:#x}")));
    }
    if mask & IBV_REG_MR_MASK_ADDR == 0 {
        return Err(Errno::INVALID.because("comp_mask lacks IBV_REG_MR_MASK_ADDR"));
    }
    // SAFETY: named by the mask, here and below.
    let addr = unsafe { (*attr).addr } as u64;
    if mask & IBV_REG_MR_MASK_BUF != 0 {
        // SAFETY: as above.
        find::<Buf>(unsafe { (*attr).buf })?.check(pd, addr, len)?;
    }
    let start = match mask & IBV_REG_MR_MASK_IOVA {
        0 => addr,
        // SAFETY: as above.
        _ => unsafe { (*attr).iova },
    };
    register(pd, Range { addr, len, start }, access)
}

/// Registers memory of `ibv_alloc_buf`, or a part of it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let addr = addr as u64;
    object!(find::<Buf>(buf).and_then(|buf| {
        buf.check(pd, addr, len)?;
        register(pd, Range { addr, len, start: addr }, access.cast_unsigned())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let (addr, flags) = (addr as u64, flags.cast_unsigned());
    let result = find::<Mr>(mr).and_then(|mr| match flags & !known {
        0 => mr.reregister(flags, pd, Range { addr, len, start: addr }, access),
        rest => Err(Errno::INVALID.because(format_args!("flags has bits that are unknown: {rest:#x}"))),
    });
    // This verb alone says where it failed. A refused change leaves the region as it was.
    match result {
        Ok(()) => 0,
        Err(errno) => {
            errno.told(here!()).set();
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    destroyed!(deregister(mr))
}

fn deregister(c: *mut ibv_mr) -> Result<(), Errno> {
    let mr = begin_destroy::<Mr>(c)?;
    {
        let state = mr.state();
        state.pd.context().engine().device().table().deregister(state.tag)?;
    }
    mr.finish();
    Ok(())
}

/// A hint to page memory in. All of it is pageable, so there is nothing to do but to look whether it is registered.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    _flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        return Errno::UNSUPPORTED.0;
    }
    let Ok(pd) = find::<Pd>(pd) else { return Errno::INVALID.0 };
    if list.is_null() || count == 0 {
        return Errno::INVALID.0;
    }
    // SAFETY: the caller's list has so many elements.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let table = pd.context().engine().device().table();
    let known = list.iter().all(|sge| {
        let entry = table.look_up(Tag(sge.lkey));
        entry.is_some_and(|entry| entry.valid && entry.domain == pd.domain())
    });
    if known { 0 } else { libc::ENOENT }
}
