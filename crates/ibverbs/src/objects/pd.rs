//! Protection domains of C programs.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::support::object::{CCell, CObject, Uses, publish};
use ironwarp_rnic::memory::Domain;
use std::sync::Arc;

/// A protection domain, or a parent domain, which is an alias of one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    c: CCell<ibv_pd>,
    domain: Domain,
    /// Whether the program promised that one thread at a time uses the objects that are created in this domain.
    single_threaded: bool,
    context: Arc<Context>,
}

/// The properties of a parent domain that its protection domain lacks. The default is a protection domain.
#[derive(Debug, Default)]
pub(crate) struct Alias {
    /// The protection domain, and the thread domain if there is one.
    pub(crate) uses: Uses,
    /// Whether there is a thread domain.
    pub(crate) single_threaded: bool,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Pd {
    type C = ibv_pd;
}

impl Pd {
    /// Creates an object for a protection domain of the adapter.
    pub(crate) fn new(context: &Arc<Context>, domain: Domain, alias: Alias) -> Arc<Self> {
        let c = ibv_pd { context: context.c(), handle: domain.0 };
        let Alias { uses, single_threaded } = alias;
        publish(Self { c: CCell::new(c), domain, single_threaded, context: Arc::clone(context) }, uses)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the protection domain of the adapter.
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    /// Returns whether the program promised that one thread at a time uses the objects that are created in this domain.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.single_threaded
    }
}
