//! Protection domains.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, destroyed, object};
use crate::object::{CObject, Use, Users, find, publish, take_back_unused};
use ironwarp_rnic::memory::Domain;
use std::cell::UnsafeCell;
use std::ffi::c_int;

/// A protection domain, or a parent domain, which is another name for one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    context: &'static Context,
    domain: Domain,
    users: Users,
    _in_use: Use,
    /// The domain that this is another name for, and the thread domain in it.
    alias: Option<Alias>,
}

/// What makes a parent domain of a domain.
#[derive(Debug)]
pub(crate) struct Alias {
    pub(crate) _domain: Use,
    pub(crate) thread: Option<Use>,
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
    pub(crate) fn new(context: &'static Context, domain: Domain, alias: Option<Alias>) -> &'static Self {
        let c = ibv_pd { context: context.c(), handle: domain.0 };
        let users = Users::default();
        publish(Self { c: UnsafeCell::new(c), context, domain, users, _in_use: context.in_use(), alias })
    }

    pub(crate) fn context(&self) -> &'static Context {
        self.context
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// The program promised that what is made in it is used by one thread at a time.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.alias.as_ref().is_some_and(|alias| alias.thread.is_some())
    }

    /// Something is made in it: it cannot be destroyed before that.
    pub(crate) fn in_use(&'static self) -> Use {
        Use::of(&self.users)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object!(
        find::<Context>(context).map(|context| Pd::new(
            context,
            context.engine().device().allocate_domain(),
            None
        )
        .c()),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroyed!(dealloc(pd))
}

fn dealloc(pd: *mut ibv_pd) -> Result<(), Errno> {
    let users = &find::<Pd>(pd)?.users;
    take_back_unused::<Pd>(pd, users).map(drop)
}
