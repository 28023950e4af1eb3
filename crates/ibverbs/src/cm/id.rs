//! Creates, migrates and destroys ids (`rdma_cm_id`), and fills in their C structures. The state of an id, which
//! lanes share, is in `state.rs`.
//!
//! An id that the program creates without an event channel is synchronous: the id has a channel of its own,
//! and each call waits for the event that reports its result.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address;
use super::channel::{self, CmChannel};
use super::delivered::acknowledge;
use super::device::{CmDevice, LegacyDevice};
use super::state::{Phase, Shared};
use crate::abi::*;
use crate::objects::qp::Qp;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{CCell, CObject, Uses, begin_destroy, find, publish, put};
use crate::support::persona::is_iwarp;
use crate::support::sockaddr;
use ironwarp_engine::gid::Gid;
use ironwarp_wire::private::PortSpace;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

/// An id.
///
/// librdmacm requires that calls on one id take turns. The SAFETY comments of this folder rely on that: a
/// call on an id is the only one that reads or writes its cells.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Id {
    c: CCell<rdma_cm_id>,
    legacy: CCell<LegacyFields>,
    shared: Arc<Shared>,
    /// For a listening id that `rdma_create_ep` created: the attributes with which `rdma_get_request` creates
    /// a queue pair for each peer. `None` if the program gave none.
    pub(super) template: CCell<Option<ibv_qp_init_attr>>,
}

/// The private fields that follow `rdma_cm_id` in librdmacm of rdma-core 44. Its rsockets code accesses them,
/// so they have the same layout here.
#[repr(C)]
#[derive(Debug)]
struct LegacyFields {
    device: *const LegacyDevice,
    connect: *mut c_void,
    connect_len: usize,
    events_completed: c_int,
    connect_error: c_int,
    /// Not zero if the id is synchronous.
    synchronous: c_int,
}

// SAFETY: the C structure is the first field of a `repr(C)` structure. Calls on one id take turns (see `Id`),
// so the accesses to its cells do not race.
unsafe impl CObject for Id {
    type C = rdma_cm_id;
}

/// The port space of an id, and the type of its queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) port_space: rdma_port_space,
    pub(super) qp_type: ibv_qp_type,
}

impl Kind {
    /// Returns the kind that a port space implies: UD for datagrams, RC for everything else.
    pub(super) fn of(port_space: rdma_port_space) -> Self {
        let datagrams = matches!(port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
        Self { port_space, qp_type: if datagrams { IBV_QPT_UD } else { IBV_QPT_RC } }
    }
}

impl Id {
    /// Creates an id. If `channel` is NULL, the id is synchronous and gets a channel of its own.
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
        let legacy = LegacyFields {
            device: ptr::null(),
            connect: ptr::null_mut(),
            connect_len: 0,
            events_completed: 0,
            connect_error: 0,
            synchronous: synchronous.into(),
        };
        let (c, legacy, template) = (CCell::new(c), CCell::new(legacy), CCell::new(None));
        let id = publish(Self { c, legacy, shared, template }, Uses::default());
        id.shared.set_c(id.c() as usize);
        Ok(id)
    }

    /// Finds the id that this state belongs to. EINVAL if the program has destroyed the id.
    pub(super) fn find_by_state(shared: &Shared) -> Result<Arc<Self>, Errno> {
        find(shared.c() as *const rdma_cm_id)
    }

    /// Returns the state that lanes share.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns whether each call on the id waits for its event.
    pub(super) fn is_synchronous(&self) -> bool {
        // SAFETY: `self` keeps the cell alive, and calls on one id take turns (see `Id`).
        unsafe { (*self.legacy.get()).synchronous != 0 }
    }

    /// Sets whether each call on the id waits for its event.
    fn set_synchronous(&self, synchronous: bool) {
        // SAFETY: `self` keeps the cell alive, and calls on one id take turns (see `Id`).
        unsafe { (*self.legacy.get()).synchronous = synchronous.into() };
    }

    /// Returns the queue pair of the id, or `None` if the id has none. EINVAL if the program has destroyed the queue
    /// pair by other means than `rdma_destroy_qp`.
    pub(super) fn qp(&self) -> Result<Option<Arc<Qp>>, Errno> {
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        let qp = unsafe { (*self.c()).qp };
        if qp.is_null() { Ok(None) } else { find::<Qp>(qp).map(Some) }
    }

