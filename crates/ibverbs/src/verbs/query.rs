//! Queries of a device and its ports: attributes, GIDs, P_Keys, clock.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::device::{guid, write_name};
use crate::objects::gids::{gid_at, lid};
use crate::objects::limits::{DEVICE_MEMORY, MAX_CQE, MAX_REQUESTS, MAX_SGES, MAX_SRQ_REQUESTS};
use crate::objects::link_speed::LinkSpeed;
use crate::support::clock;
use crate::support::errno::{Errno, code, code_and_errno, minus_one};
use crate::support::object::{find_any, put};
use ironwarp_engine::gid::{GidEntry, GidTable, MAX_GIDS};
use ironwarp_engine::logical::RdmaPort;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// The P_Key of the default partition with full membership, which every port has. Its bytes are equal, so network byte
/// order does not matter.
const PKEY: u16 = 0xffff;
/// Maximum length of a message in bytes, as on RoCE and InfiniBand.
const MAX_MESSAGE: u32 = 1 << 30;
/// `vendor_id` of the device: the letters IWR, which are not the identifier of a hardware vendor.
const VENDOR: u32 = 0x49_57_52;

/// Returns the attributes of the device. Limits that no module enforces are arbitrary large numbers.
fn device_attr(context: &Context) -> ibv_device_attr {
    let config = context.engine().config();
    let mut attr = ibv_device_attr::zeroed();
    write_name(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    let depth = c_int::from(config.ird.max(config.ord));
    attr.node_guid = guid(context.logical());
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 0xffff_f000;
    attr.vendor_id = VENDOR;
    attr.vendor_part_id = 1;
    attr.max_qp = 100_000;
    attr.max_qp_wr = MAX_REQUESTS.cast_signed();
    attr.device_cap_flags = IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_XRC
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RESIZE_MAX_WR;
    attr.max_sge = MAX_SGES.cast_signed();
    attr.max_sge_rd = MAX_SGES.cast_signed();
    attr.max_cq = 1_000_000;
    attr.max_cqe = MAX_CQE;
    attr.max_mr = c_int::try_from(config.tags).unwrap_or(c_int::MAX);
    attr.max_pd = 1_000_000;
    attr.max_qp_rd_atom = depth;
    attr.max_res_rd_atom = depth.saturating_mul(1000);
    attr.max_qp_init_rd_atom = depth;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_mw = attr.max_mr;
    attr.max_ah = 1_000_000;
    attr.max_srq = 100_000;
    attr.max_srq_wr = MAX_SRQ_REQUESTS.cast_signed();
    attr.max_srq_sge = MAX_SGES.cast_signed();
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = port_count(context);
    attr
}

/// Returns the extended attributes of the device.
fn device_attr_ex(context: &Context) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.orig_attr = device_attr(context);
    // Registration pins no pages, so all memory behaves like memory with on-demand paging.
    let all = IBV_ODP_SUPPORT_SEND
        | IBV_ODP_SUPPORT_RECV
        | IBV_ODP_SUPPORT_WRITE
        | IBV_ODP_SUPPORT_READ
        | IBV_ODP_SUPPORT_ATOMIC
        | IBV_ODP_SUPPORT_SRQ_RECV;
    attr.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    attr.odp_caps.per_transport_caps.rc_odp_caps = all;
    attr.odp_caps.per_transport_caps.uc_odp_caps = all;
    attr.odp_caps.per_transport_caps.ud_odp_caps =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    attr.xrc_odp_caps = all;
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = 1_000_000; // in kHz: one tick per nanosecond
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
    attr.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
    attr.max_dm_size = DEVICE_MEMORY;
    attr.phys_port_cnt_ex = port_count(context).into();
    attr
}

/// Returns the number of ports of the device.
fn port_count(context: &Context) -> u8 {
    u8::try_from(context.logical().ports().len()).unwrap_or(u8::MAX)
}

/// Returns the attributes of a port of the device.
fn port_attr(context: &Context, port: &RdmaPort) -> Result<ibv_port_attr, Errno> {
    let mut attr = ibv_port_attr::zeroed();
    let active = port.is_active()?;
    attr.state = if active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = IBV_MTU_4096;
    attr.gid_tbl_len = c_int::try_from(MAX_GIDS).unwrap_or(c_int::MAX);
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.lid = lid(port.gids())?;
    attr.max_vl_num = 1;
    let link = LinkSpeed::nearest(context.logical().speed());
    attr.active_width = link.width;
    attr.active_speed = u8::try_from(link.speed).unwrap_or(0); // newer speeds are only in `active_speed_ex`
    attr.active_speed_ex = link.speed;
    attr.phys_state = if active { 5 } else { 3 }; // LinkUp, Disabled
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    Ok(attr)
}

/// Copies a structure into a caller's buffer of `room` bytes: truncated if the buffer is shorter, and followed by
/// zeros if it is longer. The structures of programs that were built against other releases differ in length.
///
/// # Safety
/// `to` is valid for writes of `room` bytes.
unsafe fn write_part<T>(from: &T, to: *mut T, room: usize) {
    let len = room.min(size_of::<T>());
    // SAFETY: `from` has at least `len` bytes, and `to` has `room`, which is at least `len`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), len);
        ptr::write_bytes(to.cast::<u8>().add(len), 0, room - len);
    }
}

