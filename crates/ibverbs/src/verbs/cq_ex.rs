//! The extended interface of completion queues (`ibv_create_cq_ex`, `ibv_start_poll`, `ibv_wc_read_*`), which reads one
//! completion at a time. Inline code of the headers calls these functions through pointers in the queue.
//!
//! A thread that polls has the queue's `turn` from a successful `start_poll` to `end_poll`.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::checked;
use crate::abi::*;
use crate::check;
use crate::objects::completion;
use crate::objects::context::Context;
use crate::objects::cq::{Cq, CqAttributes, Current};
use crate::objects::pd::Pd;
use crate::support::clock;
use crate::support::errno::{Errno, object};
use crate::support::object::{CObject, Uses, find, find_any, find_unchecked};
use crate::support::report;
use ironwarp_rnic::queue::{Completion, Overrun, Status};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// The fields of a completion that a program can request, as bits of `wc_flags`.
const SUPPORTED: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMES;
/// The fields that are times. Completions record the time only if a program requests one of these.
const TIMES: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Reads a clock, in nanoseconds.
fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let now = clock::read(clock);
    // Neither field is negative: the clocks count from a time in the past.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Reads the clock of the adapter, in nanoseconds. `ibv_query_rt_values_ex` reads the same clock.
fn clock() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract. Fields behind the mask exist if the mask names them.
    object!(find::<Context>(context).and_then(|context| unsafe { create(&context, attr) }))
}

/// Creates a completion queue from extended attributes.
///
/// # Safety
/// `attr` is valid up to `comp_mask`, with the fields that `comp_mask` names.
unsafe fn create(context: &Arc<Context>, attr: *mut ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the caller guarantees the fields up to the mask.
    let (attributes, wc_flags, mask) = unsafe {
        let cqe = c_int::try_from((*attr).cqe).map_err(|_| Errno::INVALID.because("cqe is too large"))?;
        let attributes = CqAttributes {
            cq_context: (*attr).cq_context,
            channel: (*attr).channel,
            vector: c_int::try_from((*attr).comp_vector)
                .map_err(|_| Errno::INVALID.because("comp_vector is too large"))?,
            extend: Some(fill),
            ..CqAttributes::new(cqe)
        };
        (attributes, (*attr).wc_flags, (*attr).comp_mask)
    };
    // SAFETY: each field is read only if the mask names it, so it exists by the caller's contract.
    let (flags, parent) = unsafe {
        let flags = if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { (*attr).flags } else { 0 };
        let parent = match mask & IBV_CQ_INIT_ATTR_MASK_PD {
            0 => None,
            _ => Some(find::<Pd>((*attr).parent_domain)?),
        };
        (flags, parent)
    };
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    // IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN is not supported: the queue cannot drop completions that do not fit.
    if wc_flags & !SUPPORTED != 0 || mask & !known != 0 || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return Err(Errno::UNSUPPORTED.because(format_args!(
            "wc_flags {wc_flags:#x}, comp_mask {mask:#x} or flags {flags:#x} has bits that are not supported"
        )));
    }
    // The program promises to poll from one thread at a time by the flag, or by a thread domain in the parent domain.
    let single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
        || parent.as_ref().is_some_and(|parent| parent.is_single_threaded());
    if let Some(parent) = &parent {
        context.check_same_adapter(parent.context(), "parent domain")?;
    }
    let uses = parent.as_deref().map_or(Ok(Uses::default()), Uses::of)?;
    let cq = Cq::new(context, &CqAttributes { single_threaded, ..attributes }, uses)?;
    if wc_flags & TIMES != 0 {
        cq.inner().cq().set_clock(clock);
    }
    Ok(cq.c())
}

/// Writes all functions to the C structure of a queue: those for fields that the program did not request work as well.
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