    /// Returns the type of the queue pair that the id has, or will have.
    pub(super) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        unsafe { (*self.c()).qp_type }
    }

    /// Returns the space that the RDMA port of the id is in: datagram and stream ports are numbered independently.
    pub(super) fn port_space(&self) -> PortSpace {
        match self.shared.lock().port_space {
            RDMA_PS_UDP | RDMA_PS_IPOIB => PortSpace::Datagram,
            _ => PortSpace::Stream,
        }
    }

    /// Returns whether the id is for datagrams, so that it has no connection.
    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Returns the device that the id is bound to. EINVAL if the id is not bound to a device yet.
    pub(super) fn device(&self) -> Result<&'static CmDevice, Errno> {
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        if unsafe { (*self.c()).verbs.is_null() } {
            return Err(Errno::INVALID);
        }
        CmDevice::at(self.shared.local_ip()?)
    }

    /// Binds the id to the device of its local address: sets its context, port and, unless the program gave one,
    /// protection domain.
    pub(super) fn set_device(&self) -> Result<(), Errno> {
        let local = self.shared.local_ip()?;
        let device = CmDevice::at(local)?;
        // With the default device, an address such as 127.0.0.2 is in no GID table.
        let port = device.context.logical().find_gid(Gid::from(local))?.map_or(1, |(port, _)| port.number());
        let c = self.c();
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        unsafe {
            if (*c).verbs.is_null() {
                (*c).verbs = device.context.c();
                (*c).port_num = port;
                if (*c).pd.is_null() {
                    (*c).pd = device.pd.c();
                }
            }
            (*self.legacy.get()).device = device.legacy();
        }
        Ok(())
    }

    /// Sets the local address, in the state and in the C structure.
    pub(super) fn set_local(&self, local: SocketAddr) {
        let local = address::to_canonical(local);
        self.shared.lock().local = Some(local);
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).src = sockaddr::to_c(local);
            (*addr).addr.sgid = ibv_gid { raw: Gid::from(local.ip()).to_bytes() };
            (*addr).addr.pkey = 0xffff; // the default partition
        }
    }

    /// Copies the local address, if it is known, from the state to the C structure. Called when the program takes an
    /// event of an established connection: a lane has set the address in the state, but only threads of the program may
    /// write the C structure.
    pub(super) fn publish_local(&self) {
        let local = self.shared.lock().local; // unlocks before `set_local`, which locks again
        if let Some(local) = local {
            self.set_local(local);
        }
    }

    /// Sets the address of the peer, in the state and in the C structure.
    pub(super) fn set_remote(&self, remote: SocketAddr) {
        let remote = address::to_canonical(remote);
        self.shared.lock().remote = Some(remote);
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).dst = sockaddr::to_c(remote);
            (*addr).addr.dgid = ibv_gid { raw: Gid::from(remote.ip()).to_bytes() };
        }
    }

    /// Sets both addresses, the device and the path of an id that is created for the request of a peer.
    pub(super) fn set_addresses(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), Errno> {
        self.set_local(local);
        self.set_remote(remote);
        self.set_device()?;
        self.set_path();
        Ok(())
    }

    /// Sets the path record of the route to that of a RoCE adapter, unless an earlier call has set it. Does nothing if
    /// the persona is iWARP, which has no path records. The record is freed with the id.
    pub(super) fn set_path(&self) {
        /// Selector of a path record that says that the value is neither a minimum nor a maximum.
        const EXACTLY: u8 = 2;
        if is_iwarp() {
            return;
        }
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
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
            path.mtu_selector = EXACTLY;
            path.mtu = u8::try_from(IBV_MTU_4096).unwrap_or_default(); // 5, which fits
            path.rate_selector = EXACTLY;
            path.rate = 16; // 100 Gb/s
            path.packet_life_time_selector = EXACTLY;
            path.packet_life_time = 18; // 4.096 µs · 2^18, about a second
            route.path_rec = Box::into_raw(Box::new(path));
            route.num_paths = 1;
        }
    }

    /// Returns the channel that the events of the id go to.
    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        unsafe { (*self.c()).channel }
    }

    /// Acknowledges the event of the last call on a synchronous id, if any. The id keeps that event, in its field
    /// `event`, for the program to read. Called when another call begins to wait for its event, and when the id is
    /// destroyed or moved to a channel.
    pub(super) fn acknowledge_last_event(&self) {
        // SAFETY: `self` keeps the structure alive, and calls on one id take turns (see `Id`).
        let event = unsafe { std::mem::replace(&mut (*self.c()).event, ptr::null_mut()) };
        if !event.is_null() {
            let _ = acknowledge(event); // fails if the program has acknowledged it
        }
    }
}

