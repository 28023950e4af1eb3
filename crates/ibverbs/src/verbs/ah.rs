//! Entry points for address handles.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::ah::Ah;
use crate::objects::context::Context;
use crate::objects::pd::Pd;
use crate::support::errno::{Errno, code, destroy_code, object};
use crate::support::object::{CObject, destroy_object, find, put};
use ironwarp_engine::logical::LogicalDevice;
use ironwarp_rnic::datagram::Grh;
use std::ffi::c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(find::<Pd>(pd).and_then(|pd| Ah::new(pd, attr)).map(|ah| ah.c()))
}

/// Returns the attributes of an address handle for replies to a received datagram, from its completion and GRH. Fails
/// with EINVAL if the datagram was not received by this port, or has no valid GRH.
fn reply_attr(device: &LogicalDevice, wc: &ibv_wc, grh: &ibv_grh, port: u8) -> Result<ibv_ah_attr, Errno> {
    let table = match device.port(port) {
        Some(port) if wc.wc_flags & IBV_WC_GRH != 0 => port.gids(),
        _ => {
            return Err(
                Errno::INVALID.because("wc_flags lacks IBV_WC_GRH, or the device has no port port_num")
            );
        }
    };
    // SAFETY: `ibv_grh` has `Grh::LEN` bytes, all of them initialised, because it has no padding.
    let bytes = unsafe { &*std::ptr::from_ref(grh).cast::<[u8; Grh::LEN]>() };
    let grh = Grh::parse(bytes).ok_or_else(|| Errno::INVALID.because("invalid GRH"))?;
    let own = table
        .find(grh.destination)?
        .ok_or_else(|| Errno::INVALID.because("the destination of the GRH is not a GID of this port"))?;
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw: grh.source.to_bytes() };
    attr.grh.sgid_index =
        u8::try_from(own.index).map_err(|_| Errno::INVALID.because("the index of the GID is too large"))?;
    attr.grh.flow_label = grh.flow_label;
    attr.grh.traffic_class = grh.traffic_class;
    attr.grh.hop_limit = 0xff; // the maximum, because the distance is unknown
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
    // SAFETY: NULL, or valid by the caller's contract.
    let (Some(wc), Some(grh)) = (unsafe { (wc.as_ref(), grh.as_ref()) }) else {
        return code!(Err(Errno::INVALID.because("wc or grh is NULL")));
    };
    let found = find::<Context>(context).and_then(|context| reply_attr(context.logical(), wc, grh, port));
    code!(found.map(|found| {
        // SAFETY: NULL, or valid by the caller's contract.
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
    // SAFETY: NULL, or valid by the caller's contract.
    let (Some(wc), Some(grh)) = (unsafe { (wc.as_ref(), grh.as_ref()) }) else {
        return object!(Err(Errno::INVALID.because("wc or grh is NULL")));
    };
    let created = find::<Pd>(pd).and_then(|pd| {
        let attr = reply_attr(pd.context().logical(), wc, grh, port)?;
        Ah::new(pd, &attr)
    });
    object!(created.map(|ah| ah.c()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroy_code!(destroy_object::<Ah>(ah).map(drop))
}
