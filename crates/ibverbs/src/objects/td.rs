//! Thread domains. By creating objects in a thread domain, a program promises that one thread at a time uses them.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::support::object::{CCell, CObject, Uses, publish};
use std::sync::Arc;

/// A thread domain.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Td {
    c: CCell<ibv_td>,
    context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Td {
    type C = ibv_td;
}

impl Td {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        let c = CCell::new(ibv_td { context: context.c() });
        publish(Self { c, context }, Uses::default())
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}
