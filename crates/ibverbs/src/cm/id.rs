//! Ids: made, moved to another channel, destroyed. What they go through is in `state.rs`.
//!
//! An id without a channel of the program's is synchronous: it has a channel of its own, and each call waits for the event
//! that it leads to.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address;
use super::channel::{self, CmChannel, next_event};
use super::device::{CmDevice, View};
use super::event::acknowledge;
use super::state::{Phase, Shared};
use crate::abi::*;
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one};
use crate::object::{CObject, Uses, begin_destroy, find, publish, put};
use crate::persona::is_iwarp;
use crate::qp::Qp;
use ironwarp_engine::gid::Gid;
use ironwarp_wire::private::PortSpace;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

/// An id.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Id {
    c: UnsafeCell<rdma_cm_id>,
    behind: UnsafeCell<Behind>,
    shared: Arc<Shared>,
    /// What endpoints make of the queue pairs of peers.
    pub(super) template: UnsafeCell<Option<ibv_qp_init_attr>>,
}

/// What code of rdma-core 44 (rsockets) reads and writes behind an id.
#[repr(C)]
#[derive(Debug)]
struct Behind {
    device: *const View,
    connect: *mut c_void,
    connect_len: usize,
    events_completed: c_int,
    connect_error: c_int,
    synchronous: c_int,
}

// SAFETY: the C structure comes first. It is written by calls of the program with this id, which take turns, as
// librdmacm wants them to; the same holds for the other cells.
unsafe impl CObject for Id {
    type C = rdma_cm_id;
}
// SAFETY: as above.
unsafe impl Sync for Id {}
// SAFETY: as above.
unsafe impl Send for Id {}

/// What kind of connection an id is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) port_space: rdma_port_space,
    pub(super) qp_type: ibv_qp_type,
}

impl Kind {
    pub(super) fn of(port_space: rdma_port_space) -> Self {
        let datagrams = matches!(port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
        Self { port_space, qp_type: if datagrams { IBV_QPT_UD } else { IBV_QPT_RC } }
    }
}

impl Id {
    /// An id with this channel; NULL: synchronous.
    pub(super) fn new(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        kind: Kind,
    ) -> Result<Arc<Self>, Errno> {
        let synchronous = channel.is_null();
        let channel = if synchronous { CmChannel::new()? } else { find::<CmChannel>(channel)? };
        let shared = Shared::new(Arc::clone(channel.queue()), kind.port_space);
        let mut c = rdma_cm_id::zeroed();
        c.channel = channel.c();
        c.context = context;
        c.ps = kind.port_space;
        c.qp_type = kind.qp_type;
        let behind = Behind {
            device: ptr::null(),
            connect: ptr::null_mut(),
            connect_len: 0,
            events_completed: 0,
            connect_error: 0,
            synchronous: synchronous.into(),
        };
        let (c, behind, template) = (UnsafeCell::new(c), UnsafeCell::new(behind), UnsafeCell::new(None));
        let id = publish(Self { c, behind, shared, template }, Uses::default());
        id.shared.set_c(id.c() as usize);
        Ok(id)
    }

    /// The id whose shared part this is, if the program has not destroyed it.
    pub(super) fn at(shared: &Shared) -> Result<Arc<Self>, Errno> {
        find(shared.c() as *const rdma_cm_id)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn is_synchronous(&self) -> bool {
        // SAFETY: a word, which rsockets may have written.
        unsafe { (*self.behind.get()).synchronous != 0 }
    }

    fn set_synchronous(&self, synchronous: bool) {
        // SAFETY: as above.
        unsafe { (*self.behind.get()).synchronous = synchronous.into() };
    }

    /// Its queue pair, if it has one.
    pub(super) fn qp(&self) -> Result<Option<Arc<Qp>>, Errno> {
        // SAFETY: the program's structure.
        let qp = unsafe { (*self.c()).qp };
        if qp.is_null() { Ok(None) } else { find::<Qp>(qp).map(Some) }
    }

    /// It hears of this queue pair's connection, whichever id made it.
    pub(super) fn watches(&self, qp: &Qp) {
        if let Some(watch) = qp.watch() {
            watch.follow(&self.shared);
        }
    }

    pub(super) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: the program's structure.
        unsafe { (*self.c()).qp_type }
    }

