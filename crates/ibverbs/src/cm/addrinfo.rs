//! Names and services become addresses, through the C library's resolver.
#![expect(unsafe_code, reason = "entry points of the C ABI, and the C library's lists")]

use super::address;
use super::id::{Id, complete};
use crate::abi::*;
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one};
use crate::object::{find, put};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// A copy of an address of C, made by its allocator; NULL for none.
///
/// # Safety
/// `addr` is NULL, or has `len` bytes.
unsafe fn copy(addr: *const libc::sockaddr, len: libc::socklen_t) -> Result<*mut libc::sockaddr, Errno> {
    if addr.is_null() || len == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: the caller's word; the new memory is as long.
    unsafe {
        let to = libc::malloc(len as usize);
        if to.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        ptr::copy_nonoverlapping(addr.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok(to.cast())
    }
}

/// What the resolver is asked.
fn question(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: integers and pointers.
    let mut ask: libc::addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & RAI_FAMILY != 0 || hints.ai_family != 0 {
        ask.ai_family = hints.ai_family;
    }
    ask.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ if hints.ai_port_space.cast_unsigned() == RDMA_PS_UDP => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    ask
}

/// The two say the same of an id: which kind of queue pair, and in which space its port is.
fn complete_kind(info: &mut rdma_addrinfo) {
    if info.ai_qp_type == 0 {
        let datagrams = info.ai_port_space.cast_unsigned() == RDMA_PS_UDP;
        info.ai_qp_type = (if datagrams { IBV_QPT_UD } else { IBV_QPT_RC }).cast_signed();
    }
    if info.ai_port_space == 0 {
        let datagrams = info.ai_qp_type.cast_unsigned() == IBV_QPT_UD;
        info.ai_port_space = (if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP }).cast_signed();
    }
}

/// Asks the resolver. Fails with its code, which is negative.
///
/// # Safety
/// `node` and `service` are NULL or texts of C.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let ask = question(hints);
    let mut found = ptr::null_mut();
    // SAFETY: the caller's word, and our own.
    let failed = unsafe { libc::getaddrinfo(node, service, &raw const ask, &raw mut found) };
    if failed != 0 {
        return Err(failed);
    }
    // SAFETY: the resolver made it, and gives at least one.
    unsafe {
        let first = &*found;
        info.ai_family = first.ai_family;
        let addr = copy(first.ai_addr, first.ai_addrlen);
        let name =
            if first.ai_canonname.is_null() { ptr::null_mut() } else { libc::strdup(first.ai_canonname) };
        if hints.ai_flags & RAI_PASSIVE != 0 {
            info.ai_src_addr = addr.unwrap_or(ptr::null_mut());
            info.ai_src_len = first.ai_addrlen;
            info.ai_src_canonname = name;
        } else {
            info.ai_dst_addr = addr.unwrap_or(ptr::null_mut());
            info.ai_dst_len = first.ai_addrlen;
            info.ai_dst_canonname = name;
        }
        libc::freeaddrinfo(found);
        if addr.is_err() { Err(libc::EAI_MEMORY) } else { Ok(()) }
    }
}

/// # Safety
/// As the manual page says.
unsafe fn answer(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let no_memory = |_| libc::EAI_MEMORY;
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    info.ai_qp_type = hints.ai_qp_type;
    info.ai_port_space = hints.ai_port_space;
    if node.is_null() && service.is_null() {
        // SAFETY: the caller's word, here and below.
        info.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }.map_err(no_memory)?;
        info.ai_dst_len = if info.ai_dst_addr.is_null() { 0 } else { hints.ai_dst_len };
    } else {
        // SAFETY: as above.
        unsafe { resolve(node, service, hints, info)? };
    }
    if info.ai_src_addr.is_null() {
        // SAFETY: as above.
        info.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }.map_err(no_memory)?;
        info.ai_src_len = if info.ai_src_addr.is_null() { 0 } else { hints.ai_src_len };
    }
    complete_kind(info);
    if info.ai_flags & (RAI_PASSIVE | RAI_NOROUTE) == 0 {
        add_source(info);
    }
    Ok(())
}

