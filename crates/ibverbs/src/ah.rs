//! Address handles: the way of a datagram to another port.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, code, destroyed, object};
use crate::object::{CObject, Uses, find, publish, put, take_back};
use crate::pd::Pd;
use crate::query::gid_at;
use ironwarp_engine::gid::{Gid, GidTable};
use ironwarp_rnic::datagram::{AddressHandle, Grh};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// An address handle.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    c: UnsafeCell<ibv_ah>,
    address: AddressHandle,
    /// Its C structure leads there.
    _pd: Arc<Pd>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Ah {
    type C = ibv_ah;
}
// SAFETY: as above.
unsafe impl Sync for Ah {}
// SAFETY: as above.
unsafe impl Send for Ah {}

impl Ah {
    pub(crate) fn new(pd: Arc<Pd>, attr: &ibv_ah_attr) -> Result<Arc<Self>, Errno> {
        // Ethernet has no LIDs: without a GID there is no address.
        if attr.is_global == 0 || attr.port_num != 1 {
            return Err(Errno::INVALID
                .because("is_global must be 1 and port_num 1: on Ethernet a peer is known by its GID"));
        }
        let grh = &attr.grh;
        let source = gid_at(grh.sgid_index.into())?;
        // SAFETY: sixteen bytes, whichever way they are looked at.
        let destination = Gid::from_bytes(unsafe { grh.dgid.raw });
        if source == Gid::ZERO || destination == Gid::ZERO {
            return Err(Errno::INVALID
                .because(format_args!("dgid is zero, or there is no GID with index {}", grh.sgid_index)));
        }
        let address = AddressHandle {
            service_level: attr.sl & 0xf,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label & 0xf_ffff,
            hop_limit: grh.hop_limit,
            ..AddressHandle::new(source, destination)
        };
        let c = ibv_ah { context: pd.context().c(), pd: pd.c(), handle: 0 };
        let uses = Uses::of(&*pd)?;
        Ok(publish(Self { c: UnsafeCell::new(c), address, _pd: pd }, uses))
    }

    pub(crate) fn address(&self) -> AddressHandle {
        self.address
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(find::<Pd>(pd).and_then(|pd| Ah::new(pd, attr)).map(|ah| ah.c()))
}

/// The way back to whoever sent a datagram.
fn attr_from(wc: &ibv_wc, grh: &ibv_grh, port: u8) -> Result<ibv_ah_attr, Errno> {
    if wc.wc_flags & IBV_WC_GRH == 0 || port != 1 {
        return Err(Errno::INVALID.because("wc_flags lacks IBV_WC_GRH, or port_num is not 1"));
    }
    // SAFETY: plain bytes.
    let bytes = unsafe { &*std::ptr::from_ref(grh).cast::<[u8; Grh::LEN]>() };
    let grh = Grh::parse(bytes).ok_or_else(|| Errno::INVALID.because("the GRH is not one"))?;
    let own = GidTable::of_process()
        .find(grh.destination)?
        .ok_or_else(|| Errno::INVALID.because("the destination of the GRH is no GID of this port"))?;
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw: grh.source.to_bytes() };
    attr.grh.sgid_index =
        u8::try_from(own.index).map_err(|_| Errno::INVALID.because("the index of the GID is too large"))?;
    attr.grh.flow_label = grh.flow_label;
    attr.grh.traffic_class = grh.traffic_class;
    attr.grh.hop_limit = 0xff;
    attr.sl = wc.sl;
    attr.is_global = 1;
    attr.port_num = port;
    Ok(attr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: NULL or the caller's.
    let (Some(wc), Some(grh)) = (unsafe { (wc.as_ref(), grh.as_ref()) }) else { return Errno::INVALID.0 };
    let found = find::<Context>(context).and_then(|_| attr_from(wc, grh, port));
    code!(found.map(|found| {
        // SAFETY: NULL or the caller's.
        unsafe { put(attr, found) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: NULL or the caller's.
    let (Some(wc), Some(grh)) = (unsafe { (wc.as_ref(), grh.as_ref()) }) else {
        return object!(Err(Errno::INVALID.because("wc or grh is NULL")));
    };
    object!(find::<Pd>(pd).and_then(|pd| Ah::new(pd, &attr_from(wc, grh, port)?)).map(|ah| ah.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroyed!(take_back::<Ah>(ah).map(drop))
}