    /// The space that its port is in.
    pub(super) fn port_space(&self) -> PortSpace {
        match self.shared.lock().port_space {
            RDMA_PS_UDP | RDMA_PS_IPOIB => PortSpace::Datagram,
            _ => PortSpace::Stream,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// The device, once the id has an address that leads there.
    pub(super) fn device(&self) -> Result<&'static CmDevice, Errno> {
        // SAFETY: the program's structure.
        if unsafe { (*self.c()).verbs.is_null() } {
            return Err(Errno::INVALID);
        }
        CmDevice::get()
    }

    /// It has an address of the device from now on.
    pub(super) fn set_device(&self) -> Result<(), Errno> {
        let device = CmDevice::get()?;
        let c = self.c();
        // SAFETY: the program's structure, in a call of the program with it.
        unsafe {
            if (*c).verbs.is_null() {
                (*c).verbs = device.context.c();
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = device.pd.c();
                }
            }
            (*self.behind.get()).device = device.view();
        }
        Ok(())
    }

    pub(super) fn set_local(&self, local: SocketAddr) {
        let local = address::canonical(local);
        self.shared.lock().local = Some(local);
        // SAFETY: the program's structure, in a call of the program with it.
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).src = address::to_c(local);
            (*addr).addr.sgid = ibv_gid { raw: Gid::from(local.ip()).to_bytes() };
            (*addr).addr.pkey = 0xffff;
        }
    }

    /// Shows the program the address that the connection has.
    pub(super) fn show_local(&self) {
        let local = self.shared.lock().local;
        if let Some(local) = local {
            self.set_local(local);
        }
    }

    pub(super) fn set_remote(&self, remote: SocketAddr) {
        let remote = address::canonical(remote);
        self.shared.lock().remote = Some(remote);
        // SAFETY: the program's structure, in a call of the program with it.
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).dst = address::to_c(remote);
            (*addr).addr.dgid = ibv_gid { raw: Gid::from(remote.ip()).to_bytes() };
        }
    }

    /// Both ends are known: those of a peer that wants to connect.
    pub(super) fn set_addresses(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), Errno> {
        self.set_local(local);
        self.set_remote(remote);
        self.set_device()?;
        self.set_path();
        Ok(())
    }

    /// The route's one path, as an adapter on Ethernet describes it. An iWARP adapter has none.
    pub(super) fn set_path(&self) {
        if is_iwarp() {
            return;
        }
        // SAFETY: the program's structure, in a call of the program with it.
        let route = unsafe { &mut (*self.c()).route };
        if route.path_rec.is_null() {
            let mut path = ibv_sa_path_rec::zeroed();
            path.dgid = route.addr.addr.dgid;
            path.sgid = route.addr.addr.sgid;
            path.hop_limit = 64;
            path.traffic_class = self.shared.lock().options.traffic_class;
            path.reversible = 1;
            path.numb_path = 1;
            path.pkey = 0xffff;
            path.mtu_selector = 2; // exactly
            path.mtu = u8::try_from(IBV_MTU_4096).unwrap_or_default();
            path.rate_selector = 2;
            path.rate = 16; // 100 Gb/s
            path.packet_life_time_selector = 2;
            path.packet_life_time = 18;
            route.path_rec = Box::into_raw(Box::new(path));
            route.num_paths = 1;
        }
    }

    /// The channel that its events come from.
    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        // SAFETY: the program's structure.
        unsafe { (*self.c()).channel }
    }

    /// The event that a synchronous id keeps until its next call.
    pub(super) fn acknowledge_own_event(&self) {
        // SAFETY: the program's structure, in a call of the program with it.
        let event = unsafe { std::mem::replace(&mut (*self.c()).event, ptr::null_mut()) };
        if !event.is_null() {
            let _ = acknowledge(event);
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let path = self.c.get_mut().route.path_rec;
        if !path.is_null() {
            // SAFETY: made by `set_path`, and nobody else frees it.
            drop(unsafe { Box::from_raw(path) });
        }
    }
}

