//! The devices that C programs find: the logical devices of the settings (requirement X3).
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::{Zeroed, ibv_device};
use crate::support::object::{CCell, CObject, Uses, publish};
use crate::support::persona;
use ironwarp_engine::config::Devices;
use ironwarp_engine::logical::{self, LogicalDevice};
use std::ffi::c_char;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// A device that C programs see.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    c: CCell<ibv_device>,
    /// Zeros. Some libraries of hardware vendors read memory behind the structure to recognise their own devices.
    /// Zeros match none.
    behind: [u64; 16],
    logical: Arc<LogicalDevice>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Device {
    type C = ibv_device;
    const SURVIVES_FORK: bool = true;
}

/// The devices, once the program asked for them.
static DEVICES: OnceLock<Vec<Arc<Device>>> = OnceLock::new();

/// Returns whether the program has asked this library for devices.
pub(crate) fn is_used() -> bool {
    DEVICES.get().is_some()
}

/// Returns the logical devices that the settings describe. If the description is wrong for this host, logs why, and
/// returns the default device.
pub(crate) fn logical_devices() -> &'static [Arc<LogicalDevice>] {
    static LOGICAL: OnceLock<Vec<Arc<LogicalDevice>>> = OnceLock::new();
    LOGICAL.get_or_init(|| {
        let config = persona::config();
        logical::devices(config).unwrap_or_else(|error| {
            tracing::error!("IRONWARP_DEVICES={}: {error}; using the default device", config.devices);
            let default = config.clone().devices(Devices::default());
            logical::devices(&default).unwrap_or_default()
        })
    })
}

/// Returns the logical device that has an address, or `None` if none has it.
pub(crate) fn logical_device_at(address: IpAddr) -> Option<&'static Arc<LogicalDevice>> {
    logical_devices().iter().find(|device| device.owns(address))
}

/// Returns the name of the character device that a kernel driver would have for the device with this index.
pub(crate) fn device_file(index: usize) -> String {
    format!("uverbs{index}")
}

/// Returns the devices, which the first call creates. They are never destroyed, because programs use them after they
/// freed the list of devices.
pub(crate) fn devices() -> &'static [Arc<Device>] {
    DEVICES.get_or_init(|| logical_devices().iter().map(Device::create).collect())
}

/// Returns the C structure of a logical device.
pub(crate) fn device_of(logical: &LogicalDevice) -> *mut ibv_device {
    devices()[logical.index()].c()
}

impl Device {
    fn create(logical: &Arc<LogicalDevice>) -> Arc<Self> {
        let mut c = ibv_device::zeroed();
        c.node_type = persona::node_type();
        c.transport_type = persona::transport();
        let (name, file) = (logical.name(), device_file(logical.index()));
        write_name(&mut c.name, name);
        write_name(&mut c.dev_name, &file);
        write_name(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{file}"));
        write_name(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        let device = Self { c: CCell::new(c), behind: [0; 16], logical: Arc::clone(logical) };
        publish(device, Uses::default())
    }

    /// Returns the logical device.
    pub(crate) fn logical(&self) -> &Arc<LogicalDevice> {
        &self.logical
    }
}

/// Copies a name into an array of C characters. The array must be zeroed and longer than the name, so that a NUL
/// follows the name.
pub(crate) fn write_name(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]); // signed on x86-64, unsigned on aarch64
    }
}

/// Returns the GUID of a device, in network byte order.
pub(crate) fn guid(device: &LogicalDevice) -> u64 {
    u64::from_ne_bytes(device.guid())
}