/// Takes the next completion and makes it the current one, whose fields the program reads. Returns zero, ENOENT if
/// there is none, or EIO if the queue has overrun.
///
/// # Safety
/// `c` is a live queue, and the calling thread has its turn.
unsafe fn advance(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller guarantees a live queue.
    let cq: &Cq = unsafe { find_unchecked(c) };
    let taken = match check::active() {
        None => take(cq, |_, _| {}),
        Some(checker) => checker
            .poll(c as usize, || take(cq, |completion, wc| checked::completed(checker, cq, completion, wc))),
    };
    let current = match taken {
        Ok(Some(current)) => current,
        Ok(None) => return libc::ENOENT,
        Err(_) => return libc::EIO, // overrun
    };
    // SAFETY: only the thread that has the turn accesses `current` and these fields of the C structure.
    unsafe {
        (&raw mut (*c).wr_id).write(current.wc.wr_id);
        (&raw mut (*c).status).write(current.wc.status);
        *cq.current.get() = current;
    }
    0
}

/// Takes the next completion, if there is one, and calls `each` with it. Fails if the queue has overrun, and all completions
/// from before the overrun have been polled.
fn take(cq: &Cq, each: impl FnOnce(&Completion, &ibv_wc)) -> Result<Option<Current>, Overrun> {
    let mut taken = None;
    cq.inner().poll(1, |completion| taken = Some(completion))?;
    Ok(taken.map(|completion| {
        if completion.status != Status::Success {
            report::log_failed_request(&completion);
        }
        let (wc, time) = (completion::to_c(&completion), completion.time);
        each(&completion, &wc);
        Current { wc, time }
    }))
}

/// Takes the turn and the first completion. Without a completion, ends the turn again and returns an error.
unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return Errno::INVALID.0;
    }
    // The checker keeps the C structure of a destroyed queue.
    if check::active().is_some()
        && let Err(errno) = find_any::<Cq>(c)
    {
        return errno.log("ibv_start_poll").0;
    }
    // SAFETY: inline code of the headers read this function from the queue, so the queue is alive.
    let cq: &Cq = unsafe { find_unchecked(c) };
    if cq.context().is_inherited() {
        return Errno::INHERITED.0;
    }
    cq.turn.take();
    // SAFETY: the queue is alive, and this thread has just taken the turn.
    let errno = unsafe { advance(c) };
    if errno != 0 {
        // After an error the program does not call `end_poll`.
        cq.turn.release();
    }
    errno
}

/// Takes the next completion. The turn continues even without one, because the program calls `end_poll`.
unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: called after a successful `start_poll`, so the queue is alive and this thread has the turn.
    unsafe { advance(c) }
}

/// Ends the turn.
unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    // SAFETY: called after a successful `start_poll`, so the queue is alive.
    let cq: &Cq = unsafe { find_unchecked(c) };
    cq.turn.release();
}

/// Returns the completion that the last `start_poll` or `next_poll` took.
///
/// # Safety
/// `c` is a live queue, and the calling thread has its turn. It does not call [`advance`] while the result is in use.
unsafe fn current<'c>(c: *mut ibv_cq_ex) -> &'c Current {
    // SAFETY: the caller guarantees a live queue, and that nothing writes `current`: only `advance` does, in a turn.
    unsafe { &*find_unchecked::<Cq>(c).current.get() }
}

/// Defines the functions that read a field of the current completion.
macro_rules! readers {
    ($($name:ident: $type:ty = $field:ident;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_cq_ex) -> $type {
            // SAFETY: called after a successful `start_poll`, so the queue is alive and this thread has the turn.
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
    // SAFETY: called after a successful `start_poll`, so the queue is alive and this thread has the turn.
    unsafe { current(c) }.time
}

/// Returns the time of the completion on the wall clock, in nanoseconds. Converted with the current difference between
/// the clocks, so a change of the wall clock since the completion shifts the result.
unsafe extern "C" fn read_completion_wallclock_ns(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: called after a successful `start_poll`, so the queue is alive and this thread has the turn.
    let time = unsafe { current(c) }.time;
    let ago = clock().saturating_sub(time);
    nanoseconds(libc::CLOCK_REALTIME).saturating_sub(ago)
}