/// Waits for the next event of an id; `None`: it is not synchronous. The thread may be cancelled in here: nothing with a
/// destructor is alive while it waits, and the id is looked up again afterwards.
pub(super) fn own_event(c: *mut rdma_cm_id) -> Result<Option<(Arc<Id>, *mut rdma_cm_event)>, Errno> {
    let channel = uncancelled(|| {
        find::<Id>(c).map(|id| {
            id.is_synchronous().then(|| {
                id.acknowledge_own_event();
                id.channel()
            })
        })
    })?;
    let Some(channel) = channel else { return Ok(None) };
    let event = next_event(channel)?;
    match uncancelled(|| find::<Id>(c)) {
        Ok(id) => Ok(Some((id, event))),
        Err(errno) => {
            let _ = acknowledge(event);
            Err(errno)
        }
    }
}

/// What a call of a synchronous id leads to: waits for it. Others are done. The thread may be cancelled in here.
pub(super) fn complete(c: *mut rdma_cm_id) -> Result<(), Errno> {
    let Some((id, event)) = own_event(c)? else { return Ok(()) };
    // SAFETY: the program's structure, in a call of the program with it; the event was just made.
    let (kind, status) = unsafe {
        (*id.c()).event = event;
        ((*event).event, (*event).status)
    };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: rdma_port_space,
) -> c_int {
    if id.is_null() {
        return minus_one!(Err(Errno::null("id")));
    }
    let known = matches!(port_space, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IB | RDMA_PS_IPOIB);
    let made = if known { Id::new(channel, context, Kind::of(port_space)) } else { Err(Errno::INVALID) };
    minus_one!(made.map(|made| {
        // SAFETY: not NULL, and the caller's.
        unsafe { put(id, made.c()) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    match uncancelled(|| destroy(id)) {
        // What was inherited from a parent is the parent's: there is nothing to do.
        Err(Errno::INHERITED) => 0,
        other => minus_one!(other),
    }
}

pub(super) fn destroy(c: *mut rdma_cm_id) -> Result<(), Errno> {
    let id = begin_destroy::<Id>(c)?;
    let shared = id.shared();
    let (queue, parts) = {
        let mut state = shared.lock();
        state.phase = Phase::Destroyed;
        let parts = (
            (state.bound.take(), state.listening.take(), state.request.take()),
            (state.attempt.take(), state.link.take()),
        );
        (Arc::clone(&state.queue), parts)
    };
    let (of_listener, (attempt, link)) = parts;
    drop(of_listener); // who waits there is turned away
    let pairs = [attempt.map(|attempt| attempt.pair), link.map(|link| link.pair)];
    pairs.into_iter().flatten().for_each(|pair| pair.disconnect());
    drop(queue.take_back(shared));
    id.acknowledge_own_event();
    shared.wait_for_acknowledgements();
    let (channel, synchronous) = (id.channel(), id.is_synchronous());
    id.finish();
    if synchronous { channel::destroy(channel) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    minus_one!(migrate(id, channel))
}

/// Its events come from another channel from now on; NULL: it becomes synchronous.
fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    let (before, was_synchronous) = (id.channel(), id.is_synchronous());
    if was_synchronous && !to.is_null() {
        id.acknowledge_own_event();
    }
    let channel = if to.is_null() { CmChannel::new()? } else { find::<CmChannel>(to)? };
    {
        let mut state = id.shared().lock();
        let old = std::mem::replace(&mut state.queue, Arc::clone(channel.queue()));
        old.take_back(id.shared()).into_iter().for_each(|event| state.queue.push(event));
    }
    // SAFETY: the program's structure, in a call of the program with it.
    unsafe { (*id.c()).channel = channel.c() };
    id.set_synchronous(to.is_null());
    // What was delivered through the channel before is still its.
    id.shared().wait_for_acknowledgements();
    if was_synchronous {
        channel::destroy(before)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let local = find::<Id>(id).ok().and_then(|id| id.shared().lock().local);
    local.map_or(0, |local| local.port().to_be())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let remote = find::<Id>(id).ok().and_then(|id| id.shared().lock().remote);
    remote.map_or(0, |remote| remote.port().to_be())
}
