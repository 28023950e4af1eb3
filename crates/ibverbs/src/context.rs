//! An opened device: an adapter of its own, and the two tables of functions that inline code of the headers calls. Before
//! this: `device.rs`; after: everything else is made in a context.
//!
//! One adapter for each context, as each open of a hardware device is a space of its own: tags, numbers and asynchronous
//! events of one are not the other's, and closing it ends its threads.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::async_event::AsyncEventPort;
use crate::device::{Device, the_device};
use crate::errno::{Errno, destroyed, object};
use crate::object::{CObject, Uses, find, generation, publish, withdraw};
use crate::persona::{self, config};
use crate::sync::lock;
use crate::wake::ChannelWake;
use crate::{buf, cq, cq_ex, dm, exit, mr, mw, parent, post, qp, query, srq, unsupported, xrc};
use ironwarp_engine::Engine;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// An opened device.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<verbs_context>,
    engine: Arc<Engine>,
    events: Arc<AsyncEventPort>,
    /// Of which process it is.
    generation: u32,
    /// Held while an XRC domain is looked for and made.
    opening: Mutex<()>,
    /// What programs think leads to a kernel driver. They may duplicate it and import the device by it, and no more.
    command: OwnedFd,
}

// SAFETY: the tables come first, and the C structure is their last field. After they are published only C writes there.
unsafe impl CObject for Context {
    type C = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Context {}

impl Context {
    /// Opens the device.
    pub(crate) fn open() -> Result<Arc<Self>, Errno> {
        let engine = Engine::new(config().clone())?;
        let wake = ChannelWake::new()?;
        // A file in memory, because each is one of its own; where these are refused, the device cannot be imported.
        let command = memfd_create(persona::name(), MemfdFlags::CLOEXEC);
        let command = command.or_else(|_| eventfd(0, EventfdFlags::CLOEXEC))?;
        exit::prepare(&engine);
        let events = Arc::new(AsyncEventPort::new(&engine, wake));
        Ok(Self::new(engine, events, command))
    }

    /// The same device once more, for a program that has a descriptor of it.
    pub(crate) fn again(&self, command: OwnedFd) -> Arc<Self> {
        Self::new(Arc::clone(&self.engine), Arc::clone(&self.events), command)
    }

    fn new(engine: Arc<Engine>, events: Arc<AsyncEventPort>, command: OwnedFd) -> Arc<Self> {
        let mut verbs = tables();
        verbs.context.device = the_device();
        verbs.context.cmd_fd = command.as_raw_fd();
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = c_int::try_from(engine.steering().lanes()).unwrap_or(c_int::MAX);
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut c_void;
        let context = Self {
            verbs: UnsafeCell::new(verbs),
            engine,
            events,
            generation: generation(),
            opening: Mutex::default(),
            command,
        };
        publish(context, Uses::default())
    }

    /// A parent made it before it forked: nothing of it may be touched.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    pub(crate) fn command(&self) -> BorrowedFd<'_> {
        self.command.as_fd()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// One thread at a time opens XRC domains.
    pub(crate) fn open_domains(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    pub(crate) fn events(&self) -> &AsyncEventPort {
        &self.events
    }
}

/// What inline functions of the headers call.
fn tables() -> verbs_context {
    let mut verbs = verbs_context::zeroed();
    verbs.sz = size_of::<verbs_context>();
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.open_qp = Some(qp::open_qp);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.alloc_td = Some(parent::alloc_td);
    verbs.dealloc_td = Some(parent::dealloc_td);
    verbs.alloc_parent_domain = Some(parent::alloc_parent_domain);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    verbs.alloc_buf = Some(buf::ibv_alloc_buf);
    verbs.free_buf = Some(buf::ibv_free_buf);
    unsupported::fill(&mut verbs);
    let ops = &mut verbs.context.ops;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    verbs
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object!(find::<Device>(device).and_then(|_| Context::open()).map(|context| context.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    destroyed!(withdraw::<Context>(context).map(drop))
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
