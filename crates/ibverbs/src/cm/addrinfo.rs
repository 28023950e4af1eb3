//! Resolving names and services, with the resolver of the C library.
#![expect(unsafe_code, reason = "entry points of the C ABI, and the C library's lists")]

use super::address;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::put;
use crate::support::sockaddr;
use std::ffi::{c_char, c_int};
use std::ptr;

/// Copies a C address into memory of the C allocator. NULL stays NULL.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn copy(addr: *const libc::sockaddr, len: libc::socklen_t) -> Result<*mut libc::sockaddr, Errno> {
    if addr.is_null() || len == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: guaranteed by the caller. The new memory has the same length.
    unsafe {
        let to = libc::malloc(len as usize);
        if to.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        ptr::copy_nonoverlapping(addr.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok(to.cast())
    }
}

/// Converts the hints to those of `getaddrinfo`.
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

/// Derives the type of queue pair from the port space, or the reverse.
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

/// Calls the resolver. Fails with its error code, which is negative.
///
/// # Safety
/// `node` and `service` are NULL or C strings.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let ask = question(hints);
    let mut found = ptr::null_mut();
    // SAFETY: guaranteed by the caller, and local variables.
    let failed = unsafe { libc::getaddrinfo(node, service, &raw const ask, &raw mut found) };
    if failed != 0 {
        return Err(failed);
    }
    // SAFETY: the resolver succeeded, so there is at least one entry.
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
/// As for [`rdma_getaddrinfo`].
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
        // SAFETY: guaranteed by the caller, here and below.
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

/// Adds the source address, unless the program gave one or there is no route yet.
fn add_source(info: &mut rdma_addrinfo) {
    if !info.ai_src_addr.is_null() || info.ai_dst_addr.is_null() {
        return;
    }
    // SAFETY: a complete address of the resolver or a copy of one.
    let Ok(to) = (unsafe { sockaddr::from_c(info.ai_dst_addr) }) else { return };
    if let Ok(from) = address::source_for(to) {
        let (c, len) = (sockaddr::to_c(from), sockaddr::c_len(&from));
        let len = libc::socklen_t::try_from(len).unwrap_or_default();
        // SAFETY: the address has that length.
        if let Ok(addr) = unsafe { copy((&raw const c).cast(), len) } {
            info.ai_src_addr = addr;
            info.ai_src_len = len;
        }
    }
}

/// A list that is not yet handed to the program.
#[derive(Debug)]
pub(super) struct AddrInfoList(*mut rdma_addrinfo);

// SAFETY: the list has a single owner.
unsafe impl Send for AddrInfoList {}

impl AddrInfoList {
    /// Takes ownership of a list of `rdma_getaddrinfo`.
    pub(super) fn new(list: *mut rdma_addrinfo) -> Self {
        Self(list)
    }

    /// Gives the list to the program, which frees it.
    pub(super) fn release(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for AddrInfoList {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Returns 0, -1 with errno set, or the error code of the resolver.
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
    // SAFETY: NULL, or valid by the caller's contract.
    if unsafe { hints.as_ref() }.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        return minus_one!(Err(
            Errno::UNSUPPORTED.because("RAI_SA is not supported: there is no subnet administrator")
        ));
    }
    let none = rdma_addrinfo::zeroed();
    // SAFETY: NULL, or valid by the caller's contract.
    let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
    let mut info = Box::new(rdma_addrinfo::zeroed());
    // SAFETY: guaranteed by the caller.
    let answered = unsafe { answer(node, service, hints, &mut info) };
    let info = Box::into_raw(info);
    match answered {
        Ok(()) => {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(result, info) };
            0
        }
        Err(code) => {
            // SAFETY: allocated above.
            unsafe { rdma_freeaddrinfo(info) };
            code
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: allocated by `rdma_getaddrinfo`.
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
