//! `rdma_getaddrinfo`: resolves host and service names with the resolver of the C library.
#![expect(unsafe_code, reason = "entry points of the C ABI, and the C library's lists")]

use super::address;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::put;
use crate::support::sockaddr;
use std::ffi::{c_char, c_int};
use std::ptr;

/// Copies a C address into memory from malloc. Returns NULL for NULL.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn copy_sockaddr(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<*mut libc::sockaddr, Errno> {
    if addr.is_null() || len == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: `addr` has `len` bytes by the caller's contract, and so has the new memory.
    unsafe {
        let to = libc::malloc(len as usize);
        if to.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        ptr::copy_nonoverlapping(addr.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok(to.cast())
    }
}

/// Converts the hints of `rdma_getaddrinfo` to those of `getaddrinfo`.
fn resolver_hints(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: the structure has only integers and pointers, for which zeros are valid.
    let mut converted: libc::addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        converted.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        converted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & RAI_FAMILY != 0 || hints.ai_family != 0 {
        converted.ai_family = hints.ai_family;
    }
    converted.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ if hints.ai_port_space.cast_unsigned() == RDMA_PS_UDP => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    converted
}

/// Sets the type of queue pair and the port space, if the program left one or both at zero: the first from
/// the second, then the second from the first.
fn fill_in_qp_type_and_port_space(info: &mut rdma_addrinfo) {
    if info.ai_qp_type == 0 {
        let datagrams = info.ai_port_space.cast_unsigned() == RDMA_PS_UDP;
        info.ai_qp_type = (if datagrams { IBV_QPT_UD } else { IBV_QPT_RC }).cast_signed();
    }
    if info.ai_port_space == 0 {
        let datagrams = info.ai_qp_type.cast_unsigned() == IBV_QPT_UD;
        info.ai_port_space = (if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP }).cast_signed();
    }
}

/// Calls the resolver, and stores the first address that it finds in `info`: as the source if the hints have
/// RAI_PASSIVE, otherwise as the destination. Fails with the error code of the resolver, which is negative.
///
/// # Safety
/// `node` and `service` are NULL or C strings.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let hints_of_resolver = resolver_hints(hints);
    let mut list = ptr::null_mut();
    // SAFETY: NULL or C strings by the caller's contract, and two local variables.
    let error = unsafe { libc::getaddrinfo(node, service, &raw const hints_of_resolver, &raw mut list) };
    if error != 0 {
        return Err(error);
    }
    // SAFETY: the resolver succeeded, so the list has at least one entry, which is valid until it is freed.
    unsafe {
        let first = &*list;
        info.ai_family = first.ai_family;
        let addr = copy_sockaddr(first.ai_addr, first.ai_addrlen);
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
        libc::freeaddrinfo(list);
        if addr.is_err() { Err(libc::EAI_MEMORY) } else { Ok(()) }
    }
}

/// Fills in `info`: the destination and source addresses, the type of queue pair and the port space. Fails with
/// an error code of the resolver.
///
/// # Safety
/// As for [`rdma_getaddrinfo`].
unsafe fn fill_info(
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
        // SAFETY: the hints contain NULL or an address of this length, by the caller's contract.
        info.ai_dst_addr =
            unsafe { copy_sockaddr(hints.ai_dst_addr, hints.ai_dst_len) }.map_err(no_memory)?;
        info.ai_dst_len = if info.ai_dst_addr.is_null() { 0 } else { hints.ai_dst_len };
    } else {
        // SAFETY: NULL or C strings, by the caller's contract.
        unsafe { resolve(node, service, hints, info)? };
    }
    if info.ai_src_addr.is_null() {
        // SAFETY: the hints contain NULL or an address of this length, by the caller's contract.
        info.ai_src_addr =
            unsafe { copy_sockaddr(hints.ai_src_addr, hints.ai_src_len) }.map_err(no_memory)?;
        info.ai_src_len = if info.ai_src_addr.is_null() { 0 } else { hints.ai_src_len };
    }
    fill_in_qp_type_and_port_space(info);
    if info.ai_flags & (RAI_PASSIVE | RAI_NOROUTE) == 0 {
        add_source(info);
    }
    Ok(())
}

/// Adds the source address of the route to the destination, unless `info` has a source address. Leaves it out
/// if there is no destination, or no route to it.
fn add_source(info: &mut rdma_addrinfo) {
    if !info.ai_src_addr.is_null() || info.ai_dst_addr.is_null() {
        return;
    }
    // SAFETY: a copy of an address of the resolver, or of one of the program, as long as its family requires.
    let Ok(to) = (unsafe { sockaddr::from_c(info.ai_dst_addr) }) else { return };
    if let Ok(from) = address::source_for(to) {
        let (c, len) = (sockaddr::to_c(from), sockaddr::c_len(&from));
        let len = libc::socklen_t::try_from(len).unwrap_or_default();
        // SAFETY: `c` is a local address of `len` bytes.
        if let Ok(addr) = unsafe { copy_sockaddr((&raw const c).cast(), len) } {
            info.ai_src_addr = addr;
            info.ai_src_len = len;
        }
    }
}

/// A result of `rdma_getaddrinfo` that the program does not have yet. Dropping it frees the list.
#[derive(Debug)]
pub(super) struct AddrInfoList(*mut rdma_addrinfo);

// SAFETY: the list has one owner, and its memory is not bound to a thread.
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
        // SAFETY: the list came from `rdma_getaddrinfo`, and this is its only owner.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Resolves a name or service, or completes the addresses in the hints. Returns 0, -1 with errno set, or the
/// error code of the resolver.
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
    let no_hints = rdma_addrinfo::zeroed();
    // SAFETY: NULL, or valid by the caller's contract.
    let hints = unsafe { hints.as_ref() }.unwrap_or(&no_hints);
    let mut info = Box::new(rdma_addrinfo::zeroed());
    // SAFETY: the arguments of this call, whose contract is the same.
    let filled = unsafe { fill_info(node, service, hints, &mut info) };
    let info = Box::into_raw(info);
    match filled {
        Ok(()) => {
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(result, info) };
            0
        }
        Err(code) => {
            // SAFETY: made from a box just now, and the program does not have it.
            unsafe { rdma_freeaddrinfo(info) };
            code
        }
    }
}

/// Frees a result of [`rdma_getaddrinfo`], with all that it points to. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: by the caller's contract, `rdma_getaddrinfo` made it from a box, and allocated what it
        // points to with malloc.
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
