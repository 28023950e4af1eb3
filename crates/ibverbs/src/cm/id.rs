//! Ids. Their state is in `state.rs`.
//!
//! An id without a channel of the program is synchronous: it has a channel of its own, and each call waits
//! for the event that it leads to.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address;
use super::channel::{self, CmChannel};
use super::delivered::acknowledge;
use super::device::{CmDevice, View};
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
#[repr(C)]
#[derive(Debug)]
pub(super) struct Id {
    c: CCell<rdma_cm_id>,
    legacy: CCell<LegacyFields>,
    shared: Arc<Shared>,
    /// Attributes of the queue pairs that an endpoint creates for its peers.
    pub(super) template: CCell<Option<ibv_qp_init_attr>>,
}

/// The fields after an id that code of rdma-core 44 (rsockets) reads and writes.
#[repr(C)]
#[derive(Debug)]
struct LegacyFields {
    device: *const View,
    connect: *mut c_void,
    connect_len: usize,
    events_completed: c_int,
    connect_error: c_int,
    synchronous: c_int,
}

// SAFETY: the C structure comes first. Calls with this id write to it and to the other cells, and librdmacm
// requires that they take turns.
unsafe impl CObject for Id {
    type C = rdma_cm_id;
}

/// The kind of connection that an id is for.
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
    /// Creates an id. Without a channel it is synchronous.
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

    /// The id with this state, unless the program has destroyed it.
    pub(super) fn at(shared: &Shared) -> Result<Arc<Self>, Errno> {
        find(shared.c() as *const rdma_cm_id)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn is_synchronous(&self) -> bool {
        // SAFETY: a field that rsockets may have written.
        unsafe { (*self.legacy.get()).synchronous != 0 }
    }

    fn set_synchronous(&self, synchronous: bool) {
        // SAFETY: as above.
        unsafe { (*self.legacy.get()).synchronous = synchronous.into() };
    }

    /// Its queue pair, if it has one.
    pub(super) fn qp(&self) -> Result<Option<Arc<Qp>>, Errno> {
        // SAFETY: the program's structure, alive during the call.
        let qp = unsafe { (*self.c()).qp };
        if qp.is_null() { Ok(None) } else { find::<Qp>(qp).map(Some) }
    }

    pub(super) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: the program's structure, alive during the call.
        unsafe { (*self.c()).qp_type }
    }

    /// The port space of its port.
    pub(super) fn port_space(&self) -> PortSpace {
        match self.shared.lock().port_space {
            RDMA_PS_UDP | RDMA_PS_IPOIB => PortSpace::Datagram,
            _ => PortSpace::Stream,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// The device. EINVAL unless the id has an address of it.
    pub(super) fn device(&self) -> Result<&'static CmDevice, Errno> {
        // SAFETY: the program's structure, alive during the call.
        if unsafe { (*self.c()).verbs.is_null() } {
            return Err(Errno::INVALID);
        }
        CmDevice::get()
    }

    /// Binds the id to the device.
    pub(super) fn set_device(&self) -> Result<(), Errno> {
        let device = CmDevice::get()?;
        let c = self.c();
        // SAFETY: the program's structure, which no other call uses meanwhile.
        unsafe {
            if (*c).verbs.is_null() {
                (*c).verbs = device.context.c();
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = device.pd.c();
                }
            }
            (*self.legacy.get()).device = device.view();
        }
        Ok(())
    }

    pub(super) fn set_local(&self, local: SocketAddr) {
        let local = address::canonical(local);
        self.shared.lock().local = Some(local);
        // SAFETY: the program's structure, which no other call uses meanwhile.
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).src = sockaddr::to_c(local);
            (*addr).addr.sgid = ibv_gid { raw: Gid::from(local.ip()).to_bytes() };
            (*addr).addr.pkey = 0xffff;
        }
    }

    /// Copies the local address of the connection to the C structure.
    pub(super) fn publish_local(&self) {
        let local = self.shared.lock().local;
        if let Some(local) = local {
            self.set_local(local);
        }
    }

    pub(super) fn set_remote(&self, remote: SocketAddr) {
        let remote = address::canonical(remote);
        self.shared.lock().remote = Some(remote);
        // SAFETY: the program's structure, which no other call uses meanwhile.
        unsafe {
            let addr = &raw mut (*self.c()).route.addr;
            (*addr).dst = sockaddr::to_c(remote);
            (*addr).addr.dgid = ibv_gid { raw: Gid::from(remote.ip()).to_bytes() };
        }
    }

    /// Sets both addresses of the request of a peer.
    pub(super) fn set_addresses(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), Errno> {
        self.set_local(local);
        self.set_remote(remote);
        self.set_device()?;
        self.set_path();
        Ok(())
    }

    /// Sets the path of the route, as an adapter on Ethernet describes it. iWARP has none.
    pub(super) fn set_path(&self) {
        if is_iwarp() {
            return;
        }
        // SAFETY: the program's structure, which no other call uses meanwhile.
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

    /// The channel of its events.
    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        // SAFETY: the program's structure, alive during the call.
        unsafe { (*self.c()).channel }
    }

    /// Acknowledges the event that a synchronous id keeps until its next call.
    pub(super) fn acknowledge_last_event(&self) {
        // SAFETY: the program's structure, which no other call uses meanwhile.
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
            // SAFETY: allocated by `set_path`, and freed only here.
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
    let made = if known { Id::new(channel, context, Kind::of(port_space)) } else { Err(Errno::INVALID) };
    minus_one!(made.map(|made| {
        // SAFETY: not NULL, and valid by the caller's contract.
        unsafe { put(id, made.c()) };
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
    drop(of_listener); // rejects peers that wait there
    let pairs = [attempt.map(|attempt| attempt.pair), link.map(|link| link.pair)];
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

/// Moves an id and its events to another channel. With NULL it becomes synchronous.
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
    // SAFETY: the program's structure, which no other call uses meanwhile.
    unsafe { (*id.c()).channel = channel.c() };
    id.set_synchronous(to.is_null());
    // Events that the old channel delivered must be acknowledged first.
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
