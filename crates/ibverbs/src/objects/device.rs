//! The one device.
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
    /// Libraries of other vendors recognise their devices by what follows this structure. Zeros match none.
    behind: [u64; 16],
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Device {
    type C = ibv_device;
    const SURVIVES_FORK: bool = true;
}

static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();

/// Whether the program has asked the library for devices.
pub(crate) fn is_used() -> bool {
    DEVICE.get().is_some()
}

/// The device. It exists as long as the process, because programs use it after freeing the list.
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

/// Copies a name into an array of C characters that is zeroed and longer than the name.
fn write_name(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

/// GUID of the adapter, in network byte order: an EUI-64 made from the first GID.
pub(crate) fn guid() -> u64 {
    let gids = ironwarp_engine::gid::GidTable::of_process().entries().unwrap_or_default();
    let bytes = gids.first().map_or([0; 16], |entry| entry.gid.to_bytes());
    let mut id = *b"\x02IW\xff\xfe\0\0\0";
    id[5..].copy_from_slice(&bytes[13..]);
    u64::from_ne_bytes(id)
}
