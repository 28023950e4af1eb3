//! The context that all ids of a process share, opened for the first of them. Programs take it from the ids,
//! and expect the same context for different peers.
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
    /// The domain of ids for which the program gave none.
    pub(super) pd: Arc<Pd>,
    xrcd: OnceLock<usize>,
    view: View,
}

/// The fields of a device that code of rdma-core 44 (rsockets) reads through an id.
#[repr(C)]
#[derive(Debug)]
pub(super) struct View {
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

// SAFETY: the view is never written.
unsafe impl Send for CmDevice {}
// SAFETY: as above.
unsafe impl Sync for CmDevice {}

impl CmDevice {
    /// The device of this process. A forked child opens its own, because the adapter's threads stay with the
    /// parent.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        static DEVICE: Mutex<Option<(u32, &'static CmDevice)>> = Mutex::new(None);
        let process = std::process::id();
        let mut device = lock(&DEVICE);
        match *device {
            Some((owner, device)) if owner == process => Ok(device),
            _ => {
                let made = Self::open()?;
                *device = Some((process, made));
                Ok(made)
            }
        }
    }

    fn open() -> Result<&'static Self, Errno> {
        let context = Context::open(tables())?;
        let pd = Pd::new(&context, context.engine().device().allocate_domain(), Alias::default());
        let depth = Self::depth_of(&context);
        let null = std::ptr::null_mut();
        let view = View {
            device: crate::objects::device::the_device(),
            entry: [null; 2],
            verbs: context.c(),
            pd: pd.c(),
            xrcd: std::ptr::null_mut(),
            port: null,
            guid: crate::objects::device::guid(),
            ports: 1,
            references: 1,
            max_qp_size: MAX_REQUESTS.cast_signed(),
            max_initiator_depth: depth,
            max_responder_resources: depth,
        };
        Ok(Box::leak(Box::new(Self { context, pd, xrcd: OnceLock::new(), view })))
    }

    fn depth_of(context: &Context) -> u8 {
        let config = context.engine().config();
        u8::try_from(config.ird.max(config.ord)).unwrap_or(u8::MAX)
    }

    /// Maximum number of Reads and atomics in flight, in either direction.
    pub(super) fn depth(&self) -> u8 {
        Self::depth_of(&self.context)
    }

    pub(super) fn view(&'static self) -> *const View {
        &raw const self.view
    }

    /// The XRC domain of ids for which the program gave none.
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        if let Some(xrcd) = self.xrcd.get() {
            return Ok(*xrcd as *mut ibv_xrcd);
        }
        let mut attr = ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        attr.fd = -1;
        attr.oflags = libc::O_CREAT;
        // SAFETY: a live context, and local attributes.
        let made = unsafe { open_xrcd(self.context.c(), &raw mut attr) };
        find::<Xrcd>(made)?;
        Ok(*self.xrcd.get_or_init(|| made as usize) as *mut ibv_xrcd)
    }
}

/// Lists the contexts that ids use, of which there is one. The list ends with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    object!(CmDevice::get().and_then(|device| {
        // SAFETY: two null pointers are an empty list.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: the list has room for two, and the pointer is NULL or valid by the caller's contract.
        unsafe {
            list.write(device.context.c());
            put(number, 1);
        }
        Ok(list)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) };
}
