//! Entry points for memory regions.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::buf::Buf;
use crate::objects::mr::{self, Mr, Range};
use crate::objects::pd::Pd;
use crate::support::errno::{Errno, destroy_code, function_path, object};
use crate::support::object::{CObject, find};
use ironwarp_wire::Tag;
use std::ffi::{c_int, c_uint, c_void};

/// Registers a range of memory in a protection domain, and returns the new region. With IBV_ACCESS_ZERO_BASED,
/// requests refer to the first byte by address zero, whatever `range` says.
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

/// Registers memory at `addr` to whose first byte requests refer by the address `iova`.
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

/// Registers memory like [`ibv_reg_mr_iova`]. Inline code in `verbs.h` calls this instead of `ibv_reg_mr` and
/// `ibv_reg_mr_iova`, unless it can tell that `access` has no optional flags.
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

/// Registers the memory that `attr` describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    if attr.is_null() {
        return object!(Err(Errno::null("mr_init_attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract, with the fields that its `comp_mask` names.
    object!(unsafe { register_described(pd, attr) })
}

/// Checks the attributes of `ibv_reg_mr_ex`, and registers the memory that they describe.
///
/// # Safety
/// `attr` is valid up to `comp_mask`, with the fields that `comp_mask` names.
unsafe fn register_described(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller guarantees the fields up to the mask.
    let (len, access, mask) = unsafe { ((*attr).length, (*attr).access.cast_unsigned(), (*attr).comp_mask) };
    let file_bits = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    if mask & IBV_REG_MR_MASK_BUF != 0 && mask & file_bits != 0 {
        return Err(Errno::INVALID.because("comp_mask: IBV_REG_MR_MASK_BUF excludes _FD and _FD_OFFSET"));
    }
    if mask & file_bits != 0 {
        return Err(Errno::UNSUPPORTED.because("memory of other devices cannot be registered: copy it"));
    }
    if mask & IBV_REG_MR_MASK_DMAH != 0 {
        return Err(Errno::UNSUPPORTED.because("DMA handles are not supported"));
    }
    if mask & !(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF) != 0 {
        return Err(Errno::UNSUPPORTED.because(format_args!("comp_mask {mask:#x} has unknown bits")));
    }
    if mask & IBV_REG_MR_MASK_ADDR == 0 {
        return Err(Errno::INVALID.because("comp_mask lacks IBV_REG_MR_MASK_ADDR"));
    }
    // SAFETY: the mask names this field, so it exists by the caller's contract.
    let addr = unsafe { (*attr).addr } as u64;
    if mask & IBV_REG_MR_MASK_BUF != 0 {
        // SAFETY: the mask names this field, so it exists by the caller's contract.
        find::<Buf>(unsafe { (*attr).buf })?.check(pd, addr, len)?;
    }
    let start = match mask & IBV_REG_MR_MASK_IOVA {
        0 => addr,
        // SAFETY: the mask names this field, so it exists by the caller's contract.
        _ => unsafe { (*attr).iova },
    };
    register(pd, Range { addr, len, start }, access)
}

/// Registers a range of a buffer from `ibv_alloc_buf`.
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
        rest => Err(Errno::INVALID.because(format_args!("flags has unknown bits {rest:#x}"))),
    });
    // Unlike other verbs, this one returns a code for the step that failed. This code says that the region is
    // unchanged.
    match result {
        Ok(()) => 0,
        Err(errno) => {
            errno.log(function_path!()).set();
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    destroy_code!(mr::destroy(mr))
}

/// Checks that the memory is registered in the domain. The call is a hint to page memory in, which is not necessary:
/// the adapter accesses memory like any thread of the process.
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
    // SAFETY: `list` is not NULL, and has `count` elements by the caller's contract.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let table = pd.context().engine().device().table();
    let known = list.iter().all(|sge| {
        let entry = table.look_up(Tag(sge.lkey));
        entry.is_some_and(|entry| entry.valid && entry.domain == pd.domain())
    });
    if known { 0 } else { libc::ENOENT }
}