/// Finds the context, and checks that its device has this port.
fn check_port(context: *mut ibv_context, port: u8) -> Result<Arc<Context>, Errno> {
    let context = find_any::<Context>(context)?;
    context.port(port)?;
    Ok(context)
}

/// Returns the GID table of a port.
fn gid_table(context: *mut ibv_context, port: u8) -> Result<GidTable, Errno> {
    Ok(find_any::<Context>(context)?.port(port)?.gids())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    code!(find_any::<Context>(context).map(|context| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(attr, device_attr(&context)) };
    }))
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return Errno::INVALID.0;
    }
    if attr.is_null() || room < size_of::<ibv_device_attr>() {
        return Errno::INVALID.0;
    }
    code!(find_any::<Context>(context).map(|context| {
        // SAFETY: `attr` is not NULL and has `room` bytes, by the caller's contract.
        unsafe { write_part(&device_attr_ex(&context), attr, room) };
    }))
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    room: usize,
) -> c_int {
    if attr.is_null() {
        return code!(Err(Errno::null("port_attr")));
    }
    let found = find_any::<Context>(context).and_then(|context| port_attr(&context, context.port(port)?));
    code!(found.map(|found| {
        // SAFETY: `attr` is not NULL and has `room` bytes, by the caller's contract.
        unsafe { write_part(&found, attr, room) };
    }))
}

/// Queries the port for programs that were built against headers with a shorter structure. Inline code of newer
/// headers calls `query_port` through the table of the context instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: NULL, or a structure of which this many bytes exist, by the caller's contract.
    unsafe { query_port(context, port, attr.cast(), COMPAT_PORT_ATTR_LEN) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    let port = u8::try_from(port).unwrap_or(0); // 0 is invalid, like every number above 255
    code_and_errno!(check_port(context, port).map(|context| {
        let units = context.logical().speed() / 100_000_000; // of 100 Mb/s
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(speed, units) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let index =
        usize::try_from(index).map_err(|_| Errno::INVALID.because(format_args!("index {index} is negative")));
    let found = gid_table(context, port).and_then(|table| gid_at(table, index?));
    minus_one!(found.map(|found| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(gid, ibv_gid { raw: found.to_bytes() }) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let check_index = || match index {
        0 => Ok(()),
        _ => Err(Errno::INVALID.because(format_args!("no P_Key at index {index}"))),
    };
    minus_one!(check_port(context, port).and_then(|_| check_index()).map(|()| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(pkey, PKEY) };
    }))
}

/// Returns the index of a P_Key, which is 0 for the only one, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let check_key = || match pkey {
        PKEY => Ok(()),
        _ => Err(Errno::INVALID.because(format_args!("no P_Key {pkey:#x}"))),
    };
    minus_one!(check_port(context, port).and_then(|_| check_key()))
}

/// Converts an entry of the GID table to C.
fn entry_to_c(port: u8, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.to_bytes() },
        gid_index: u32::try_from(entry.index).unwrap_or(u32::MAX),
        port_num: port.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.interface_index,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size != size_of::<ibv_gid_entry>() || entry.is_null() {
        return Errno::UNSUPPORTED.0;
    }
    let port = u8::try_from(port).unwrap_or(0); // 0 is invalid, like every number above 255
    let found = gid_table(context, port).and_then(|table| Ok(table.get(index as usize)?));
    code!(found.and_then(|found| found.ok_or(Errno(libc::ENODATA))).map(|found| {
        // SAFETY: not NULL, and valid by the caller's contract.
        unsafe { put(entry, entry_to_c(port, &found)) };
    }))
}

/// Writes the entries of the GID tables of all ports that are in use. Returns their number, or a negative errno: -EINVAL if there
/// are more than `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let refuse = |errno: Errno| -(errno.0 as isize);
    if flags != 0 || size != size_of::<ibv_gid_entry>() {
        return refuse(Errno::UNSUPPORTED);
    }
    let found = find_any::<Context>(context).and_then(|context| Ok(context.logical().entries()?));
    match found {
        Err(errno) => refuse(errno),
        Ok(found) if found.len() > room || entries.is_null() => refuse(Errno::INVALID),
        Ok(found) => {
            for (at, (port, entry)) in found.iter().enumerate() {
                // SAFETY: `entries` is not NULL, and has room for `room` entries, which is enough for all.
                unsafe { entries.add(at).write(entry_to_c(*port, entry)) };
            }
            isize::try_from(found.len()).unwrap_or(isize::MAX)
        }
    }
}

/// Reads the adapter's clock, which is the monotonic clock of the system, if `comp_mask` requests it. On return
/// `comp_mask` names the values that were read, as ibv_query_rt_values_ex(3) requires.
pub(crate) unsafe extern "C" fn query_rt_values(_: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(values) = (unsafe { values.as_mut() }) else { return code!(Err(Errno::null("values"))) };
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    if values.comp_mask != 0 {
        values.raw_clock = clock::read(libc::CLOCK_MONOTONIC);
    }
    0
}

/// Returns whether received data is guaranteed to become visible in memory in order. It is not, although TCP delivers
/// the bytes in order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    0
}
