//! Endpoints: synchronous ids that `rdma_create_ep` creates, resolves or binds, and gives a queue pair in one
//! call.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::{Id, Kind, destroy};
use super::qp::{create_qp_from_init_attr, destroy_qp, destroy_srq};
use super::resolve::{rdma_bind_addr, resolve_addresses, resolve_route};
use super::synchronous::wait_event;
use crate::abi::*;
use crate::support::cancel::{CancelGuard, without_cancellation};
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{CObject, find, put};
use std::ffi::c_int;
use std::ptr;

/// Prepares a new id as `info` says. A passive id is bound, and keeps the attributes of the queue pairs for its
/// peers. An active one gets a resolved address and route, and a queue pair if `init` is not NULL.
///
/// # Safety
/// `info` is valid, and `init` is NULL or valid.
unsafe fn prepare(
    c: *mut rdma_cm_id,
    info: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: `info` is valid by the caller's contract.
    let (flags, qp_type, from, to) = unsafe {
        ((*info).ai_flags, (*info).ai_qp_type.cast_unsigned(), (*info).ai_src_addr, (*info).ai_dst_addr)
    };
    if flags & RAI_PASSIVE != 0 {
        // SAFETY: the address in `info` and `init` are NULL or valid by the caller's contract. `id` keeps its
        // structure alive, and no other call knows the id yet.
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
    // SAFETY: the addresses in `info` are NULL or valid by the caller's contract.
    unsafe { resolve_addresses(c, from, to)? };
    resolve_route(c)?;
    if !init.is_null() {
        // SAFETY: not NULL, and valid by the caller's contract.
        unsafe {
            (*init).qp_type = qp_type;
            without_cancellation(|| create_qp_from_init_attr(c, pd, init))?;
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
    let created = match without_cancellation(new) {
        Ok(created) => created,
        Err(errno) => return minus_one!(Err(errno)),
    };
    // SAFETY: `info` is not NULL, and both are valid by the caller's contract.
    let prepared = unsafe { prepare(created, info, pd, init) };
    match prepared {
        Ok(()) => {
            // SAFETY: not NULL, and valid for a write by the caller's contract.
            unsafe { put(id, created) };
            0
        }
        Err(errno) => {
            destroy_all(created);
            minus_one!(Err(errno))
        }
    }
}

/// Destroys an id with its queue pair and its shared receive queue. Does nothing if there is no such id. Sets errno if
/// the id cannot be destroyed.
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

/// Waits for the next request of a peer, and writes the new id for it to `id`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return minus_one!(Err(Errno::null("id")));
    }
    match wait_request(listen) {
        Ok(new) => {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(id, new) };
            0
        }
        Err(errno) => minus_one!(Err(errno)),
    }
}

/// Waits for the next request of a peer, and returns the new id for it, with a queue pair if the listening
/// endpoint has attributes for one. EINVAL if the listening id is not synchronous. The thread may be cancelled
/// while it waits.
fn wait_request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let (listener, event) = wait_event(listen)?.ok_or(Errno::INVALID)?;
    // SAFETY: `listener` keeps its structure alive, and calls on one id take turns (see `Id`). The event and its
    // id are valid until the event is acknowledged, which only a later call on one of the ids does.
    unsafe {
        // The listening id keeps the event of a failed call until the next call.
        let fail = |errno| {
            (*listener.c()).event = event;
            Err(errno)
        };
        if (*event).status != 0 {
            return fail(Errno((*event).status.abs()));
        }
        if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
            return fail(Errno::INVALID);
        }
        let new = (*event).id;
        if let Some(mut init) = *listener.template.get()
            && let Err(errno) =
                without_cancellation(|| create_qp_from_init_attr(new, (*listener.c()).pd, &raw mut init))
        {
            return fail(errno);
        }
        (*new).event = event;
        Ok(new)
    }
}
