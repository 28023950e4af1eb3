//! Contexts: each represents one open of a device.
//!
//! Each context has an adapter of its own, because each open of a hardware device is a separate name space: keys,
//! numbers and asynchronous events are not shared. Closing a context ends the threads of its adapter. Only imported
//! contexts share an adapter.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::async_event::AsyncEventPort;
use crate::objects::device::device_of;
use crate::support::errno::Errno;
use crate::support::exit;
use crate::support::object::{CCell, CObject, Uses, generation, publish};
use crate::support::persona::config;
use crate::support::wake::ChannelWake;
use ironwarp_engine::Engine;
use ironwarp_engine::logical::{LogicalDevice, RdmaPort};
use ironwarp_rnic::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// An open of a device.
#[repr(C)]
pub(crate) struct Context {
    /// The tables of functions, with the `ibv_context` at their end.
    verbs: CCell<verbs_context>,
    /// The adapter, which imported contexts share.
    engine: Arc<Engine>,
    /// The asynchronous events, which imported contexts share.
    events: Arc<AsyncEventPort>,
    /// The [`generation`] of the process that opened the device.
    generation: u32,
    /// Locked while an XRC domain is looked up and created.
    opening_xrcd: Mutex<()>,
    /// `cmd_fd` of the C structure, in place of the descriptor of a kernel driver. All that a program can do with
    /// this one is duplicate it and import the device with the duplicate.
    command: OwnedFd,
}

// SAFETY: `verbs` is the first field of a `repr(C)` structure, and contains an `ibv_context` at this offset.
unsafe impl CObject for Context {
    type C = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

impl Context {
    /// Opens a device. `tables` holds the functions that inline code of the headers calls.
    pub(crate) fn open(tables: verbs_context, device: &Arc<LogicalDevice>) -> Result<Arc<Self>, Errno> {
        let engine = Engine::open(config().clone(), device)?;
        let wake = ChannelWake::new()?;
        // An import finds the context by the inode of this descriptor, and each memfd has an inode of its own. Where
        // a sandbox denies memfds, an eventfd takes the place, and the device cannot be imported.
        let command = memfd_create(device.name(), MemfdFlags::CLOEXEC);
        let command = command.or_else(|_| eventfd(0, EventfdFlags::CLOEXEC))?;
        exit::register(&engine);
        let events = Arc::new(AsyncEventPort::new(&engine, wake));
        Ok(Self::new(tables, engine, events, command))
    }

    /// Creates another context that shares the adapter and the asynchronous events of this one, for
    /// `ibv_import_device`. `command` is the descriptor that the program passed to that call.
    pub(crate) fn import(&self, tables: verbs_context, command: OwnedFd) -> Arc<Self> {
        Self::new(tables, Arc::clone(&self.engine), Arc::clone(&self.events), command)
    }

    /// Creates a context and publishes it. `verbs` has the tables of functions; this fills in the rest of the C
    /// structure.
    fn new(
        mut verbs: verbs_context,
        engine: Arc<Engine>,
        events: Arc<AsyncEventPort>,
        command: OwnedFd,
    ) -> Arc<Self> {
        verbs.context.device = device_of(engine.logical());
        verbs.context.cmd_fd = command.as_raw_fd();
        verbs.context.async_fd = events.fd();
        // A completion vector selects a lane, of which there are far fewer than c_int::MAX. It is not the number of
        // completion handlers (requirement N1): those are the completion channels, and many can share a vector.
        verbs.context.num_comp_vectors = c_int::try_from(engine.steering().lanes()).unwrap_or(c_int::MAX);
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        // Not an address: this value tells the inline code of the headers that a `verbs_context` surrounds the context.
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut c_void;
        let context = Self {
            verbs: CCell::new(verbs),
            engine,
            events,
            generation: generation(),
            opening_xrcd: Mutex::default(),
            command,
        };
        publish(context, Uses::default())
    }

    /// Returns whether the parent process opened this context before a fork. Then this process must not use it: the
    /// threads of its adapter do not exist here, and its locks may be taken forever.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    /// Returns the descriptor by which the context can be imported.
    pub(crate) fn command(&self) -> BorrowedFd<'_> {
        self.command.as_fd()
    }

    /// Returns the device that this is an open of.
    pub(crate) fn logical(&self) -> &Arc<LogicalDevice> {
        self.engine.logical()
    }

    /// Returns a port of the device. EINVAL if the device has no port with this number.
    pub(crate) fn port(&self, number: u8) -> Result<&RdmaPort, Errno> {
        let ports = self.logical().ports().len();
        let none = || Errno::INVALID.because(format_args!("no port {number}: the device has {ports}"));
        self.logical().port(number).ok_or_else(none)
    }

    /// Returns the adapter.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns what identifies the adapter in the checker.
    pub(crate) fn adapter_key(&self) -> usize {
        Arc::as_ptr(&self.engine) as usize
    }

    /// Returns whether another context has the same adapter, by `ibv_import_device`.
    pub(crate) fn shares_adapter_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// Fails with EINVAL if `other`, the context of an object that is to be used with one of this context, has another
    /// adapter (requirement N9). Numbers and tags have a meaning in one adapter only. So what creates or combines objects
    /// checks this once, and an adapter that completes a request need not.
    pub(crate) fn check_same_adapter(&self, other: &Self, object: &str) -> Result<(), Errno> {
        match self.shares_adapter_with(other) {
            true => Ok(()),
            false => Err(Errno::INVALID.because(format_args!("the {object} belongs to another context"))),
        }
    }

    /// Locks the opening of XRC domains, so that one thread at a time looks a domain up and creates it.
    pub(crate) fn lock_xrcd_opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening_xrcd)
    }

    /// Returns the asynchronous events.
    pub(crate) fn events(&self) -> &AsyncEventPort {
        &self.events
    }
}

// Not derived: omits the tables of functions and the adapter, which are long.
impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
