//! Memory windows of C programs.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::mr::{Mr, remote_rights};
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, begin_destroy, find, publish};
use ironwarp_rnic::memory::{Binding, Scope};
use ironwarp_rnic::queue::Operation;
use ironwarp_wire::Tag;
use std::sync::Arc;

/// A memory window. Peers access a window of type 1 by any queue pair of its protection domain, and a window of type 2
/// only by the queue pair on which it was bound.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mw {
    c: CCell<ibv_mw>,
    kind: ibv_mw_type,
    pd: Arc<Pd>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Mw {
    type C = ibv_mw;
}

impl Mw {
    /// Allocates a window that is not bound.
    pub(crate) fn new(pd: Arc<Pd>, kind: ibv_mw_type) -> Result<Arc<Self>, Errno> {
        let uses = Uses::of(&*pd)?;
        let tag = pd.context().engine().device().table().allocate_window(pd.domain())?;
        let c = ibv_mw { context: pd.context().c(), pd: pd.c(), rkey: tag.0, handle: tag.0, type_: kind };
        Ok(publish(Self { c: CCell::new(c), kind, pd }, uses))
    }

    pub(crate) fn kind(&self) -> ibv_mw_type {
        self.kind
    }

    /// Returns the tag in the C structure. For type 2, which is bound by requests, only the index of the tag is
    /// current.
    pub(crate) fn tag(&self) -> Tag {
        // SAFETY: `c` is valid. Only `set_tag` and the program write this field, and the program must not do so while
        // it binds or destroys the window.
        Tag(unsafe { (*self.c.get()).rkey })
    }

    /// Returns the tag that the adapter will give the window with the next binding, if the window is of type 1. After 255
    /// bindings, the tag has another index (requirement M4).
    pub(crate) fn next_tag(&self) -> Result<Tag, Errno> {
        Ok(self.pd.context().engine().device().table().reserve_next_tag(self.tag())?)
    }

    /// Sets the tag that the window has once it is bound.
    pub(crate) fn set_tag(&self, tag: Tag) {
        // SAFETY: `c` is valid. The program must not bind the same window in two threads at once.
        unsafe { (*self.c.get()).rkey = tag.0 };
    }

    /// Converts the parameters with which a C program binds the window at a queue pair of this context, for both types of
    /// windows. A length of zero unbinds the window, and the region is then ignored. EINVAL if the region does not exist,
    /// or if it or the window belongs to another context: its tag may name other memory here.
    pub(crate) fn binding(&self, context: &Context, info: &ibv_mw_bind_info) -> Result<Binding, Errno> {
        context.check_same_adapter(self.pd.context(), "window")?;
        let region = match info.length {
            0 => Tag(0), // no region
            _ => {
                let mr = find::<Mr>(info.mr)?;
                context.check_same_adapter(mr.pd().context(), "memory region")?;
                mr.tag()
            }
        };
        let scope = if self.kind == IBV_MW_TYPE_1 { Scope::Domain } else { Scope::Stream };
        Ok(Binding {
            region,
            at: info.addr,
            len: info.length,
            rights: remote_rights(info.mw_access_flags),
            scope,
            zero_based: info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0,
            one_touch: false, // only the native API has windows for a single message
        })
    }
}

/// Destroys a window.
pub(crate) fn destroy(mw: *mut ibv_mw) -> Result<(), Errno> {
    let found = begin_destroy::<Mw>(mw)?;
    // A window of type 2 has another tag after each bind, for the same entry of the table.
    let table = found.pd.context().engine().device().table();
    let now = table
        .current_tag(found.tag())
        .ok_or_else(|| Errno::INVALID.because("the window no longer exists"))?;
    table.deregister(now)?;
    found.finish();
    Ok(())
}

/// Returns the operation that binds a window of type 2 at a queue pair of this context. The last byte of `rkey`, which the program chooses, becomes
/// the last byte of the window's tag. The other bytes stay.
pub(crate) fn bind_operation(
    context: &Context,
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Operation, Errno> {
    let window = find::<Mw>(mw)?;
    if window.kind != IBV_MW_TYPE_2 {
        return Err(Errno::INVALID.because("the window is of type 1: bind it with ibv_bind_mw"));
    }
    let tag = Tag(window.tag().0 & !0xff | rkey & 0xff);
    Ok(Operation::BindAs { tag, binding: window.binding(context, info)? })
}
