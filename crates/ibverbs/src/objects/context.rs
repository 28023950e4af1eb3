//! Contexts: the device, opened.
//!
//! Each context has an adapter of its own, because each open of a hardware device is a separate name space:
//! tags, numbers and asynchronous events are not shared, and closing a context ends its threads.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::async_event::AsyncEventPort;
use crate::objects::device::the_device;
use crate::support::errno::Errno;
use crate::support::exit;
use crate::support::object::{CCell, CObject, Uses, generation, publish};
use crate::support::persona::{self, config};
use crate::support::wake::ChannelWake;
use ironwarp_engine::Engine;
use ironwarp_rnic::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// An opened device.
#[repr(C)]
pub(crate) struct Context {
    verbs: CCell<verbs_context>,
    engine: Arc<Engine>,
    events: Arc<AsyncEventPort>,
    /// The process that opened it, by its generation.
    generation: u32,
    /// Held while an XRC domain is looked up and created.
    opening: Mutex<()>,
    /// Stands for the descriptor of a kernel driver. A program may only duplicate it and import the device
    /// with it.
    command: OwnedFd,
}

// SAFETY: the tables come first, and the C structure is their last field. After publication only C writes
// there.
unsafe impl CObject for Context {
    type C = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

impl Context {
    /// Opens the device. `tables` holds the functions that inline code of the headers calls.
    pub(crate) fn open(tables: verbs_context) -> Result<Arc<Self>, Errno> {
        let engine = Engine::new(config().clone())?;
        let wake = ChannelWake::new()?;
        // Each memfd has an inode of its own, by which an import finds the context. Where memfds are
        // forbidden, the device cannot be imported.
        let command = memfd_create(persona::name(), MemfdFlags::CLOEXEC);
        let command = command.or_else(|_| eventfd(0, EventfdFlags::CLOEXEC))?;
        exit::register(&engine);
        let events = Arc::new(AsyncEventPort::new(&engine, wake));
        Ok(Self::new(tables, engine, events, command))
    }

    /// Another context of the same device, for a program that has a descriptor of it.
    pub(crate) fn import(&self, tables: verbs_context, command: OwnedFd) -> Arc<Self> {
        Self::new(tables, Arc::clone(&self.engine), Arc::clone(&self.events), command)
    }

    fn new(
        mut verbs: verbs_context,
        engine: Arc<Engine>,
        events: Arc<AsyncEventPort>,
        command: OwnedFd,
    ) -> Arc<Self> {
        verbs.context.device = the_device();
        verbs.context.cmd_fd = command.as_raw_fd();
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = c_int::try_from(engine.steering().lanes()).unwrap_or(c_int::MAX);
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut c_void;
        let context = Self {
            verbs: CCell::new(verbs),
            engine,
            events,
            generation: generation(),
            opening: Mutex::default(),
            command,
        };
        publish(context, Uses::default())
    }

    /// Whether the parent process opened it before a fork. Then it must not be touched.
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

    /// Locks the opening of XRC domains.
    pub(crate) fn open_domains(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    pub(crate) fn events(&self) -> &AsyncEventPort {
        &self.events
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
