//! The extended interface of completion queues, which reads one completion at a time through functions in the
//! queue itself.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::completion;
use crate::objects::context::Context;
use crate::objects::cq::{Cq, CqAttributes, Current};
use crate::objects::pd::Pd;
use crate::support::errno::{Errno, object};
use crate::support::object::{CObject, Uses, find, find_unchecked};
use crate::support::report;
use ironwarp_rnic::queue::Status;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// The fields of a completion that a program can ask for.
const SERVED: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMES;
const TIMES: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Neither is negative: both clocks count from a time in the past.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The clock of the adapter, which `ibv_query_rt_values_ex` reads, in nanoseconds.
fn clock() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: valid by the caller's contract. Fields behind the mask exist if it names them.
    object!(find::<Context>(context).and_then(|context| unsafe { create(&context, attr) }))
}

/// # Safety
/// `attr` is valid, with the fields that its `comp_mask` names.
unsafe fn create(context: &Arc<Context>, attr: *mut ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the fields before the mask always exist.
    let (wanted, wc_flags, mask) = unsafe {
        let cqe = c_int::try_from((*attr).cqe).map_err(|_| Errno::INVALID.because("cqe is too large"))?;
        let wanted = CqAttributes {
            cq_context: (*attr).cq_context,
            channel: (*attr).channel,
            vector: c_int::try_from((*attr).comp_vector)
                .map_err(|_| Errno::INVALID.because("comp_vector is too large"))?,
            extend: Some(fill),
            ..CqAttributes::new(cqe)
        };
        (wanted, (*attr).wc_flags, (*attr).comp_mask)
    };
    // SAFETY: read only if the mask names it.
    let (flags, parent) = unsafe {
        let flags = if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { (*attr).flags } else { 0 };
        let parent = match mask & IBV_CQ_INIT_ATTR_MASK_PD {
            0 => None,
            _ => Some(find::<Pd>((*attr).parent_domain)?),
        };
        (flags, parent)
    };
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    // Overruns cannot be ignored: there is no place for completions that do not fit.
    if wc_flags & !SERVED != 0 || mask & !known != 0 || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return Err(Errno::UNSUPPORTED.because(format_args!(
            "wc_flags {wc_flags:#x}, comp_mask {mask:#x} or flags {flags:#x} has bits that are not supported"
        )));
    }
    // A thread domain in the parent domain makes the same promise.
    let single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
        || parent.as_ref().is_some_and(|parent| parent.is_single_threaded());
    let uses = parent.as_deref().map_or(Ok(Uses::default()), Uses::of)?;
    let cq = Cq::new(context, &CqAttributes { single_threaded, ..wanted }, uses)?;
    if wc_flags & TIMES != 0 {
        cq.inner().cq().set_clock(clock);
    }
    Ok(cq.c())
}

/// Sets all functions of a queue: a program can also read fields that it did not ask for.
fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Takes the next completion, for the functions that read its fields. Returns ENOENT if there is none.
///
/// # Safety
/// `c` is a live queue, and it is the caller's turn.
unsafe fn advance(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: guaranteed by the caller.
    let cq: &Cq = unsafe { find_unchecked(c) };
    let mut taken = None;
    match cq.inner().poll(1, |completion| taken = Some(completion)) {
        Ok(_) => {}
        // The queue has overrun, and everything before that has been polled.
        Err(_) => return libc::EIO,
    }
    let Some(completion) = taken else { return libc::ENOENT };
    if completion.status != Status::Success {
        report::log_failed_request(&completion);
    }
    let (wc, time) = (completion::to_c(&completion), completion.time);
    // SAFETY: it is the caller's turn, and C reads both fields between start and end.
    unsafe {
        (&raw mut (*c).wr_id).write(wc.wr_id);
        (&raw mut (*c).status).write(wc.status);
        *cq.current.get() = Current { wc, time };
    }
    0
}

unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return Errno::INVALID.0;
    }
    // SAFETY: inline code of the headers read this function from the queue, so it is alive.
    let cq: &Cq = unsafe { find_unchecked(c) };
    if cq.context().is_inherited() {
        return Errno::INHERITED.0;
    }
    cq.turn.take();
    // SAFETY: as above; it is this thread's turn.
    let started = unsafe { advance(c) };
    if started != 0 {
        // The program does not call `end_poll` then.
        cq.turn.release();
    }
    started
}

unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as in `start_poll`, and it is still this thread's turn.
    unsafe { advance(c) }
}

unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    // SAFETY: as in `start_poll`.
    let cq: &Cq = unsafe { find_unchecked(c) };
    cq.turn.release();
}

/// # Safety
/// As for [`advance`].
unsafe fn current<'c>(c: *mut ibv_cq_ex) -> &'c Current {
    // SAFETY: guaranteed by the caller. Nothing writes it during the caller's turn.
    unsafe { &*find_unchecked::<Cq>(c).current.get() }
}

macro_rules! readers {
    ($($name:ident: $type:ty = $field:ident;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_cq_ex) -> $type {
            // SAFETY: as in `start_poll`, and it is still this thread's turn.
            unsafe { current(c) }.wc.$field.into()
        })*
    };
}

readers! {
    read_opcode: ibv_wc_opcode = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: c_uint = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}

unsafe extern "C" fn read_completion_ts(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `start_poll`, and it is still this thread's turn.
    unsafe { current(c) }.time
}

/// The time of the completion, converted to the wall clock as it is set now.
unsafe extern "C" fn read_completion_wallclock_ns(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `start_poll`, and it is still this thread's turn.
    let time = unsafe { current(c) }.time;
    let ago = clock().saturating_sub(time);
    nanoseconds(ClockId::Realtime).saturating_sub(ago)
}
