//! Protection domains.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::errno::{destroyed, object};
use crate::object::{CObject, Uses, find, publish, take_back};
use ironwarp_rnic::memory::Domain;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// A protection domain, or a parent domain, which is another name for one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    domain: Domain,
    /// The program promised that what is made in it is used by one thread at a time.
    single_threaded: bool,
    context: Arc<Context>,
}

/// What makes a parent domain of a domain.
#[derive(Debug, Default)]
pub(crate) struct Alias {
    /// The domain that this is another name for, and the thread domain in it.
    pub(crate) uses: Uses,
    pub(crate) single_threaded: bool,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Pd {
    type C = ibv_pd;
}
// SAFETY: as above.
unsafe impl Sync for Pd {}
// SAFETY: as above.
unsafe impl Send for Pd {}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>, domain: Domain, alias: Alias) -> Arc<Self> {
        let c = ibv_pd { context: context.c(), handle: domain.0 };
        let Alias { uses, single_threaded } = alias;
        publish(Self { c: UnsafeCell::new(c), domain, single_threaded, context: Arc::clone(context) }, uses)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    pub(crate) fn is_single_threaded(&self) -> bool {
        self.single_threaded
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object!(find::<Context>(context).map(|context| {
        let domain = context.engine().device().allocate_domain();
        Pd::new(&context, domain, Alias::default()).c()
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroyed!(take_back::<Pd>(pd).map(drop))
}
