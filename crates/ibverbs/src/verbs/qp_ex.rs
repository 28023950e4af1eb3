//! The extended calls that build and post requests (`ibv_wr_start` to `ibv_wr_complete`). Inline code of the headers
//! calls them through pointers in the queue pair.
//!
//! Requests are posted by `wr_complete`, all or none. If a call after `wr_start` failed, `wr_complete` posts none and
//! returns the first error.
//!
//! All these functions trust the queue pair, because inline code read the pointer to the function from it. Only the
//! thread that called `wr_start` may call the others until `wr_complete` or `wr_abort`, so the requests being built
//! ([`Builder`]) need no other lock than the `turn` that `wr_start` takes.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::checked;
use super::work_request::{
    Unaligned, compare_swap, convert_sges, fetch_add, inline_data, is_signaled, sge_list,
};
use crate::abi::*;
use crate::check;
use crate::objects::ah::Ah;
use crate::objects::mw;
use crate::objects::qp::{Builder, Kind, Qp};
use crate::support::errno::Errno;
use crate::support::object::{find, find_any, find_unchecked};
use crate::support::report;
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::queue::{Data, Operation, Sges, WorkRequest};
use ironwarp_wire::{RemoteAddr, Tag};
use std::ffi::{c_int, c_void};

/// Returns the operations that a type of queue pair supports, as bits of `send_ops_flags`.
fn supported(kind: ibv_qp_type) -> u64 {
    let sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = sends
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    let reliable = unreliable
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    match kind {
        IBV_QPT_UD => sends,
        IBV_QPT_UC => unreliable,
        IBV_QPT_RC | IBV_QPT_XRC_SEND => reliable,
        _ => 0,
    }
}

/// Returns whether a type of queue pair supports all of these operations.
pub(crate) fn supports(kind: ibv_qp_type, ops: u64) -> bool {
    ops & !supported(kind) == 0
}

/// Writes the functions to the C structure of a queue pair: those that build a request only for the operations `ops`,
/// as ibv_create_qp_ex(3) requires.
pub(crate) fn fill(qp: &mut ibv_qp_ex, ops: u64) {
    macro_rules! put {
        ($($bit:ident: $field:ident;)*) => { $(if ops & $bit != 0 { qp.$field = Some($field); })* };
    }
    put! {
        IBV_QP_EX_WITH_SEND: wr_send;
        IBV_QP_EX_WITH_SEND_WITH_IMM: wr_send_imm;
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv;
        IBV_QP_EX_WITH_RDMA_WRITE: wr_rdma_write;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: wr_rdma_write_imm;
        IBV_QP_EX_WITH_RDMA_READ: wr_rdma_read;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: wr_atomic_cmp_swp;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: wr_atomic_fetch_add;
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv;
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw;
    }
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    match qp.qp_base.qp_type {
        IBV_QPT_UD => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        IBV_QPT_XRC_SEND => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
        _ => {}
    }
}

/// Replaces the functions of a queue pair that was destroyed, except `wr_start`, by those that do nothing. Then
/// `wr_complete` fails with EINVAL.
///
/// # Safety
/// `c` is valid.
unsafe fn refuse(c: *mut ibv_qp_ex) {
    macro_rules! ignore {
        ($($field:ident($($argument:ty),*);)*) => {
            $({
                unsafe extern "C" fn $field(_: *mut ibv_qp_ex $(, _: $argument)*) {}
                // SAFETY: valid by the caller's contract.
                unsafe { (&raw mut (*c).$field).write(Some($field)) };
            })*
        };
    }
    unsafe extern "C" fn fail(_: *mut ibv_qp_ex) -> c_int {
        Errno::INVALID.0
    }
    ignore! {
        wr_send();
        wr_send_imm(u32);
        wr_send_inv(u32);
        wr_rdma_write(u32, u64);
        wr_rdma_write_imm(u32, u64, u32);
        wr_rdma_read(u32, u64);
        wr_atomic_cmp_swp(u32, u64, u64, u64);
        wr_atomic_fetch_add(u32, u64, u64);
        wr_local_inv(u32);
        wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
        wr_abort();
        wr_set_sge(u32, u64, u32);
        wr_set_sge_list(usize, *const ibv_sge);
        wr_set_inline_data(*mut c_void, usize);
        wr_set_inline_data_list(usize, *const ibv_data_buf);
        wr_set_ud_addr(*mut ibv_ah, u32, u32);
        wr_set_xrc_srqn(u32);
    }
    // SAFETY: valid by the caller's contract.
    unsafe { (&raw mut (*c).wr_complete).write(Some(fail)) };
}

