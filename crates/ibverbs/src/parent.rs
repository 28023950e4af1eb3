//! Thread domains and parent domains. A thread domain promises that one thread at a time uses what is made in it. A parent
//! domain is another name for a protection domain, with such a promise, or with functions that a provider would get memory
//! for its queues from: this one has none that the program could provide.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, destroyed, object};
use crate::object::{CObject, Uses, find, publish, take_back};
use crate::pd::{Alias, Pd};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// A thread domain.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Td {
    c: UnsafeCell<ibv_td>,
    /// Its C structure leads there.
    _context: Arc<Context>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Td {
    type C = ibv_td;
}
// SAFETY: as above.
unsafe impl Sync for Td {}
// SAFETY: as above.
unsafe impl Send for Td {}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(find::<Context>(context).and_then(|context| {
        if attr.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask asks for what is not there"));
        }
        let c = UnsafeCell::new(ibv_td { context: context.c() });
        Ok(publish(Td { c, _context: context }, Uses::default()).c())
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    destroyed!(take_back::<Td>(td).map(drop))
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: the caller's. Fields behind the mask are there if it names them.
    object!(find::<Context>(context).and_then(|context| unsafe { create(&context, attr) }))
}

/// # Safety
/// `attr` is the caller's, with the fields that its `comp_mask` names.
unsafe fn create(
    context: &Arc<Context>,
    attr: *mut ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: these are always there.
    let (pd, td, mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
    // In a confidential guest, unprotected memory is for devices; here the kernel's sockets take any.
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    if mask & !known != 0 {
        return Err(Errno::UNSUPPORTED.because("comp_mask asks for what is not there"));
    }
    if mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 {
        // SAFETY: named by the mask. Memory that is got in one way is not given back in another.
        let (alloc, free) = unsafe { ((*attr).alloc, (*attr).free) };
        if alloc.is_some() != free.is_some() {
            return Err(Errno::INVALID);
        }
    }
    let pd = find::<Pd>(pd)?;
    if !Arc::ptr_eq(pd.context(), context) {
        return Err(Errno::INVALID);
    }
    let mut uses = Uses::of(&*pd)?;
    if !td.is_null() {
        uses = uses.and(&*find::<Td>(td)?)?;
    }
    Ok(Pd::new(context, pd.domain(), Alias { uses, single_threaded: !td.is_null() }).c())
}
