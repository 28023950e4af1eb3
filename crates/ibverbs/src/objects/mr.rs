//! Memory regions. Registration pins no pages, so every region behaves like one with on-demand paging: a region is a
//! range of addresses, and peers that know its tag access the memory that is mapped there at the time of the access
//! (docs/programs.md).
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::check::{self, Region, Stack};
use crate::objects::dm::{Bytes as DeviceMemory, Dm};
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, begin_destroy, find, publish};
use ironwarp_rnic::memory::{Bytes, Memory, Reregistration, Rights, Translation};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::Tag;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// The access flags that registration accepts, besides optional ones.
const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB;

/// A memory region.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    c: CCell<ibv_mr>,
    state: Mutex<State>,
    /// The device memory that contains the region, which the region keeps alive. `None` for memory of the program.
    memory: Option<Arc<DeviceMemory>>,
}

/// The properties that re-registration can change.
#[derive(Debug)]
struct State {
    pd: Arc<Pd>,
    tag: Tag,
    /// The access flags, as `ibv_access_flags`.
    access: c_uint,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Mr {
    type C = ibv_mr;
}

/// A range of memory to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Address of the memory in this process.
    pub(crate) addr: u64,
    pub(crate) len: usize,
    /// The address by which requests refer to the first byte (`iova`).
    pub(crate) start: u64,
}

impl Mr {
    /// Registers memory in `pd`. `dm` is the device memory that contains the range, if any.
    pub(crate) fn new(
        pd: Arc<Pd>,
        range: Range,
        access: c_uint,
        dm: Option<&Dm>,
    ) -> Result<Arc<Self>, Errno> {
        let Range { addr, len, .. } = range;
        let mut uses = Uses::of(&*pd)?;
        if let Some(dm) = dm {
            uses = uses.and(dm)?;
        }
        let tag = register_range(&pd, range, access)?;
        let c = ibv_mr {
            context: pd.context().c(),
            pd: pd.c(),
            addr: addr as *mut c_void,
            length: len,
            handle: tag.0,
            lkey: tag.0,
            rkey: tag.0,
        };
        if let Some(checker) = check::active() {
            checker.registered(pd.context().adapter_key(), tag.0, region(range, access, dm.is_none()));
        }
        let state = Mutex::new(State { pd, tag, access });
        let memory = dm.map(|dm| Arc::clone(dm.bytes()));
        Ok(publish(Self { c: CCell::new(c), state, memory }, uses))
    }

    /// Creates another object for the region `of`, in another context or domain of the same device.
    pub(crate) fn import(pd: Arc<Pd>, of: &Self) -> Result<Arc<Self>, Errno> {
        let uses = Uses::of(&*pd)?;
        let (tag, access) = {
            let state = of.state();
            (state.tag, state.access)
        };
        // SAFETY: `of` is alive. Only re-registration writes its structure, and the program must not re-register a
        // region while it uses the region in another call.
        let mut c = unsafe { *of.c.get() };
        (c.context, c.pd, c.addr) = (pd.context().c(), pd.c(), std::ptr::null_mut());
        let state = Mutex::new(State { pd, tag, access });
        Ok(publish(Self { c: CCell::new(c), state, memory: of.memory.clone() }, uses))
    }

    /// Sets the address in the C structure to NULL, because programs must not access device memory directly.
    pub(crate) fn hide_address(&self) {
        // SAFETY: the call that creates the region has not returned its pointer yet, so no other thread accesses it.
        unsafe { (*self.c.get()).addr = std::ptr::null_mut() };
    }

    /// Locks the properties that re-registration can change.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.state().pd)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.state().tag
    }

    /// Changes the domain, the memory or the access rights of the region: those that `flags` names
    /// (`IBV_REREG_MR_CHANGE_*`). The tag stays. On failure the region is unchanged.
    pub(crate) fn reregister(
        &self,
        flags: c_uint,
        pd: *mut ibv_pd,
        range: Range,
        access: c_int,
    ) -> Result<(), Errno> {
        let mut to = Reregistration { keep_tag: true, ..Reregistration::default() };
        let new_pd = match flags & IBV_REREG_MR_CHANGE_PD {
            0 => None,
            _ => Some(find::<Pd>(pd)?),
        };
        to.domain = new_pd.as_ref().map(|pd| pd.domain());
        let mut uses = new_pd.as_deref().map_or(Ok(Uses::default()), Uses::of)?;
        let mut state = self.state();
        if let Some(new_pd) = &new_pd {
            state.pd.context().check_same_adapter(new_pd.context(), "protection domain")?;
        }
        let mut new_access = state.access;
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            new_access = access.cast_unsigned();
            to.rights = Some(rights(new_access)?);
        }
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            let len = range.len as u64;
            let translation = Arc::new(
                Translation::direct(range.addr, len).map_err(|error| Errno::INVALID.because(error))?,
            );
            to.bytes = Some(Bytes { start: range.start, len, translation });
        }
        state.tag = state.pd.context().engine().device().reregister(state.tag, to)?;
        state.access = new_access;
        if let Some(new_pd) = new_pd {
            uses.exchange(self, &*state.pd);
            state.pd = new_pd;
        }
        if let Some(checker) = check::active() {
            checker.reregistered(state.pd.context().adapter_key(), state.tag.0, |region| {
                region.access = state.access;
                if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                    (region.addr, region.len, region.start) = (range.addr, range.len as u64, range.start);
                }
            });
        }
        // SAFETY: `c` is valid, and the program must not use the region during this call (ibv_rereg_mr(3)).
        let c = unsafe { &mut *self.c.get() };
        (c.lkey, c.rkey, c.pd) = (state.tag.0, state.tag.0, state.pd.c());
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            (c.addr, c.length) = (range.addr as *mut c_void, range.len);
        }
        Ok(())
    }
}