/// Returns the queue pair, and the requests that the program is building.
///
/// # Safety
/// `c` is a live queue pair, and the calling thread has its turn. No other result of this function is in use.
unsafe fn builder<'q>(c: *mut ibv_qp_ex) -> (&'q Qp, &'q mut Builder) {
    // SAFETY: the caller guarantees a live queue pair. Its extended structure begins with the plain one.
    let qp: &Qp = unsafe { find_unchecked(c.cast()) };
    // SAFETY: only the thread that has the turn accesses the builder, and it holds no other reference.
    (qp, unsafe { &mut *qp.builder.get() })
}

/// Takes the turn, and starts without requests. Does not take the turn of an inherited queue pair, which a thread of
/// the parent may have had at the fork and would never release here.
unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    if check::active().is_some()
        && let Err(errno) = find_any::<Qp>(c.cast())
    {
        errno.log("ibv_wr_start");
        // SAFETY: the checker keeps the C structure of a destroyed queue pair.
        unsafe { refuse(c) };
        return;
    }
    // SAFETY: inline code of the headers read this function from the queue pair, so the queue pair is alive.
    let qp: &Qp = unsafe { find_unchecked(c.cast()) };
    if !qp.context().is_inherited() {
        qp.turn.take();
    }
    // SAFETY: the queue pair is alive, and this thread has the turn. An inherited queue pair has no turns, and a forked
    // child must not use it in several threads.
    let (_, builder) = unsafe { builder(c) };
    builder.clear();
}

/// Ends the turn, unless the queue pair is inherited: `wr_start` took none, and a thread of the parent may have held the
/// lock of the turn at the fork.
fn end_turn(qp: &Qp) {
    if !qp.context().is_inherited() {
        qp.turn.release();
    }
}

/// Discards the requests, and ends the turn.
unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    builder.clear();
    end_turn(qp);
}

/// Posts the requests, and ends the turn. Returns zero, or the first error since `wr_start`.
unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    let posted = match builder.error.take() {
        _ if qp.context().is_inherited() => {
            if let Some(checker) = check::active() {
                checker.inherited("ibv_qp", c as usize);
            }
            Err(Errno::INHERITED)
        }
        Some(errno) => Err(errno),
        None => post(qp, builder),
    };
    builder.clear();
    end_turn(qp);
    posted.map_or_else(|errno| errno.0, |()| 0)
}

/// Posts all requests or none. Fails with EINVAL if a request of a UD queue pair has no destination.
fn post(qp: &Qp, builder: &mut Builder) -> Result<(), Errno> {
    if builder.requests.is_empty() {
        return Ok(());
    }
    match check::active() {
        None => post_all(qp, builder),
        Some(checker) => {
            let requests = builder.requests.clone();
            checked::post_built(qp, &requests, || post_all(qp, builder), checker)
        }
    }
}

/// Posts all requests, of which there is at least one, or none.
fn post_all(qp: &Qp, builder: &mut Builder) -> Result<(), Errno> {
    let first = builder.requests.first().map_or(0, |request| request.id);
    let requests = builder.requests.drain(..);
    let posted = match qp.kind() {
        Kind::Stream(pair) => pair.post_send(requests),
        Kind::Datagram(pair) => {
            let addressed = requests.zip(&builder.destinations).map(|(request, destination)| {
                Some(DatagramRequest { request, destination: (*destination)? })
            });
            pair.qp().post_send(addressed.collect::<Option<_>>().ok_or(Errno::INVALID)?)
        }
    };
    posted.map_err(|error| {
        report::log_not_posted(qp.number(), first, &error);
        error.into()
    })
}

