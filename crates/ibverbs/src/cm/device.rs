//! The device that all ids of a process share: its context, protection domain and XRC domain. It is opened
//! with the first id that needs it. Programs take the context from their ids, and expect ids of different
//! peers to have the same one.
#![expect(unsafe_code, reason = "entry points of the C ABI, and fields that rsockets read")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::limits::MAX_REQUESTS;
use crate::objects::pd::{Alias, Pd};
use crate::objects::xrc::Xrcd;
use crate::support::errno::{Errno, object};
use crate::support::object::{CObject, find, put};
use crate::verbs::vtable::tables;
use crate::verbs::xrc::open_xrcd;
use ironwarp_rnic::sync::lock;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

/// The shared device.
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
    /// The device of this process, which the first call opens. A forked child opens a device of its own,
    /// because it has none of the threads of its parent's adapter.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        /// The device, and the id of the process that opened it.
        static DEVICE: Mutex<Option<(u32, &'static CmDevice)>> = Mutex::new(None);
        let process = std::process::id();
        let mut device = lock(&DEVICE);
        match *device {
            Some((owner, device)) if owner == process => Ok(device),
            _ => {
                let opened = Self::open()?;
                *device = Some((process, opened));
                Ok(opened)
            }
        }
    }

    /// Opens a context with its adapter. The device is leaked: ids refer to it until the process exits.
    fn open() -> Result<&'static Self, Errno> {
        let context = Context::open(tables())?;
        let pd = Pd::new(&context, context.engine().device().allocate_domain(), Alias::default());
        let depth = Self::max_depth_of(&context);
        let null = std::ptr::null_mut();
        let legacy = LegacyDevice {
            device: crate::objects::device::the_device(),
            entry: [null; 2],
            verbs: context.c(),
            pd: pd.c(),
            xrcd: null.cast(),
            port: null,
            guid: crate::objects::device::guid(),
            ports: 1,
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

/// Returns a NULL-terminated list of the contexts that ids use. It has one element. The caller frees the list
/// with `rdma_free_devices`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    object!(CmDevice::get().and_then(|device| {
        // SAFETY: calloc has no preconditions. Two pointers: the context and the NULL at the end.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: the list has room for two pointers. `number` is NULL or valid by the caller's contract.
        unsafe {
            list.write(device.context.c());
            put(number, 1);
        }
        Ok(list)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: by the caller's contract NULL, or a list of `rdma_get_devices`, which calloc allocated.
    unsafe { libc::free(list.cast()) };
}
