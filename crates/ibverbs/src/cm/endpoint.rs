//! Endpoints: synchronous ids with everything they need, created in one call.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::{Id, Kind, destroy};
use super::qp::{create_simple, destroy_qp, destroy_srq};
use super::resolve::{rdma_bind_addr, resolve_addresses, resolve_route};
use super::synchronous::wait_event;
use crate::abi::*;
use crate::support::cancel::{CancelGuard, without_cancellation};
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{CObject, find, put};
use std::ffi::c_int;
use std::ptr;

/// # Safety
/// `info` is valid, and `init` is NULL or valid.
unsafe fn prepare(
    c: *mut rdma_cm_id,
    info: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller, here and below.
    let (flags, qp_type, from, to) = unsafe {
        ((*info).ai_flags, (*info).ai_qp_type.cast_unsigned(), (*info).ai_src_addr, (*info).ai_dst_addr)
    };
    if flags & RAI_PASSIVE != 0 {
        // SAFETY: as above; the program's structure.
        unsafe {
            if rdma_bind_addr(c, from) != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            let id = find::<Id>(c)?;
            if (*id.c()).pd.is_null() || !pd.is_null() {
                (*id.c()).pd = pd;
            }
            if let Some(init) = init.as_mut() {
                init.qp_type = qp_type;
                *id.template.get() = Some(*init);
            }
        }
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { resolve_addresses(c, from, to)? };
    resolve_route(c)?;
    if !init.is_null() {
        // SAFETY: as above.
        unsafe {
            (*init).qp_type = qp_type;
            without_cancellation(|| create_simple(c, pd, init))?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || info.is_null() {
        return minus_one!(Err(Errno::INVALID));
    }
    // SAFETY: not NULL, and valid by the caller's contract.
    let (port_space, qp_type) =
        unsafe { ((*info).ai_port_space.cast_unsigned(), (*info).ai_qp_type.cast_unsigned()) };
    let new = || Id::new(ptr::null_mut(), ptr::null_mut(), Kind { port_space, qp_type }).map(|id| id.c());
    let made = match without_cancellation(new) {
        Ok(made) => made,
        Err(errno) => return minus_one!(Err(errno)),
    };
    // SAFETY: as above.
    let prepared = unsafe { prepare(made, info, pd, init) };
    match prepared {
        Ok(()) => {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(id, made) };
            0
        }
        Err(errno) => {
            destroy_all(made);
            minus_one!(Err(errno))
        }
    }
}

fn destroy_all(c: *mut rdma_cm_id) {
    let _guard = CancelGuard::new();
    let Ok(id) = find::<Id>(c) else { return };
    destroy_qp(&id);
    destroy_srq(&id);
    if let Err(errno) = destroy(c) {
        errno.set();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    destroy_all(id);
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return minus_one!(Err(Errno::null("id")));
    }
    match next_request(listen) {
        Ok(new) => {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(id, new) };
            0
        }
        Err(errno) => minus_one!(Err(errno)),
    }
}

/// Waits for the next request of a peer. The thread may be cancelled here.
fn next_request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let (listener, event) = wait_event(listen)?.ok_or(Errno::INVALID)?;
    // SAFETY: the event was just taken, and no other call uses these structures meanwhile.
    unsafe {
        let keep = |errno| {
            (*listener.c()).event = event;
            Err(errno)
        };
        if (*event).status != 0 {
            return keep(Errno((*event).status.abs()));
        }
        if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
            return keep(Errno::INVALID);
        }
        let new = (*event).id;
        if let Some(mut init) = *listener.template.get()
            && let Err(errno) = without_cancellation(|| create_simple(new, (*listener.c()).pd, &raw mut init))
        {
            return keep(errno);
        }
        (*new).event = event;
        Ok(new)
    }
}
