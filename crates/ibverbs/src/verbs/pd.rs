//! Entry points for protection domains.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::pd::{Alias, Pd};
use crate::support::errno::{destroy_code, object};
use crate::support::object::{CObject, destroy_object, find};
use std::ffi::c_int;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object!(find::<Context>(context).map(|context| {
        let domain = context.engine().device().allocate_domain();
        Pd::new(&context, domain, Alias::default()).c()
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy_code!(destroy_object::<Pd>(pd).map(drop))
}