/// Describes a region to the checker. `accessible` says whether the program can access the memory.
fn region(range: Range, access: c_uint, accessible: bool) -> Region {
    Region {
        addr: range.addr,
        len: range.len as u64,
        start: range.start,
        access,
        accessible,
        created: Stack::capture(),
    }
}

/// Registers a range in the adapter's table, and returns its tag.
fn register_range(pd: &Pd, range: Range, access: c_uint) -> Result<Tag, Errno> {
    let Range { addr, len, start } = range;
    let rights = rights(access)?;
    let device = pd.context().engine().device();
    if len == 0 {
        // The adapter has no empty regions. A tag without memory refuses every access, too.
        return Ok(device.table().allocate(pd.domain())?);
    }
    let on_demand = access & IBV_ACCESS_ON_DEMAND != 0;
    // Verbs define a region of the whole address space only for on-demand paging (implicit ODP).
    if (addr, len) == (0, usize::MAX) && !on_demand {
        return Err(Errno::INVALID.because("a region of all memory requires IBV_ACCESS_ON_DEMAND"));
    }
    let translation =
        Arc::new(Translation::direct(addr, len as u64).map_err(|error| Errno::INVALID.because(error))?);
    let memory = Memory { start, len: len as u64, rights, one_touch: false, translation };
    match on_demand {
        true => Ok(device.register_on_demand(pd.domain(), memory)?),
        false => Ok(device.register(pd.domain(), memory)?),
    }
}

/// Converts access flags to rights of the adapter. Local reads are always allowed, as on every adapter. Fails with
/// EINVAL for unknown or contradictory flags, and with EOPNOTSUPP for those of flush operations.
pub(crate) fn rights(access: c_uint) -> Result<Rights, Errno> {
    let mandatory = access & !IBV_ACCESS_OPTIONAL_RANGE;
    let flush = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;
    if mandatory & !(KNOWN | flush) != 0 {
        return Err(Errno::INVALID.because(format_args!("access {access:#x} has unknown bits")));
    }
    if mandatory & flush != 0 {
        return Err(Errno::UNSUPPORTED.because("access: flush operations are not supported"));
    }
    let mut rights = Rights::LOCAL_READ;
    rights.set(Rights::LOCAL_WRITE, mandatory & IBV_ACCESS_LOCAL_WRITE != 0);
    rights.set(Rights::BIND, mandatory & IBV_ACCESS_MW_BIND != 0);
    rights |= remote_rights(mandatory);
    // Verbs require local write access for remote write access.
    let writable = mandatory & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if writable && !rights.contains(Rights::LOCAL_WRITE) {
        return Err(Errno::INVALID
            .because("access: IBV_ACCESS_REMOTE_WRITE and _ATOMIC require IBV_ACCESS_LOCAL_WRITE"));
    }
    Ok(rights)
}

/// Converts the flags among `access` that grant rights to peers.
pub(crate) fn remote_rights(access: c_uint) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::REMOTE_WRITE, access & IBV_ACCESS_REMOTE_WRITE != 0);
    rights.set(Rights::REMOTE_READ, access & IBV_ACCESS_REMOTE_READ != 0);
    rights.set(Rights::REMOTE_ATOMIC, access & IBV_ACCESS_REMOTE_ATOMIC != 0);
    rights
}

/// Deregisters and destroys a region. Fails with EBUSY if memory windows are bound to it.
pub(crate) fn destroy(c: *mut ibv_mr) -> Result<(), Errno> {
    let mr = begin_destroy::<Mr>(c)?;
    {
        let state = mr.state();
        let context = state.pd.context();
        if let Some(checker) = check::active() {
            checker.deregistered(context.adapter_key(), state.tag.0);
        }
        context.engine().device().table().deregister(state.tag)?;
    }
    mr.finish();
    Ok(())
}
