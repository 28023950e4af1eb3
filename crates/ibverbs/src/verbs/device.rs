//! Entry points to list, open and close devices.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::vtable::tables;
use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::device::{Device, devices, guid};
use crate::support::errno::{Errno, destroy_code, minus_one, object};
use crate::support::object::{CObject, find, put, remove_object};
use std::ffi::{c_char, c_int};
use std::mem::offset_of;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    let devices = devices();
    // SAFETY: `calloc` has no precondition. The program frees the list by `ibv_free_device_list`.
    let list =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return object!(Err(Errno::NO_MEMORY));
    }
    for (at, device) in devices.iter().enumerate() {
        // SAFETY: the list has room for all devices, and the pointer after the last stays NULL, which ends the list.
        unsafe { list.add(at).write(device.c()) };
    }
    // SAFETY: `number` is NULL or valid by the caller's contract.
    unsafe { put(number, c_int::try_from(devices.len()).unwrap_or(c_int::MAX)) };
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list is NULL or came from `ibv_get_device_list`, which allocates with `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// Returns the name in the structure, or NULL for NULL. Does not look the device up, because tests of some programs
/// pass devices of their own making.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    match device.is_null() {
        true => std::ptr::null(),
        false => device.wrapping_byte_add(offset_of!(ibv_device, name)).cast(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    find::<Device>(device).map_or(0, |device| guid(device.logical()))
}

/// Returns the index of the device in the list, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    find::<Device>(device).map_or(-1, |device| c_int::try_from(device.logical().index()).unwrap_or(-1))
}

/// The type RoCE v2 in the numbering of `ibv_query_gid_type`: `IBV_GID_TYPE_SYSFS_ROCE_V2` in private headers of
/// rdma-core. Other functions use `IBV_GID_TYPE_ROCE_V2`, which has another value.
const ROCE_V2: u32 = 1;

/// Writes the type of the GID at an index. Fails with ENOENT if the entry is unused. A private function of rdma-core,
/// which pyverbs and ibv_devinfo call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    let context = find::<Context>(context);
    let table = context.and_then(|context| Ok(context.port(port)?.gids()));
    let table = match table {
        Ok(table) => table,
        Err(errno) => return minus_one!(Err(errno)),
    };
    let Ok(Some(_)) = table.get(index as usize) else {
        return minus_one!(Err(Errno(libc::ENOENT)));
    };
    // SAFETY: NULL, or valid by the caller's contract.
    unsafe { put(kind, ROCE_V2) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let opened = find::<Device>(device).and_then(|device| Context::open(tables(), device.logical()));
    object!(opened.map(|context| context.c()))
}

/// Closes a context. Unlike other destroy verbs, this one does not fail while other objects use the context.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    destroy_code!(remove_object::<Context>(context).map(drop))
}
