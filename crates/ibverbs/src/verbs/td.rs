//! Entry points for thread domains and parent domains. By creating objects in a thread domain, a program promises that
//! one thread at a time uses them. A parent domain is an alias of a protection domain, with a thread domain or with
//! functions by which a provider allocates memory for its queues. This provider does not call these functions.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::pd::{Alias, Pd};
use crate::objects::td::Td;
use crate::support::errno::{Errno, destroy_code, object};
use crate::support::object::{CObject, Uses, destroy_object, find};
use std::ffi::c_int;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(find::<Context>(context).and_then(|context| {
        if attr.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask has bits that are not supported"));
        }
        Ok(Td::new(context).c())
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    destroy_code!(destroy_object::<Td>(td).map(drop))
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract. Fields behind the mask exist if the mask names them.
    object!(find::<Context>(context).and_then(|context| unsafe { create(&context, attr) }))
}

/// Creates a parent domain.
///
/// # Safety
/// `attr` is valid up to `comp_mask`, with the fields that `comp_mask` names.
unsafe fn create(
    context: &Arc<Context>,
    attr: *mut ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: the caller guarantees the fields up to the mask.
    let (pd, td, mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
    // ALLOW_CC_UNPROTECTED_ALLOC is for devices that cannot access the protected memory of a confidential guest. Here
    // the kernel's sockets access any memory, so the flag has no effect.
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    if mask & !known != 0 {
        return Err(Errno::UNSUPPORTED.because("comp_mask has bits that are not supported"));
    }
    if mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 {
        // SAFETY: the mask names both fields, so they exist by the caller's contract.
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
        let td = find::<Td>(td)?;
        context.check_same_adapter(td.context(), "thread domain")?;
        uses = uses.and(&*td)?;
    }
    Ok(Pd::new(context, pd.domain(), Alias { uses, single_threaded: !td.is_null() }).c())
}
