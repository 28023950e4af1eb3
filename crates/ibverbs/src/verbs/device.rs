//! Finding and opening the device.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::vtable::tables;
use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::device::{Device, guid, the_device};
use crate::support::errno::{Errno, destroy_code, minus_one, object};
use crate::support::object::{CObject, find, put, remove_object};
use ironwarp_engine::gid::GidTable;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: two null pointers are an empty list.
    let list = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return object!(Err(Errno::NO_MEMORY));
    }
    // SAFETY: the list has room for two, and the pointer is NULL or valid by the caller's contract.
    unsafe {
        list.write(the_device());
        put(number, 1);
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from `ibv_get_device_list`, or NULL.
    unsafe { libc::free(list.cast()) };
}

/// Looks at nothing but the array in the structure: a program's tests may have made the device themselves.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    match device.is_null() {
        true => std::ptr::null(),
        false => device.wrapping_byte_add(offset_of!(ibv_device, name)).cast(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    find::<Device>(device).map_or(0, |_| guid())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    find::<Device>(device).map_or(-1, |_| 0)
}

/// RoCE v2 in the numbering of this function alone, `IBV_GID_TYPE_SYSFS_ROCE_V2` in the private headers of
/// the library.
const ROCE_V2: u32 = 1;

/// The type of the GID at an index. A private function of the library that pyverbs and ibv_devinfo use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    let there = find::<Context>(context).is_ok() && port == 1;
    let Ok(Some(_)) = GidTable::of_process().get(index as usize) else {
        return minus_one!(Err(Errno(libc::ENOENT)));
    };
    if !there {
        return minus_one!(Err(Errno::INVALID));
    }
    // SAFETY: NULL, or valid by the caller's contract.
    unsafe { put(kind, ROCE_V2) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object!(find::<Device>(device).and_then(|_| Context::open(tables())).map(|context| context.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    destroy_code!(remove_object::<Context>(context).map(drop))
}