/// Frees the path record, which the C structure owns through a pointer.
impl Drop for Id {
    fn drop(&mut self) {
        let path = self.c.get_mut().route.path_rec;
        if !path.is_null() {
            // SAFETY: `set_path` made the pointer from a box, and nothing else frees it.
            drop(unsafe { Box::from_raw(path) });
        }
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
    let created = if known { Id::new(channel, context, Kind::of(port_space)) } else { Err(Errno::INVALID) };
    minus_one!(created.map(|created| {
        // SAFETY: not NULL, and valid for a write by the caller's contract.
        unsafe { put(id, created.c()) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    match without_cancellation(|| destroy(id)) {
        // An id inherited from the parent process belongs to the parent, so there is nothing to destroy.
        Err(Errno::INHERITED) => 0,
        other => minus_one!(other),
    }
}

/// Destroys an id: stops listening, disconnects, drops the events that the program has not taken, and waits
/// until the program has acknowledged those that it has.
pub(super) fn destroy(c: *mut rdma_cm_id) -> Result<(), Errno> {
    let id = begin_destroy::<Id>(c)?;
    let shared = id.shared();
    let mut state = shared.lock();
    state.phase = Phase::Destroyed;
    let passive = (state.bound.take(), state.listening.take(), state.request.take());
    let pairs = [state.attempt.take().map(|attempt| attempt.pair), state.link.take().map(|link| link.pair)];
    let queue = Arc::clone(&state.queue);
    drop(state); // before the adapter is called, which may call back
    drop(passive); // rejects peers that have not been accepted
    pairs.into_iter().flatten().for_each(|pair| pair.disconnect());
    drop(queue.extract(|event| Arc::ptr_eq(&event.about, shared)));
    id.acknowledge_last_event();
    shared.wait_for_acknowledgements();
    let (channel, synchronous) = (id.channel(), id.is_synchronous());
    id.finish();
    if synchronous { channel::destroy(channel) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    minus_one!(migrate(id, channel))
}

/// Moves an id and the events that the program has not taken to the channel `to`. If `to` is NULL, the id
/// becomes synchronous. Waits until the program has acknowledged the events that it has taken.
fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    let (before, was_synchronous) = (id.channel(), id.is_synchronous());
    if was_synchronous && !to.is_null() {
        id.acknowledge_last_event();
    }
    let channel = if to.is_null() { CmChannel::new()? } else { find::<CmChannel>(to)? };
    {
        let mut state = id.shared().lock();
        let old = std::mem::replace(&mut state.queue, Arc::clone(channel.queue()));
        old.extract(|event| Arc::ptr_eq(&event.about, id.shared()))
            .into_iter()
            .for_each(|event| state.queue.push(event));
    }
    // SAFETY: `id` keeps the structure alive, and calls on one id take turns (see `Id`).
    unsafe { (*id.c()).channel = channel.c() };
    id.set_synchronous(to.is_null());
    // As in librdmacm: the caller may destroy the old channel next.
    id.shared().wait_for_acknowledgements();
    if was_synchronous {
        channel::destroy(before)?;
    }
    Ok(())
}

/// Returns the local port in network byte order, or 0 if the id is not bound.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let local = find::<Id>(id).ok().and_then(|id| id.shared().lock().local);
    local.map_or(0, |local| local.port().to_be())
}

/// Returns the port of the peer in network byte order, or 0 if the id has no peer.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let remote = find::<Id>(id).ok().and_then(|id| id.shared().lock().remote);
    remote.map_or(0, |remote| remote.port().to_be())
}
