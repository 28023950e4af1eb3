//! Entry points for device memory.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::dm::{Dm, WORD};
use crate::objects::mr::{Mr, Range};
use crate::objects::pd::Pd;
use crate::support::errno::{Errno, destroy_code, object};
use crate::support::object::{CObject, destroy_object, find, find_any};
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    // `find_any`: a forked child may allocate from a device that its parent opened, because this needs no thread of
    // the adapter.
    object!(find_any::<Context>(context).and_then(|context| {
        if attr.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask has bits that are not supported"));
        }
        if attr.length == 0 {
            return Err(Errno::INVALID);
        }
        Dm::allocate(context, attr.length, attr.log_align_req).map(|dm| dm.c())
    }))
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    destroy_code!(destroy_object::<Dm>(dm).map(drop))
}

/// Registers device memory. Requests refer to the memory by its offset in the region, because the program does not know
/// its address, so the program must pass IBV_ACCESS_ZERO_BASED.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    object!(find::<Pd>(pd).and_then(|pd| {
        let dm = find::<Dm>(dm)?;
        pd.context().check_same_adapter(dm.context(), "device memory")?;
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::INVALID);
        }
        let end = offset.checked_add(length as u64).ok_or(Errno::INVALID)?;
        if !offset.is_multiple_of(WORD) || end > dm.bytes().len() {
            return Err(Errno::INVALID);
        }
        let range = Range { addr: dm.bytes().start() as u64 + offset, len: length, start: 0 };
        let mr = Mr::new(pd, range, access, Some(&dm))?;
        mr.hide_address();
        Ok(mr.c())
    }))
}
