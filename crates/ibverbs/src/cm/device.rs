//! The devices that the ids of a process share: the context, protection domain and XRC domain of each. A device is opened
//! with the first id that needs it. Programs take the context from their ids, and expect ids of different peers at
//! one device to have the same one. The local address of an id selects its device.
#![expect(unsafe_code, reason = "entry points of the C ABI, and fields that rsockets read")]

use crate::abi::*;
use crate::check;
use crate::objects::context::Context;
use crate::objects::device::{device_of, guid, logical_device_at, logical_devices};
use crate::objects::limits::MAX_REQUESTS;
use crate::objects::pd::{Alias, Pd};
use crate::objects::xrc::Xrcd;
use crate::support::errno::{Errno, object};
use crate::support::object::{CObject, find, put};
use crate::verbs::vtable::tables;
use crate::verbs::xrc::open_xrcd;
use ironwarp_engine::logical::LogicalDevice;
use ironwarp_rnic::sync::lock;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};

/// A shared device.
#[derive(Debug)]
pub(super) struct CmDevice {
    pub(super) context: Arc<Context>,
    /// The protection domain of ids for which the program gave none.
    pub(super) pd: Arc<Pd>,
    /// Address of the `ibv_xrcd` of ids for which the program gave none. Set when it is first needed.
    xrcd: OnceLock<usize>,
    legacy: LegacyDevice,
}

/// The private device structure (`cma_device`) of librdmacm of rdma-core 44. Its rsockets code reads it through
/// an id, so it has the same layout here.
#[repr(C)]
#[derive(Debug)]
pub(super) struct LegacyDevice {
    device: *mut ibv_device,
    entry: [*mut c_void; 2],
    verbs: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    port: *mut c_void,
    guid: u64,
    ports: c_int,
    references: c_int,
    max_qp_size: c_int,
    max_initiator_depth: u8,
    max_responder_resources: u8,
}

// SAFETY: only the pointers of `legacy` are not `Send` and `Sync` already. They are never written after
// `open`, and what they point to lives as long as the process.
unsafe impl Send for CmDevice {}
// SAFETY: as for `Send`.
unsafe impl Sync for CmDevice {}

impl CmDevice {
    /// Returns the first device, for what concerns no device in particular: listening at all addresses, and timers.
    pub(super) fn first() -> Result<&'static Self, Errno> {
        Self::of(logical_devices().first().ok_or(Errno(libc::ENODEV))?)
    }

    /// Returns the device that has an address. ENODEV if none has it.
    pub(super) fn at(address: IpAddr) -> Result<&'static Self, Errno> {
        let Some(owner) = logical_device_at(address) else {
            // Not a reason of the error, which is always printed: libraries try every address of the host.
            tracing::info!(%address, "no logical device has this address");
            return Err(Errno(libc::ENODEV));
        };
        Self::of(owner)
    }

    /// Returns a device, which the first call opens. A forked child opens devices of its own, because it has none of the
    /// threads of its parent's adapters.
    fn of(logical: &Arc<LogicalDevice>) -> Result<&'static Self, Errno> {
        /// The devices, each with the id of the process that opened it.
        static DEVICES: Mutex<Vec<(u32, &'static CmDevice)>> = Mutex::new(Vec::new());
        let process = std::process::id();
        let mut devices = lock(&DEVICES);
        devices.retain(|(owner, _)| *owner == process);
        let known = devices.iter().find(|(_, device)| device.context.logical().index() == logical.index());
        if let Some((_, device)) = known {
            return Ok(device);
        }
        let opened = Self::open(logical)?;
        devices.push((process, opened));
        Ok(opened)
    }

    /// Opens a context with its adapter. The device is leaked: ids refer to it until the process exits.
    fn open(logical: &Arc<LogicalDevice>) -> Result<&'static Self, Errno> {
        let context = Context::open(tables(), logical)?;
        let pd = Pd::new(&context, context.engine().device().allocate_domain(), Alias::default());
        if let Some(checker) = check::active() {
            checker.kept(pd.c() as usize);
        }
        let depth = Self::max_depth_of(&context);
        let null = std::ptr::null_mut();
        let legacy = LegacyDevice {
            device: device_of(logical),
            entry: [null; 2],
            verbs: context.c(),
            pd: pd.c(),
            xrcd: null.cast(),
            port: null,
            guid: guid(logical),
            ports: c_int::try_from(logical.ports().len()).unwrap_or(1),
            references: 1,
            max_qp_size: MAX_REQUESTS.cast_signed(),
            max_initiator_depth: depth,
            max_responder_resources: depth,
        };
        Ok(Box::leak(Box::new(Self { context, pd, xrcd: OnceLock::new(), legacy })))
    }

    fn max_depth_of(context: &Context) -> u8 {
        let config = context.engine().config();
        u8::try_from(config.ird.max(config.ord)).unwrap_or(u8::MAX)
    }

    /// Maximum number of Reads and atomics in flight, in either direction.
    pub(super) fn max_depth(&self) -> u8 {
        Self::max_depth_of(&self.context)
    }

    pub(super) fn legacy(&'static self) -> *const LegacyDevice {
        &raw const self.legacy
    }

    /// The XRC domain of ids for which the program gave none, which the first call opens.
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        if let Some(xrcd) = self.xrcd.get() {
            return Ok(*xrcd as *mut ibv_xrcd);
        }
        let mut attr = ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        attr.fd = -1;
        attr.oflags = libc::O_CREAT;
        // SAFETY: `self` keeps the context alive, and `attr` is a complete local structure.
        let opened = unsafe { open_xrcd(self.context.c(), &raw mut attr) };
        find::<Xrcd>(opened)?; // fails if `open_xrcd` returned NULL
        Ok(*self.xrcd.get_or_init(|| opened as usize) as *mut ibv_xrcd)
    }
}

/// Returns a NULL-terminated list of the contexts that ids use, one for each device. The caller frees the list with
/// `rdma_free_devices`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    let opened: Result<Vec<_>, Errno> = logical_devices().iter().map(CmDevice::of).collect();
    object!(opened.and_then(|devices| {
        // SAFETY: calloc has no preconditions. One pointer more than there are contexts: the NULL at the end.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()) };
        let list = list.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        for (at, device) in devices.iter().enumerate() {
            // SAFETY: the list has room for all contexts.
            unsafe { list.add(at).write(device.context.c()) };
        }
        // SAFETY: `number` is NULL or valid by the caller's contract.
        unsafe { put(number, c_int::try_from(devices.len()).unwrap_or(c_int::MAX)) };
        Ok(list)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: by the caller's contract NULL, or a list of `rdma_get_devices`, which calloc allocated.
    unsafe { libc::free(list.cast()) };
}
