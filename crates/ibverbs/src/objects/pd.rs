//! Protection domains.
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
    /// The program promised that one thread at a time uses what is created in it.
    single_threaded: bool,
    context: Arc<Context>,
}

/// What distinguishes a parent domain from its protection domain.
#[derive(Debug, Default)]
pub(crate) struct Alias {
    /// The protection domain and the thread domain.
    pub(crate) uses: Uses,
    pub(crate) single_threaded: bool,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Pd {
    type C = ibv_pd;
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>, domain: Domain, alias: Alias) -> Arc<Self> {
        let c = ibv_pd { context: context.c(), handle: domain.0 };
        let Alias { uses, single_threaded } = alias;
        publish(Self { c: CCell::new(c), domain, single_threaded, context: Arc::clone(context) }, uses)
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
