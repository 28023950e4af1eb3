//! Converts between the structures of the kernel and those of the headers. Programs that use the kernel's connection
//! manager directly call these functions. This library does not.
#![expect(unsafe_code, reason = "takes pointers from C")]

use crate::abi::*;

/// # Safety
/// Each pointer is NULL or valid for its type, and they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: each pointer is NULL or valid, and they do not overlap, by the caller's contract.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        ah_attr(to, from);
    }
}

/// # Safety
/// Each pointer is NULL or valid for its type, and they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    // SAFETY: each pointer is NULL or valid, and they do not overlap, by the caller's contract.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        qp_attr(to, from);
    }
}

/// # Safety
/// Each pointer is NULL or valid for its type, and they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: each pointer is NULL or valid, and they do not overlap, by the caller's contract.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        path_rec_from(to, from);
    }
}

/// # Safety
/// Each pointer is NULL or valid for its type, and they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    // SAFETY: each pointer is NULL or valid, and they do not overlap, by the caller's contract.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        path_rec_to(to, from);
    }
}

/// Copies the fields that have the same name in both structures.
macro_rules! copy {
    ($to:expr, $from:expr; $($field:ident)*) => {
        $($to.$field = $from.$field;)*
    };
}

/// Converts the attributes of an address handle from the kernel's structure.
fn ah_attr(to: &mut ibv_ah_attr, from: &ib_uverbs_ah_attr) {
    to.grh.dgid.raw = from.grh.dgid;
    copy!(to.grh, from.grh; flow_label sgid_index hop_limit traffic_class);
    copy!(to, from; dlid sl src_path_bits static_rate is_global port_num);
}

/// Converts the attributes of a queue pair from the kernel's structure. Does not change `rate_limit`, which the
/// kernel's structure lacks, nor `qp_state`, which the real library does not convert either.
fn qp_attr(to: &mut ibv_qp_attr, from: &ib_uverbs_qp_attr) {
    copy!(to, from; cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags);
    ah_attr(&mut to.ah_attr, &from.ah_attr);
    ah_attr(&mut to.alt_ah_attr, &from.alt_ah_attr);
    copy!(to.cap, from; max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    copy!(to, from; pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic);
    copy!(to, from; min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout);
}

/// Converts a path record from the kernel's structure.
fn path_rec_from(to: &mut ibv_sa_path_rec, from: &ib_user_path_rec) {
    to.dgid.raw = from.dgid;
    to.sgid.raw = from.sgid;
    to.raw_traffic = from.raw_traffic.cast_signed();
    to.reversible = from.reversible.cast_signed();
    to.mtu = from.mtu.to_le_bytes()[0];
    copy!(to, from; dlid slid flow_label pkey hop_limit traffic_class numb_path sl mtu_selector rate_selector rate);
    copy!(to, from; packet_life_time_selector packet_life_time preference);
}

/// Converts a path record to the kernel's structure.
fn path_rec_to(to: &mut ib_user_path_rec, from: &ibv_sa_path_rec) {
    // SAFETY: `ibv_gid` is a union of sixteen bytes and two integers, so all its bytes are initialised.
    (to.dgid, to.sgid) = unsafe { (from.dgid.raw, from.sgid.raw) };
    to.raw_traffic = from.raw_traffic.cast_unsigned();
    to.reversible = from.reversible.cast_unsigned();
    to.mtu = from.mtu.into();
    copy!(to, from; dlid slid flow_label pkey hop_limit traffic_class numb_path sl mtu_selector rate_selector rate);
    copy!(to, from; packet_life_time_selector packet_life_time preference);
}
