//! What the device and its port are like.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::device::guid;
use crate::errno::{Errno, code, code_and_errno, minus_one};
use crate::object::{find_any, put};
use crate::{cq, qp, srq};
use ironwarp_engine::gid::{Gid, GidEntry, GidTable, MOST_GIDS};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;

/// One partition, the default one with full membership, as every port has. In network byte order.
const PKEY: u16 = 0xffff;
/// Messages of up to 1 GiB, as RoCE and InfiniBand have it.
const MAX_MESSAGE: u32 = 1 << 30;
/// Made up: no vendor of hardware has it.
const VENDOR: u32 = 0x49_57_52;
/// How much device memory there is. Made of ordinary memory, so this is a matter of taste.
pub(crate) const DEVICE_MEMORY: u64 = 1 << 20;

fn gids() -> &'static GidTable {
    GidTable::of_process()
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let config = context.engine().config();
    let mut attr = ibv_device_attr::zeroed();
    for (to, from) in attr.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from.cast_signed();
    }
    let depth = c_int::from(config.ird.max(config.ord));
    attr.node_guid = guid();
    attr.sys_image_guid = guid();
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 0xffff_f000;
    attr.vendor_id = VENDOR;
    attr.vendor_part_id = 1;
    attr.max_qp = 100_000;
    attr.max_qp_wr = qp::MOST_REQUESTS.cast_signed();
    attr.device_cap_flags = IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_XRC
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RESIZE_MAX_WR;
    attr.max_sge = qp::MOST_SGES.cast_signed();
    attr.max_sge_rd = qp::MOST_SGES.cast_signed();
    attr.max_cq = 1_000_000;
    attr.max_cqe = cq::MOST;
    attr.max_mr = c_int::try_from(config.tags).unwrap_or(c_int::MAX);
    attr.max_pd = 1_000_000;
    attr.max_qp_rd_atom = depth;
    attr.max_res_rd_atom = depth.saturating_mul(1000);
    attr.max_qp_init_rd_atom = depth;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_mw = attr.max_mr;
    attr.max_ah = 1_000_000;
    attr.max_srq = 100_000;
    attr.max_srq_wr = srq::MOST_REQUESTS.cast_signed();
    attr.max_srq_sge = qp::MOST_SGES.cast_signed();
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

fn device_attr_ex(context: &Context) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.orig_attr = device_attr(context);
    // No page is pinned, so any of them may come and go.
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
    attr.hca_core_clock = 1_000_000; // in kHz: nanoseconds
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
    attr.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
    attr.max_dm_size = DEVICE_MEMORY;
    attr.phys_port_cnt_ex = 1;
    attr
}

fn port_attr() -> Result<ibv_port_attr, Errno> {
    let mut attr = ibv_port_attr::zeroed();
    let active = gids().port_is_active()?;
    attr.state = if active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = IBV_MTU_4096;
    attr.gid_tbl_len = c_int::try_from(MOST_GIDS).unwrap_or(c_int::MAX);
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.lid = lid()?;
    attr.max_vl_num = 1;
    attr.active_width = 2; // four lanes
    attr.active_speed = 32; // of 25 Gb/s: what a program computes from it, TCP has to reach
    attr.active_speed_ex = 32;
    attr.phys_state = if active { 5 } else { 3 }; // link up, disabled
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    Ok(attr)
}

/// The first IPv4 address of the table.
fn first_ipv4() -> Result<Option<Ipv4Addr>, Errno> {
    let ipv4 = |entry: &GidEntry| match entry.gid.ip() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    };
    Ok(gids().entries()?.iter().find_map(ipv4))
}

/// Ethernet has no LIDs, but some programs know no other way to name a peer. So there is one: the lower half of the first
/// IPv4 address.
pub(crate) fn lid() -> Result<u16, Errno> {
    Ok(first_ipv4()?.map_or(0, |address| u16::from_be_bytes([address.octets()[2], address.octets()[3]])))
}

/// The GID of the port with this LID, which must be in the same /16 as this one.
pub(crate) fn gid_of_lid(lid: u16) -> Result<Gid, Errno> {
    let [a, b, ..] = first_ipv4()?.ok_or(Errno::INVALID)?.octets();
    let [c, d] = lid.to_be_bytes();
    Ok(IpAddr::V4(Ipv4Addr::new(a, b, c, d)).into())
}

/// Which of ours belongs to it.
pub(crate) fn gid_index_of_lid() -> Result<usize, Errno> {
    let own = first_ipv4()?.ok_or(Errno::INVALID)?;
    let entry = gids().find(IpAddr::V4(own).into())?;
    Ok(entry.map_or(0, |entry| entry.index))
}

