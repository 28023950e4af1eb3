//! The device that C programs find. There is always exactly one.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::{Zeroed, ibv_device};
use crate::support::object::{CCell, CObject, Uses, publish};
use crate::support::persona;
use std::ffi::c_char;
use std::sync::{Arc, OnceLock};

/// Name of the character device that a kernel driver would have.
pub(crate) const DEVICE_FILE: &str = "uverbs0";

/// The device that C programs see.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    c: CCell<ibv_device>,
    /// Zeros. Some libraries of hardware vendors read memory behind the structure to recognise their own devices.
    /// Zeros match none.
    behind: [u64; 16],
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Device {
    type C = ibv_device;
    const SURVIVES_FORK: bool = true;
}

/// The device, once the program asked for it.
static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();

/// Returns whether the program has asked this library for devices.
pub(crate) fn is_used() -> bool {
    DEVICE.get().is_some()
}

/// Returns the device, which the first call creates. The device is never destroyed, because programs use it after
/// they freed the list of devices.
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
            publish(Device { c: CCell::new(c), behind: [0; 16] }, Uses::default())
        })
        .c()
}

/// Copies a name into an array of C characters. The array must be zeroed and longer than the name, so that a NUL
/// follows the name.
pub(crate) fn write_name(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]); // signed on x86-64, unsigned on aarch64
    }
}

/// Returns the GUID of the adapter, in network byte order: an EUI-64 whose last three bytes are those of the first GID.
pub(crate) fn guid() -> u64 {
    let gids = ironwarp_engine::gid::GidTable::of_process().entries().unwrap_or_default();
    let bytes = gids.first().map_or([0; 16], |entry| entry.gid.to_bytes());
    // Locally administered, with the letters IW as vendor.
    let mut id = *b"\x02IW\xff\xfe\0\0\0";
    id[5..].copy_from_slice(&bytes[13..]);
    u64::from_ne_bytes(id)
}