/// Begins a request without data, with the `wr_id` and the flags that the program set in the queue pair. Records an
/// error instead if `operation` is one. `immediate` is in network byte order.
///
/// # Safety
/// `c` is a live queue pair, and the calling thread has its turn.
unsafe fn begin(c: *mut ibv_qp_ex, operation: Result<Operation, Errno>, immediate: Option<u32>) {
    // SAFETY: the caller guarantees a live queue pair and the turn, and no other reference to the builder is in use.
    let (qp, builder) = unsafe { builder(c) };
    // SAFETY: `c` is valid. The thread that has the turn set both fields before this call.
    let (id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
    let Some(operation) = builder.record_error(operation) else { return };
    builder.destinations.push(None);
    builder.requests.push(WorkRequest {
        signaled: is_signaled(qp, flags),
        fence: flags & IBV_SEND_FENCE != 0,
        solicited: flags & IBV_SEND_SOLICITED != 0,
        immediate: immediate.map(u32::from_be),
        ..WorkRequest::new(id, operation, Data::Memory(Sges::default()))
    });
}

/// Returns the remote memory that a request accesses.
fn addr(rkey: u32, remote_addr: u64) -> RemoteAddr {
    RemoteAddr { tag: Tag(rkey), offset: remote_addr }
}

unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Send { invalidate: None }), None) };
}

unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Send { invalidate: None }), Some(immediate)) };
}

unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Send { invalidate: Some(Tag(rkey)) }), None) };
}

unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Write(addr(rkey, remote_addr))), None) };
}

unsafe extern "C" fn wr_rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, immediate: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Write(addr(rkey, remote_addr))), Some(immediate)) };
}

unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Read(addr(rkey, remote_addr))), None) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    c: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(compare_swap(addr(rkey, remote_addr), compare, swap)), None) };
}

unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: u64) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(fetch_add(addr(rkey, remote_addr), value)), None) };
}

unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, Ok(Operation::Invalidate(Tag(rkey))), None) };
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: NULL, or valid by the caller's contract.
    let info = unsafe { info.as_ref() }.ok_or(Errno::INVALID);
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, _) = unsafe { builder(c) };
    let operation = info.and_then(|info| mw::bind_operation(qp.context(), mw, rkey, info));
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    unsafe { begin(c, operation, None) };
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    let address: Result<AddressHandle, Errno> = find::<Ah>(ah).and_then(|ah| ah.address(qp.context()));
    let address = builder.record_error(address);
    if let (Some(address), Some(last)) = (address, builder.destinations.last_mut()) {
        *last = Some(Destination { address, qpn, qkey });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, number: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (_, builder) = unsafe { builder(c) };
    builder.change_last(|request| request.srq = number);
}

/// Converts a scatter/gather list. Fails with EINVAL if the list has more elements than the queue pair allows.
fn memory_data(qp: &Qp, list: &[Unaligned<ibv_sge>]) -> Result<Data, Errno> {
    if list.len() > qp.init().cap.max_send_sge as usize {
        return Err(Errno::INVALID);
    }
    Ok(Data::Memory(convert_sges(list)))
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    let list = [Unaligned(ibv_sge { addr, length, lkey })];
    // An element of length zero is no element, so its key is not checked.
    builder.set_data(memory_data(qp, if length == 0 { &[] } else { &list }));
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    let count = c_int::try_from(count).map_err(|_| Errno::INVALID);
    // SAFETY: NULL, or a list of `count` elements, by the caller's contract.
    let list = count.and_then(|count| unsafe { sge_list(list, count) });
    builder.set_data(list.and_then(|list| memory_data(qp, list)));
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: this function has the same contract for `c`, and the list has one element, as its length says.
    unsafe { wr_set_inline_data_list(c, 1, &ibv_data_buf { addr, length }) };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: called after `wr_start`, so the queue pair is alive and this thread has the turn.
    let (qp, builder) = unsafe { builder(c) };
    if list.is_null() && count > 0 {
        builder.set_data(Err(Errno::INVALID));
        return;
    }
    let list = match count {
        0 => &[],
        // SAFETY: the list is not NULL, and has `count` elements by the caller's contract.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    // No queue pair allows as many bytes as do not fit into 32 bits.
    let length = |piece: &ibv_data_buf| u32::try_from(piece.length).unwrap_or(u32::MAX);
    let pieces = list.iter().map(|piece| ibv_sge { addr: piece.addr as u64, length: length(piece), lkey: 0 });
    // SAFETY: the elements are readable memory, by the contract of ibv_wr_set_inline_data_list(3).
    let data = unsafe { inline_data(qp, pieces) };
    builder.set_data(data);
}