/// A GID by its index, as long as it is one of the table's. One that is not there is all zero, as in every such table.
pub(crate) fn gid_at(index: usize) -> Result<Gid, Errno> {
    if index >= MOST_GIDS {
        return Err(Errno::INVALID.because("the LID is of no address in this network"));
    }
    Ok(gids().get(index)?.map_or(Gid::ZERO, |entry| entry.gid))
}

/// Writes as much of a structure as the caller has room for, and zeroes behind what there is.
///
/// # Safety
/// `to` has room for `room` bytes.
unsafe fn write_part<T>(from: &T, to: *mut T, room: usize) {
    let len = room.min(size_of::<T>());
    // SAFETY: both are that long; the rest is the caller's, too.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), len);
        ptr::write_bytes(to.cast::<u8>().add(len), 0, room - len);
    }
}

fn check_port(context: *mut ibv_context, port: u8) -> Result<(), Errno> {
    find_any::<Context>(context)?;
    if port == 1 {
        Ok(())
    } else {
        Err(Errno::INVALID.because(format_args!("port_num is {port}, there is port 1 only")))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    code!(find_any::<Context>(context).map(|context| {
        // SAFETY: NULL or the caller's.
        unsafe { put(attr, device_attr(&context)) };
    }))
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    // SAFETY: NULL or the caller's.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return Errno::INVALID.0;
    }
    if attr.is_null() || room < size_of::<ibv_device_attr>() {
        return Errno::INVALID.0;
    }
    code!(find_any::<Context>(context).map(|context| {
        // SAFETY: the caller's, with so much room.
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
        return Errno::INVALID.0;
    }
    code!(check_port(context, port).and_then(|()| port_attr()).map(|found| {
        // SAFETY: the caller's, with so much room.
        unsafe { write_part(&found, attr, room) };
    }))
}

/// The exported one, for programs whose headers know less of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: such programs have room for so much.
    unsafe { query_port(context, port, attr.cast(), COMPAT_PORT_ATTR_LEN) }
}

/// What width and speed of the port come to, in units of 100 Mb/s.
const PORT_SPEED: u64 = 4 * 250;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    let port = u8::try_from(port).unwrap_or(0);
    code_and_errno!(check_port(context, port).map(|()| {
        // SAFETY: NULL or the caller's.
        unsafe { put(speed, PORT_SPEED) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let index = usize::try_from(index).map_err(|_| Errno::INVALID.because(format_args!("index is {index}")));
    minus_one!(check_port(context, port).and(index).and_then(gid_at).map(|found| {
        // SAFETY: NULL or the caller's.
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
    let there = if index == 0 {
        Ok(())
    } else {
        Err(Errno::INVALID.because(format_args!("there is no P_Key with index {index}")))
    };
    minus_one!(check_port(context, port).and(there).map(|()| {
        // SAFETY: NULL or the caller's.
        unsafe { put(pkey, PKEY) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let there = if pkey == PKEY {
        Ok(())
    } else {
        Err(Errno::INVALID.because(format_args!("there is no P_Key {pkey:#x}")))
    };
    minus_one!(check_port(context, port).and(there))
}

fn entry_to_c(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.to_bytes() },
        gid_index: u32::try_from(entry.index).unwrap_or(u32::MAX),
        port_num: 1,
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
    let port = u8::try_from(port).unwrap_or(0);
    let found = check_port(context, port).and_then(|()| Ok(gids().get(index as usize)?));
    code!(found.and_then(|found| found.ok_or(Errno(libc::ENODATA))).map(|found| {
        // SAFETY: the caller's.
        unsafe { put(entry, entry_to_c(&found)) };
    }))
}

/// Returns how many entries it wrote, or a negative errno.
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
    let found = find_any::<Context>(context).and_then(|_| Ok(gids().entries()?));
    match found {
        Err(errno) => refuse(errno),
        Ok(found) if found.len() > room || entries.is_null() => refuse(Errno::INVALID),
        Ok(found) => {
            for (at, entry) in found.iter().enumerate() {
                // SAFETY: there is room for more than that.
                unsafe { entries.add(at).write(entry_to_c(entry)) };
            }
            isize::try_from(found.len()).unwrap_or(isize::MAX)
        }
    }
}

/// The adapter's clock is the system's.
pub(crate) unsafe extern "C" fn query_rt_values(_: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    if values.is_null() {
        return Errno::INVALID.0;
    }
    // SAFETY: the caller's.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return Errno::UNSUPPORTED.0;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    values.raw_clock = libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec };
    0
}

/// Whether data become visible in the order of the messages: TCP places them so, but nobody promises it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    0
}
