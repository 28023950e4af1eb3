//! The one device, as programs find it: by a list, by its name. Before this: nothing; after: `context.rs`, once it is opened.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::{Zeroed, ibv_device};
use crate::errno::{Errno, object};
use crate::object::{CObject, Uses, find, publish, put};
use crate::persona;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};

/// The name of the character device that a kernel driver would have.
pub(crate) const DEVICE_FILE: &str = "uverbs0";

/// A device that C programs see.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    c: UnsafeCell<ibv_device>,
    /// Libraries of other vendors tell their own devices by what is behind this structure: all zero is nobody's.
    behind: [u64; 16],
}

// SAFETY: the C structure comes first. It is written before anyone has it, and never again.
unsafe impl CObject for Device {
    type C = ibv_device;
    const SURVIVES_FORK: bool = true;
}
// SAFETY: as above.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();

/// Whether the program has asked the library for its devices.
pub(crate) fn is_used() -> bool {
    DEVICE.get().is_some()
}

/// The device. It lives as long as the process: programs keep it after they freed the list.
pub(crate) fn the_device() -> *mut ibv_device {
    DEVICE
        .get_or_init(|| {
            let mut c = ibv_device::zeroed();
            c.node_type = persona::node_type();
            c.transport_type = persona::transport();
            let name = persona::name();
            write_name(&mut c.name, name);
            write_name(&mut c.dev_name, DEVICE_FILE);
            write_name(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{DEVICE_FILE}"));
            write_name(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
            publish(Device { c: UnsafeCell::new(c), behind: [0; 16] }, Uses::default())
        })
        .c()
}

/// A text into an array of C characters, which has room for the zero behind it.
fn write_name(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: two pointers, all zero: a list of none.
    let list = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return object!(Err(Errno::NO_MEMORY));
    }
    // SAFETY: there is room for two, and the caller's pointer is NULL or valid.
    unsafe {
        list.write(the_device());
        put(number, 1);
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it is from `ibv_get_device_list`, or NULL.
    unsafe { libc::free(list.cast()) };
}

/// The name is an array in the structure, and nothing else is looked at: a test of a program may have made the device itself.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    match device.is_null() {
        true => std::ptr::null(),
        false => device.wrapping_byte_add(offset_of!(ibv_device, name)).cast(),
    }
}

/// The number that makes the adapter unique. It is made of the first GID, in network byte order, as an EUI-64 would be.
pub(crate) fn guid() -> u64 {
    let gids = ironwarp_engine::gid::GidTable::of_process().entries().unwrap_or_default();
    let bytes = gids.first().map_or([0; 16], |entry| entry.gid.to_bytes());
    let mut id = *b"\x02IW\xff\xfe\0\0\0";
    id[5..].copy_from_slice(&bytes[13..]);
    u64::from_ne_bytes(id)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    find::<Device>(device).map_or(0, |_| guid())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    find::<Device>(device).map_or(-1, |_| 0)
}

/// RoCE v2, in the numbers of this function alone: `IBV_GID_TYPE_SYSFS_ROCE_V2` of the library's own headers.
const ROCE_V2: u32 = 1;

/// What kind of GID is at an index; a private function of the library that pyverbs and ibv_devinfo use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut crate::abi::ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    let there = find::<crate::context::Context>(context).is_ok() && port == 1;
    let Ok(Some(_)) = ironwarp_engine::gid::GidTable::of_process().get(index as usize) else {
        return crate::errno::minus_one!(Err(Errno(libc::ENOENT)));
    };
    if !there {
        return crate::errno::minus_one!(Err(Errno::INVALID));
    }
    // SAFETY: NULL or valid.
    unsafe { put(kind, ROCE_V2) };
    0
}