/// The address of this host that leads to the peer, where the program gave none. Not every peer can be reached yet.
fn add_source(info: &mut rdma_addrinfo) {
    if !info.ai_src_addr.is_null() || info.ai_dst_addr.is_null() {
        return;
    }
    // SAFETY: made by the resolver, or copied whole.
    let Ok(to) = (unsafe { address::from_c(info.ai_dst_addr) }) else { return };
    if let Ok(from) = address::source_for(to) {
        let (c, len) = (address::to_c(from), address::c_len(&from));
        let len = libc::socklen_t::try_from(len).unwrap_or_default();
        // SAFETY: an address of C is that long.
        if let Ok(addr) = unsafe { copy((&raw const c).cast(), len) } {
            info.ai_src_addr = addr;
            info.ai_src_len = len;
        }
    }
}

/// A list that belongs to nobody yet.
#[derive(Debug)]
pub(super) struct Found(*mut rdma_addrinfo);

// SAFETY: made by the resolver, and nobody else has it.
unsafe impl Send for Found {}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Like `rdma_getaddrinfo`, for an id: an event tells that the answer is there. The resolver is asked at once, as librdmacm
/// does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's word.
    let resolved = unsafe { resolve_for(id, node, service, hints) };
    minus_one!(resolved)
}

/// # Safety
/// As for [`rdma_getaddrinfo`].
unsafe fn resolve_for(
    c: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Errno> {
    uncancelled(|| {
        let id = find::<Id>(c)?;
        if id.shared().lock().found.is_some() {
            return Err(
                Errno::BUSY.because("the previous answer was not read yet: call rdma_query_addrinfo first")
            );
        }
        let mut result = ptr::null_mut();
        // SAFETY: the caller's word.
        match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut result) } {
            0 => {}
            -1 => return Err(std::io::Error::last_os_error().into()),
            code => {
                // SAFETY: a text of the C library, for any number.
                let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
                return Err(Errno(libc::EADDRNOTAVAIL).because(text.to_string_lossy()));
            }
        }
        id.shared().lock().found = Some(Found(result));
        id.shared().push(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0);
        Ok(())
    })?;
    complete(c)
}

/// Hands out what `rdma_resolve_addrinfo` found, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if info.is_null() {
        return minus_one!(Err(Errno::null("info")));
    }
    minus_one!(find::<Id>(id).and_then(|id| {
        let found = id.shared().lock().found.take();
        let found = found.ok_or_else(|| Errno(libc::ENOENT).because("nothing was resolved for this id"))?;
        // SAFETY: not NULL, and the caller's, who frees the list.
        unsafe { put(info, std::mem::ManuallyDrop::new(found).0) };
        Ok(())
    }))
}

/// Returns 0; -1 and errno; or what the resolver said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    if result.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
        return minus_one!(Err(Errno::INVALID));
    }
    // SAFETY: NULL or the caller's.
    if unsafe { hints.as_ref() }.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        return minus_one!(
            Err(Errno::UNSUPPORTED.because("RAI_SA: there is no subnet administrator to ask"))
        );
    }
    let none = rdma_addrinfo::zeroed();
    // SAFETY: NULL or the caller's.
    let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
    let mut info = Box::new(rdma_addrinfo::zeroed());
    // SAFETY: the caller's word.
    let answered = unsafe { answer(node, service, hints, &mut info) };
    let info = Box::into_raw(info);
    match answered {
        Ok(()) => {
            // SAFETY: not NULL, and the caller's.
            unsafe { put(result, info) };
            0
        }
        Err(code) => {
            // SAFETY: made here.
            unsafe { rdma_freeaddrinfo(info) };
            code
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: from `rdma_getaddrinfo`, which made all of it.
        unsafe {
            let info = Box::from_raw(next);
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(info.ai_src_canonname.cast());
            libc::free(info.ai_dst_canonname.cast());
            libc::free(info.ai_route);
            libc::free(info.ai_connect);
            next = info.ai_next;
        }
    }
}
